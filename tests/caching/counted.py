"""What the metrics have counted since."""

from __future__ import annotations

from types import TracebackType

from tests import metrics


def counter(name: str, **labels: str) -> float:
    return metrics.counted(f"boundarymorph_cache_{name}_total", **labels)


class Counted:
    """Differences of the caches' counters over a block: `lookups` and `writes` by outcome."""

    def __init__(self, cache: str) -> None:
        self._cache = cache
        self.lookups: dict[str, int] = {}
        self.writes: dict[str, int] = {}

    def __enter__(self) -> Counted:
        self._before = self._read()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        changes = {key: int(value - self._before[key]) for key, value in self._read().items()}
        self.lookups = {outcome: n for (name, outcome), n in changes.items() if name == "lookups" and n}
        self.writes = {outcome: n for (name, outcome), n in changes.items() if name == "writes" and n}

    def _read(self) -> dict[tuple[str, str], float]:
        lookups = ("hit", "miss", "corrupt", "error")
        writes = ("ok", "error", "dropped")
        return {
            **{("lookups", one): counter("lookups", cache=self._cache, outcome=one) for one in lookups},
            **{("writes", one): counter("writes", cache=self._cache, outcome=one) for one in writes},
        }
