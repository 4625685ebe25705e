"""Search structures over many vectors: which kinds there are, how they are built, and how hard each has to look.

A structure only nominates rows; whoever asks ranks them by exact scores of the full vectors. What it needs in memory a
document, d being the dimension (the stored vectors, 2d, and the ids are mapped files beside it):

    flat  4d                 every vector in float32; exact
    ivf   4d + 8             the same by clusters, of which a search reads some; mapped
    hnsw  4d + 270           the same and a graph of neighbours; mapped
    sq8   d                  eight bits a component, all of them read; mapped
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import faiss
import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import CorruptIndex, InvalidInput, StorageUnavailable
from boundarymorph.retrieval.local.vectors import rounding_error

KINDS = ("flat", "ivf", "hnsw", "sq8")
DEPTHS = (10, 30, 100, 300, 1_000, 3_000, 10_000)  # at which a structure's recall is measured
_faiss: Any = faiss  # of whose types it tells little
_BLOCK = 4_096
_CLUSTER_SAMPLE = 40  # vectors a cluster that its centre is learned from
_CLUSTER_ROUNDS = 6
_LINKS = 32  # of a document in the graph; twice that at its lowest level
_HOP = 2  # what a distance along the graph costs, out of order, in distances of a scan
_SCORES = 2**26  # float32 scores that a measurement may hold


class Rows(Protocol):
    """(n, d) float32 unit rows that need not be in memory."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: NDArray[np.int64] | slice, /) -> NDArray[np.float32]: ...


Checkpoint = Callable[[], None]  # is called now and then during long work, and raises to end it


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to look, by depth: clusters (ivf), the length of the list of candidates (hnsw), nominations (sq8).

    depths, ascending, with the effort and the recall that were measured there; recall is 1 where all is scanned.
    """

    depths: tuple[int, ...]
    efforts: tuple[int, ...]
    recalls: tuple[float, ...]

    def at(self, depth: int) -> int:
        """The effort for any depth: between two depths on the line between them, in logarithms; beyond, in proportion.

        Beyond the last depth nothing was measured: what is found then is as good only as the proportion holds.
        """
        if depth >= self.depths[-1]:
            return -(-self.efforts[-1] * depth // self.depths[-1])
        logarithm = np.interp(np.log(depth), np.log(self.depths), np.log(self.efforts))
        return int(np.ceil(np.exp(logarithm) - 1e-9))


class FaissStructure:
    """What a segment asks for candidates: an index of FAISS, and how hard it has to look."""

    kind: ClassVar[str]
    target: ClassVar[float] = 0.99  # share of the nearest that it is made to find, on average over a sample
    reads_all: ClassVar[bool] = False  # whether it can, at the most effort

    def __init__(self, index: Any, effort: Effort | None = None) -> None:
        self.index = index
        self.effort = effort

    @property
    def matrix(self) -> NDArray[np.float32] | None:
        """(n, d) the vectors in order, if the structure holds them so."""
        return None

    @property
    def most(self) -> int:
        """The effort at which all is read, or from which on a scan by others is the better way."""
        raise NotImplementedError

    def parameters(self) -> dict[str, int]:
        """What it was built with, to be shown."""
        raise NotImplementedError

    def nominate(
        self, query: NDArray[np.float32], depth: int, alive: NDArray[np.bool_], living: int
    ) -> NDArray[np.int64] | None:
        """At least `depth` rows, ascending and alive, that are likely the nearest; None where a scan is the better way.

        query: (d,); alive: (n,), of which `living`, more than depth, are True.
        """
        assert self.effort is not None
        selected = None
        if living < len(alive):
            selected = _faiss.IDSelectorBitmap(np.packbits(alive, bitorder="little"))
        effort = self.effort.at(depth)
        while effort < self.most or self.reads_all:
            (found,) = self._search(query[None], depth, min(effort, self.most), selected)
            rows = found[found >= 0]
            if len(rows) >= depth:
                return np.sort(rows)
            effort *= 2
        return None

    def measured(self, vectors: Rows, seed: int, checkpoint: Checkpoint) -> FaissStructure:
        """The structure with the least efforts, of those tried, that find `target` of the nearest.

        The queries are vectors of its own, so a recall tells of queries that are like the documents.
        """
        sample = np.sort(np.random.default_rng(seed).permutation(len(vectors))[: min(64, _SCORES // len(vectors) + 8)])
        queries = vectors[sample]
        scores = np.empty((len(queries), len(vectors)), np.float32)
        for block in blocks(len(vectors)):
            checkpoint()
            scores[:, block] = queries @ vectors[block].T
        depths = [depth for depth in DEPTHS if depth < len(vectors)] or [1]
        efforts, recalls, effort = [], [], 1
        for depth in depths:
            effort, recall = self._least(effort, depth), 0.0
            while effort < self.most and (recall := self._recall(queries, scores, depth, effort)) < self.target:
                checkpoint()
                effort = self._next(effort, depth)
            efforts.append(effort := min(effort, self.most))
            recalls.append(recall if effort < self.most else 1.0)
        return type(self)(self.index, Effort(tuple(depths), tuple(efforts), tuple(recalls)))

    def _recall(self, queries: NDArray[np.float32], scores: NDArray[np.float32], depth: int, effort: int) -> float:
        """Share of the nearest `depth` found, on average; documents as near as the last of them count as well."""
        found = 0
        for rows, exact in zip(self._search(queries, depth, effort, None), scores, strict=True):
            last = np.partition(exact, len(exact) - depth)[len(exact) - depth]
            near = exact[rows[rows >= 0]] >= last - 2 * rounding_error(queries.shape[1])
            found += min(depth, int(near.sum()))
        return found / (depth * len(queries))

    def _least(self, effort: int, depth: int) -> int:
        """The least effort worth trying at a depth, when a lesser depth took `effort`."""
        return effort

    def _next(self, effort: int, depth: int) -> int:
        return max(effort + 1, effort * 5 // 4)

    def _search(self, queries: NDArray[np.float32], depth: int, effort: int, selected: Any) -> NDArray[np.int64]:
        """(n, m) rows that FAISS finds for (n, d) queries, best first, and -1 where there are no more."""
        raise NotImplementedError

    def _found(self, queries: NDArray[np.float32], depth: int, parameters: Any) -> NDArray[np.int64]:
        _, rows = self.index.search(queries, depth, params=parameters)
        found: NDArray[np.int64] = rows
        return found


class InvertedFile(FaissStructure):
    """Vectors by clusters (FAISS IndexIVFFlat); the effort is the number of clusters that are read.

    At a great depth many clusters hold a part of the answer: with 4 sqrt(N) clusters, the nearest 10,000 of a million
    fill forty of them, and are spread over several times as many.
    """

    kind = "ivf"
    reads_all = True

    @property
    def most(self) -> int:
        return int(self.index.nlist)

    def parameters(self) -> dict[str, int]:
        return {"clusters": int(self.index.nlist)}

    def _search(self, queries: NDArray[np.float32], depth: int, effort: int, selected: Any) -> NDArray[np.int64]:
        return self._found(queries, depth, _faiss.SearchParametersIVF(sel=selected, nprobe=effort))


class NeighbourGraph(FaissStructure):
    """A graph of neighbours (FAISS IndexHNSWFlat); the effort is the length of the list of candidates.

    The list cannot be shorter than the depth, and each of its members brings the distances of its neighbours: where
    these are as much work as all the vectors in order, the structure leaves it to a scan, which is exact besides.
    """

    kind = "hnsw"

    @property
    def matrix(self) -> NDArray[np.float32]:
        flat = _faiss.downcast_index(self.index.storage)
        size = int(self.index.ntotal) * int(self.index.d)
        matrix: NDArray[np.float32] = _faiss.rev_swig_ptr(flat.get_xb(), size).reshape(-1, self.index.d)
        return matrix

    @property
    def most(self) -> int:
        return max(1, int(self.index.ntotal) // (_LINKS * _HOP))

    def parameters(self) -> dict[str, int]:
        return {"links": _LINKS, "construction": int(self.index.hnsw.efConstruction)}

    def _least(self, effort: int, depth: int) -> int:
        return max(effort, depth)

    def _search(self, queries: NDArray[np.float32], depth: int, effort: int, selected: Any) -> NDArray[np.int64]:
        parameters = _faiss.SearchParametersHNSW(sel=selected, efSearch=max(effort, depth))
        return self._found(queries, depth, parameters)


class EightBits(FaissStructure):
    """Vectors in eight bits a component (FAISS IndexScalarQuantizer), all read; the effort is how many it nominates."""

    kind = "sq8"
    target = 0.999  # a few more nominations cost little beside reading them all

    @property
    def most(self) -> int:
        return int(self.index.ntotal)

    def parameters(self) -> dict[str, int]:
        return {"bits": 8}

    def _least(self, effort: int, depth: int) -> int:
        return max(effort, depth)

    def _next(self, effort: int, depth: int) -> int:
        return effort + max(1, depth // 20)

    def _search(self, queries: NDArray[np.float32], depth: int, effort: int, selected: Any) -> NDArray[np.int64]:
        # How many are alive is not known here, and FAISS fills up with -1.
        parameters = None if selected is None else _faiss.SearchParameters(sel=selected)
        return self._found(queries, min(max(effort, depth), self.most), parameters)


_CLASSES: Mapping[str, type[FaissStructure]] = {
    structure.kind: structure for structure in (InvertedFile, NeighbourGraph, EightBits)
}


def check_kind(kind: str) -> str:
    """The kind. Raises InvalidInput when there is none of this name."""
    if kind not in KINDS:
        raise InvalidInput(f"there is no kind of index {kind!r}; use one of {', '.join(KINDS)}")
    return kind


def build(kind: str, vectors: Rows, *, seed: int = 0, checkpoint: Checkpoint = lambda: None) -> FaissStructure | None:
    """A structure over these vectors, measured; None for "flat", which needs none.

    checkpoint is called at least every few seconds; what it raises ends the work.
    """
    if check_kind(kind) == "flat" or len(vectors) == 0:
        return None
    make = {"ivf": _inverted_file, "hnsw": _graph, "sq8": _eight_bits}[kind]
    index = make(vectors, seed, checkpoint)
    for block in blocks(len(vectors)):
        checkpoint()
        index.add(vectors[block])
    return _CLASSES[kind](index).measured(vectors, seed, checkpoint)


def save(structure: FaissStructure, path: Path) -> None:
    """Write the FAISS index to a file. Raises StorageUnavailable."""
    try:
        _faiss.write_index(structure.index, str(path))
    except RuntimeError as error:
        raise StorageUnavailable(f"FAISS could not write {path}: {error}") from error


def load(kind: str, path: Path, effort: Effort, count: int, dimension: int) -> FaissStructure:
    """Map a structure's file. Raises CorruptIndex when it is not one of these numbers."""
    try:
        index = _faiss.read_index(str(path), _faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise CorruptIndex(f"{path} cannot be read by FAISS {_faiss.__version__}: {error}") from error
    if (index.ntotal, index.d) != (count, dimension):
        raise CorruptIndex(f"{path} holds {index.ntotal} vectors of {index.d} dimensions, not {count} of {dimension}")
    return _CLASSES[kind](index, effort)


def blocks(count: int, size: int = _BLOCK) -> Iterator[slice]:
    """Consecutive slices that cover `count` rows."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def _inverted_file(vectors: Rows, seed: int, checkpoint: Checkpoint) -> Any:
    clusters = max(1, min(len(vectors) // 8, round(4 * len(vectors) ** 0.5)))
    centres = _cluster_centres(vectors, clusters, seed, checkpoint)
    quantizer = _faiss.IndexFlatIP(centres.shape[1])
    quantizer.add(centres)
    index = _faiss.IndexIVFFlat(quantizer, centres.shape[1], clusters, _faiss.METRIC_INNER_PRODUCT)
    index.is_trained = True
    return index


def _graph(vectors: Rows, seed: int, checkpoint: Checkpoint) -> Any:
    index = _faiss.IndexHNSWFlat(vectors[:1].shape[1], _LINKS, _faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = 80
    return index


def _eight_bits(vectors: Rows, seed: int, checkpoint: Checkpoint) -> Any:
    index = _faiss.IndexScalarQuantizer(
        vectors[:1].shape[1], _faiss.ScalarQuantizer.QT_8bit, _faiss.METRIC_INNER_PRODUCT
    )
    index.train(_sample(vectors, 100_000, seed))
    return index


def _cluster_centres(vectors: Rows, clusters: int, seed: int, checkpoint: Checkpoint) -> NDArray[np.float32]:
    """(clusters, d) unit rows by spherical k-means on a sample. FAISS's own cannot be interrupted for minutes."""
    sample = _sample(vectors, clusters * _CLUSTER_SAMPLE, seed)
    rng = np.random.default_rng(seed)
    centres = sample[rng.permutation(len(sample))[:clusters]].copy()
    for _ in range(_CLUSTER_ROUNDS):
        sums = np.zeros(centres.shape, np.float64)
        for block in blocks(len(sample)):
            checkpoint()
            nearest = np.argmax(sample[block] @ centres.T, axis=1)
            order = np.argsort(nearest, kind="stable")
            members, starts = np.unique(nearest[order], return_index=True)
            sums[members] += np.add.reduceat(sample[block][order].astype(np.float64), starts, axis=0)
        lengths = np.linalg.norm(sums, axis=1)
        lost = lengths < 1e-6
        sums[lost] = sample[rng.integers(len(sample), size=int(lost.sum()))]
        lengths[lost] = 1
        centres = (sums / lengths[:, None]).astype(np.float32)
    return centres


def _sample(vectors: Rows, most: int, seed: int) -> NDArray[np.float32]:
    if len(vectors) <= most:
        return vectors[:]
    return vectors[np.sort(np.random.default_rng(seed).choice(len(vectors), most, replace=False))]


def effort_of(depths: Sequence[int], efforts: Sequence[int], recalls: Sequence[float]) -> Effort:
    """An effort as read from a manifest. Raises CorruptIndex when it cannot be one."""
    ascending = all(first < second for first, second in itertools.pairwise(depths))
    if not depths or not len(depths) == len(efforts) == len(recalls) or not ascending or min(efforts) < 1:
        raise CorruptIndex("the manifest tells no efforts that fit together")
    return Effort(tuple(depths), tuple(efforts), tuple(recalls))
