"""Count the cache's look-ups and writes within a block."""

from types import TracebackType
from typing import Self

from tests import metrics

OUTCOMES = {"lookups": ("hit", "miss", "corrupt", "error"), "writes": ("ok", "error", "dropped")}


class CacheCounts:
    """The `lookups` and `writes` of a cache within a block, counted by outcome."""

    def __init__(self, cache: str) -> None:
        self._cache = cache
        self.lookups: dict[str, int] = {}
        self.writes: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._before = {name: self._read(name) for name in OUTCOMES}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, before in self._before.items():
            added = {outcome: count - before[outcome] for outcome, count in self._read(name).items()}
            setattr(self, name, {outcome: count for outcome, count in added.items() if count})

    def _read(self, name: str) -> dict[str, int]:
        counter = f"boundarymorph_cache_{name}_total"
        return {one: int(metrics.counted(counter, cache=self._cache, outcome=one)) for one in OUTCOMES[name]}
