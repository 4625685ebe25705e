"""The kinds of vector index in Milvus, and their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Parameters = Mapping[str, int | float | str | bool]


@dataclass(frozen=True, slots=True)
class _Kind:
    """index_type: its name in Milvus; beam: the search parameter that must be at least the depth, and its largest
    value."""

    index_type: str
    build: Parameters = field(default_factory=dict)
    search: Parameters = field(default_factory=dict)
    beam: tuple[str, int] | None = None


_KINDS = {
    "flat": _Kind("FLAT"),
    "ivf": _Kind("IVF_FLAT", {"nlist": 1024}, {"nprobe": 64}),
    "hnsw": _Kind("HNSW", {"M": 32, "efConstruction": 360}, beam=("ef", 32_768)),
    "diskann": _Kind("DISKANN", beam=("search_list", 65_535)),
    "autoindex": _Kind("AUTOINDEX"),
}
KINDS = tuple(_KINDS)


@dataclass(frozen=True, slots=True)
class Structures:
    """The parameters of each kind: those of the settings, with defaults for the others."""

    build: Mapping[str, Parameters] = field(default_factory=dict)
    search: Mapping[str, Parameters] = field(default_factory=dict)

    def index(self, kind: str) -> dict[str, Any]:
        """Return the arguments of `IndexParams.add_index` for a kind."""
        chosen = _KINDS[kind]
        parameters = {**chosen.build, **self.build.get(kind, {})}
        return {"index_type": chosen.index_type, "metric_type": "COSINE", "params": parameters}

    def searching(self, kind: str, depth: int) -> dict[str, Any]:
        """Return the parameters of a search of this depth. By default a beam is twice as wide as the depth, and it is
        always at least as wide."""
        chosen = _KINDS[kind]
        parameters = {**chosen.search, **self.search.get(kind, {})}
        if chosen.beam is not None:
            name, largest = chosen.beam
            parameters[name] = min(largest, max(depth, int(parameters.get(name, 2 * depth))))
        return parameters

    def exhaustive(self, kind: str) -> dict[str, Any]:
        """Return the parameters of a search in every cluster; empty for a kind without clusters."""
        return {"nprobe": self.index(kind)["params"]["nlist"]} if kind == "ivf" else {}
