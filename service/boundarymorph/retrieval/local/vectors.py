"""Hold the vectors of an index: a block in mapped files, and the changes since."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import faiss
import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidEmbeddings
from boundarymorph.inference.concurrency import check_awaited, compute_slot
from boundarymorph.notices import Notice
from boundarymorph.retrieval.ranking import check_search, exact_scores, membership, unit_from_halves
from boundarymorph.retrieval.words import PoolWords, RowWords, WordColumns, merge_columns

_BLOCK = 256  # vectors to read at a time, so that they stay in the cache
Scalar = TypeVar("Scalar", bound=np.generic)
_MARGIN = 64  # rows nominated beyond the depth, because rounding may reorder the last ones
_FAILURES = (RuntimeError, MemoryError)  # errors of FAISS: out of memory, or a failing device
_faiss: Any = faiss  # has few type hints
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """n documents, best first.

    Attributes:
        matrix: Float32 unit rows, which contain their vectors.
        places: (n,) the row of each in `matrix`.
        scores: (n,) float64 inner products with the query.
        sequences: (n,), 0 if unknown.
        rows: (n,) their rows in the index.
    """

    ids: list[str]
    matrix: NDArray[np.float32]
    places: NDArray[np.int64]
    scores: NDArray[np.float64]
    sequences: NDArray[np.int64]
    rows: NDArray[np.int64]
    warnings: tuple[Notice, ...] = ()

    @property
    def vectors(self) -> NDArray[np.float32]:
        """(n, d) unit rows."""
        return self.matrix[self.places]

    def vectors_at(self, numbers: NDArray[np.intp]) -> NDArray[np.float32]:
        """(k, d) unit rows of some of the documents."""
        return self.matrix[self.places[numbers]]


@dataclass(frozen=True, slots=True)
class Rows:
    """Documents by row, in order of insertion. Immutable.

    Attributes:
        ids: The ids of at least `count` rows.
        sequences: The sequence numbers of at least `count` rows.
        alive: (count,) whether the row is in use.
        living: How many are alive.
        numbering: Changes when documents move.
    """

    ids: list[str]
    sequences: NDArray[np.int64]
    alive: NDArray[np.bool_]
    living: int
    numbering: int = 0

    @property
    def count(self) -> int:
        return len(self.alive)

    def __len__(self) -> int:
        return self.living

    def subset(self, within: NDArray[np.int64]) -> Rows:
        """Return these rows with only the documents of these ascending sequence numbers alive."""
        alive = self.alive & membership(self.sequences[: self.count], within)
        return replace(self, alive=alive, living=int(alive.sum()))

    def absent_ids(self, living: NDArray[np.int64]) -> list[str]:
        """Return the ids of documents whose sequence numbers are not among these ascending ones."""
        rows = np.flatnonzero(self.alive & ~membership(self.sequences[: self.count], living))
        return [self.ids[row] for row in rows]

    def ranked(
        self,
        query: NDArray[np.float32],
        depth: int,
        rows: NDArray[np.int64],
        matrix: NDArray[np.float32],
        places: NDArray[np.int64],
        warnings: tuple[Notice, ...] = (),
    ) -> Neighbours:
        """Return the best `depth` of m ascending rows by exact scores.

        Their vectors are at (m,) `places` of `matrix`.
        """
        with compute_slot():
            blocks = (matrix[places[start : start + _BLOCK]] for start in range(0, len(places), _BLOCK))
            scores = np.concatenate([np.empty(0), *(exact_scores(block, query) for block in blocks)])
            best = np.argsort(-scores, kind="stable")[:depth]
            chosen = rows[best]
            ids = [self.ids[row] for row in chosen.tolist()]
            return Neighbours(ids, matrix, places[best], scores[best], self.sequences[chosen], chosen, warnings)


def with_capacity(rows: NDArray[Scalar], count: int, more: int) -> NDArray[Scalar]:
    """Return an array with space for `more` rows after `count`.

    It is the same array if that has the space, else a copy of at least twice the size.
    """
    if count + more <= len(rows):
        return rows
    larger = np.empty((max(count + more, 2 * count), *rows.shape[1:]), dtype=rows.dtype)
    larger[:count] = rows[:count]
    return larger


@dataclass(frozen=True, slots=True)
class Clusters:
    """FAISS's inverted file over the rows of a block, and the probes at ascending depths.

    The recall was measured for each depth.
    """

    index: Any
    depths: tuple[int, ...]
    tried: tuple[int, ...]
    recalls: tuple[float, ...]

    @property
    def count(self) -> int:
        return int(self.index.nlist)

    def probes(self, depth: int) -> int:
        """Return the probes for any depth.

        They are interpolated linearly in logarithms, and beyond all depths in proportion.
        """
        if depth >= self.depths[-1]:
            return -(-self.tried[-1] * depth // self.depths[-1])
        return int(np.ceil(np.exp(np.interp(np.log(depth), np.log(self.depths), np.log(self.tried))) - 1e-9))

    def search(
        self, query: NDArray[np.float32], reach: int, probes: int, chosen: Any = None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return scores and rows of up to `reach` near vectors, best first.

        `chosen` is FAISS's selector of rows.
        """
        parameters = _faiss.SearchParametersIVF(sel=chosen, nprobe=probes)
        (scores,), (rows,) = self.index.search(query[None], reach, params=parameters)
        return scores[rows >= 0], rows[rows >= 0]


@dataclass(frozen=True, slots=True)
class Block:
    """The n rows of a store up to a change, in order of sequence number.

    Read only: FAISS aborts if a row is added.

    Attributes:
        sequence: The number of the change.
        sequences: (n,) of the rows.
        halves: (n, d) as stored.
        vectors: FAISS's index of them.
        loss: The largest difference of a row's length from 1.
        clusters: Only of kind `ivf`.
        words: Columns, and the (n,) number of words of each row.
    """

    sequence: int
    sequences: NDArray[np.int64]
    halves: NDArray[np.float16]
    vectors: Any
    loss: float
    clusters: Clusters | None = None
    words: tuple[WordColumns, NDArray[np.uint32]] | None = None

    @property
    def count(self) -> int:
        return len(self.sequences)

    def search(
        self, query: NDArray[np.float32], reach: int, chosen: Any = None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return scores by the stored halves, and rows, of the nearest `reach`, best first.

        `chosen` is FAISS's selector of rows.
        """
        (scores,), (rows,) = self.vectors.search(query[None], reach, params=_faiss.SearchParameters(sel=chosen))
        return scores, rows


class BeyondDevice(Exception):
    """The device cannot guarantee an exact answer to this search; the message says why."""


class Mirror(Protocol):
    """The vectors of a view on a device, which nominates candidates."""

    def extend(self, view: VectorView, kept: int) -> Mirror:
        """Return the mirror of a view whose first `kept` rows are those here.

        Searches of this mirror may continue meanwhile.
        """

    def nominate(self, view: VectorView, query: NDArray[np.float32], depth: int) -> NDArray[np.int64]:
        """Return ascending living rows that certainly include the nearest `depth`.

        Raises:
            BeyondDevice: If that is not certain.
        """


class _FailedMirror:
    """Replaces a mirror whose device was too small for the vectors."""

    def extend(self, view: VectorView, kept: int) -> _FailedMirror:
        return self

    def nominate(self, view: VectorView, query: NDArray[np.float32], depth: int) -> NDArray[np.int64]:
        raise BeyondDevice("it could not load the documents of this index; the log says why")


@dataclass(frozen=True, slots=True)
class VectorView:
    """The state of a `VectorIndex` that one search sees. Immutable.

    Attributes:
        rows: First those of the block, then those of the matrix.
        block: The block, if any.
        matrix: (capacity, d), where rows never change.
        words: The words of all rows.
        mirror: The vectors on a device.
        whole: Whether no rows are left out.
    """

    rows: Rows
    block: Block | None
    matrix: NDArray[np.float32]
    words: RowWords | None = None
    mirror: Mirror | None = None
    whole: bool = True

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def base(self) -> int:
        """Number of rows in the block."""
        return 0 if self.block is None else self.block.count

    def subset(self, within: NDArray[np.int64]) -> VectorView:
        """Return this view with only the documents of these ascending sequence numbers."""
        return replace(self, rows=self.rows.subset(within), whole=False)

    def search(self, query: NDArray[np.float32], depth: int) -> Neighbours:
        """Return the `depth` nearest to a (d,) unit query; ties in order of insertion.

        Float32 nominates somewhat more, to be ranked in float64. In a block with clusters some may be missed, unless
        this is not the whole.
        """
        check_search(query, depth, self.matrix.shape[1])
        _faiss.omp_set_num_threads(1)  # for this thread: concurrent searches have the other cores
        rows, found = self.rows, None
        warnings: tuple[Notice, ...] = ()
        if self.mirror is not None and self.whole and depth < len(rows):
            found, warnings = self._by_device(self.mirror, query, depth)
        if found is None:
            base, found = self.base, self._in_matrix(rows, query, depth)
            if self.block is not None:
                found = np.concatenate([_in_block(self.block, rows.alive[:base], query, depth, self.whole), found])
        if self.block is None:
            return rows.ranked(query, depth, found, self.matrix, found, warnings)
        return rows.ranked(query, depth, found, self.vectors(found), np.arange(len(found)), warnings)

    def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return (n, d) unit rows of these ascending rows, bit for bit as the store returns them."""
        if self.block is None:
            return self.matrix[rows]
        found = np.empty((len(rows), self.matrix.shape[1]), np.float32)
        there = int(np.searchsorted(rows, self.base))
        found[:there] = unit_from_halves(self.block.halves[rows[:there]])
        found[there:] = self.matrix[rows[there:] - self.base]
        return found

    def _in_matrix(self, rows: Rows, query: NDArray[np.float32], depth: int) -> NDArray[np.int64]:
        alive = np.flatnonzero(rows.alive[self.base :])
        if depth < len(alive):
            count = rows.count - self.base
            few = 4 * len(alive) < count
            scores = self.matrix[alive] @ query if few else (self.matrix[:count] @ query)[alive]
            alive = alive[_nominated(scores, depth, rounding_error(query.size))]
        return alive + self.base

    def _by_device(
        self, mirror: Mirror, query: NDArray[np.float32], depth: int
    ) -> tuple[NDArray[np.int64] | None, tuple[Notice, ...]]:
        try:
            return mirror.nominate(self, query, depth), ()
        except BeyondDevice as error:
            reason = str(error)
        except _FAILURES as error:
            _log.warning("a search failed on its device and was answered by the CPU: %s", error)
            reason = "it failed or is out of memory; the log says why"
        return None, (Notice("search-device-not-used", f"the CPU searched, not the device: {reason}"),)


class VectorIndex:
    """Unit vectors by document id. Thread-safe.

    A view contains all or nothing of each writing call.

    Attributes:
        sequence: The last change in the block, or 0.
        changed: Documents changed since.
    """

    def __init__(
        self,
        dimension: int,
        capacity: int = 0,
        *,
        block: Block | None = None,
        rows: Rows | None = None,
        lexical: bool = False,
        make_mirror: Callable[[int], Mirror] | None = None,
    ) -> None:
        """Start with a block or empty.

        Args:
            dimension: The length of the vectors.
            capacity: Rows of the matrix.
            block: The block.
            rows: The rows of the block.
            lexical: Whether rows have words.
            make_mirror: Makes an empty mirror, given d.
        """
        self._dimension = dimension
        self._rows = Rows([], np.empty(0, np.int64), np.empty(0, np.bool_), 0) if rows is None else rows
        self._row_of = {self._rows.ids[row]: row for row in np.flatnonzero(self._rows.alive).tolist()}
        self._block = block
        self.lexical = lexical
        self._make_mirror = make_mirror
        self._parts: tuple[WordColumns, ...] = ()  # columns of the words since the block, in order of rows
        self._lengths = np.empty(0, np.uint32) if block is None or block.words is None else block.words[1]
        self._writing = threading.Lock()
        self.sequence = 0 if block is None else block.sequence
        self.changed = self._rows.count - len(self._rows)
        self._view = VectorView(self._rows, block, np.empty((capacity, dimension), np.float32))
        self._publish(self._view.matrix)

    def __len__(self) -> int:
        return len(self._view)

    def upsert(
        self,
        ids: Sequence[str],
        vectors: NDArray[np.float32],
        sequences: NDArray[np.int64] | None = None,
        texts: Sequence[str] = (),
    ) -> None:
        """Add n documents with their (n, d) unit rows, replacing those of the same id.

        The last one of an id wins.

        Args:
            ids: The n ids.
            vectors: (n, d) unit rows.
            sequences: (n,) positive numbers.
            texts: The n texts, for an index of words.

        Raises:
            InvalidEmbeddings: If the rows do not fit.
        """
        if vectors.shape != (len(ids), self._dimension):
            raise InvalidEmbeddings(f"{len(ids)} documents need embeddings of {self._dimension}, not {vectors.shape}")
        # In a context of its own, since others depend on it, even if nobody waits for this search any more.
        words = Context().run(PoolWords.from_texts, texts) if self.lexical else None
        with self._writing:
            if words is not None:
                self._add_words(words)
            count = self._rows.count - self._view.base
            matrix = with_capacity(self._view.matrix, count, len(ids))
            matrix[count : count + len(ids)] = vectors
            self._add_rows(ids, sequences)
            self._publish(matrix)
            self.changed += len(ids)

    def remove(self, ids: Sequence[str]) -> None:
        with self._writing:
            alive = self._rows.alive.copy()
            for id in ids:
                if (row := self._row_of.pop(id, None)) is not None:
                    alive[row] = False
            self._rows = replace(self._rows, alive=alive, living=len(self._row_of))
            self._publish(self._view.matrix)
            self.changed += len(ids)

    def view(self) -> VectorView:
        return self._view

    def _publish(self, matrix: NDArray[np.float32]) -> None:
        """Make a new state visible to searches, without dead rows of the matrix once there are many."""
        now, base = self._rows, self._view.base
        living = int(np.count_nonzero(now.alive[base:]))
        if now.count - base > 2 * living + 1024:
            moved = self._close_gaps(base)
            matrix = matrix[moved - base]
            if self.lexical:
                places = np.full(now.count, -1)
                places[moved] = np.arange(base, base + len(moved))
                self._parts = tuple(part.moved(places) for part in self._parts)
                self._lengths = np.concatenate([self._lengths[:base], self._lengths[moved]])
            now = self._rows
        words = None
        if self.lexical:
            first = () if self._block is None or self._block.words is None else self._block.words[:1]
            words = RowWords((*first, *self._parts), self._lengths[: now.count], now.alive)
        view = VectorView(now, self._block, matrix, words)
        if self._make_mirror is not None:
            view = replace(view, mirror=self._mirrored(view, self._make_mirror))
        self._view = view

    def _add_rows(self, ids: Sequence[str], sequences: NDArray[np.int64] | None) -> None:
        now, count = self._rows, self._rows.count
        numbers = with_capacity(now.sequences, count, len(ids))
        numbers[count : count + len(ids)] = 0 if sequences is None else sequences
        now.ids.extend(ids)
        alive = np.concatenate([now.alive, np.ones(len(ids), np.bool_)])
        for row, id in enumerate(ids, start=count):
            if (replaced := self._row_of.get(id)) is not None:
                alive[replaced] = False
            self._row_of[id] = row
        self._rows = replace(now, sequences=numbers, alive=alive, living=len(self._row_of))

    def _close_gaps(self, base: int) -> NDArray[np.int64]:
        """Move the living documents after the first `base` rows together, in order.

        Returns their former rows.
        """
        now = self._rows
        moved = np.flatnonzero(now.alive[base:]) + base
        rows = np.concatenate([np.arange(base), moved])
        ids = now.ids[:base] + [now.ids[row] for row in moved]
        self._row_of |= {id: row for row, id in enumerate(ids[base:], start=base)}
        self._rows = Rows(ids, now.sequences[rows], now.alive[rows], now.living, now.numbering + 1)
        return moved

    def _add_words(self, words: PoolWords) -> None:
        count = self._rows.count
        parts = [*self._parts, WordColumns.from_words(words, count)]
        while len(parts) > 1 and len(parts[-2].rows) <= 2 * len(parts[-1].rows):
            parts[-2:] = [merge_columns(parts[-2:])]
        self._lengths = with_capacity(self._lengths, count, len(words.lengths))
        self._lengths[count : count + len(words.lengths)] = words.lengths
        self._parts = tuple(parts)

    def _mirrored(self, view: VectorView, make: Callable[[int], Mirror]) -> Mirror:
        """Return the mirror of a view, or after the first failure one that cannot nominate."""
        before = self._view
        if isinstance(before.mirror, _FailedMirror):
            return before.mirror
        try:
            if before.mirror is None or before.rows.numbering != view.rows.numbering:
                return make(self._dimension).extend(view, 0)
            return before.mirror.extend(view, before.rows.count)
        except _FAILURES as error:
            _log.warning(
                "%d vectors of %d numbers could not be loaded to the device; the CPU searches them until this index "
                "is reopened, and each answer has a warning: %s",
                view.rows.count,
                self._dimension,
                error,
            )
            return _FailedMirror()


@dataclass(frozen=True, slots=True)
class TrainingPolicy:
    """Decides when the block of an index is made.

    Attributes:
        least: Documents, and changes, below which it is not made.
        share: Share of its documents that may change before.
        pause: Seconds to the next attempt, doubled by failures.
        longest: The longest pause.
    """

    least: int = 20_000
    share: float = 0.2
    pause: float = 5.0
    longest: float = 600.0

    def is_due(self, vectors: VectorIndex) -> bool:
        if vectors.sequence:
            return vectors.changed >= max(self.least, int(self.share * len(vectors)))
        return len(vectors) >= self.least


def rounding_error(dimension: int) -> float:
    """Return a bound on the error of a float32 inner product of two unit vectors."""
    return dimension * float(np.finfo(np.float32).eps)


def _in_block(
    block: Block, alive: NDArray[np.bool_], query: NDArray[np.float32], depth: int, approximately: bool
) -> NDArray[np.int64]:
    """Return ascending living rows of a block that include the nearest `depth`.

    They probably include them if the search is approximate.
    """
    living = int(np.count_nonzero(alive))
    wanted = min(depth, living)
    if wanted == living:
        return np.flatnonzero(alive)
    chosen = None if living == len(alive) else _faiss.IDSelectorBitmap(np.packbits(alive, bitorder="little"))
    error, reach = block.loss + rounding_error(query.size), wanted + wanted // 64 + _MARGIN
    clusters = block.clusters if approximately else None
    probes = 0 if clusters is None else clusters.probes(-(-wanted * len(alive) // living))  # dead rows take some places
    while True:
        check_awaited()
        reach = min(reach, living)
        if clusters is not None and probes < clusters.count:
            scores, rows = clusters.search(query, reach, probes, chosen)
            if len(rows) >= wanted:
                return np.sort(rows)
            probes *= 2
            continue
        scores, rows = block.search(query, reach, chosen)
        if reach == living or scores[-1] < scores[wanted - 1] - 2 * error:
            return np.sort(rows)
        reach *= 2


def _nominated(scores: NDArray[np.float32], depth: int, error: float) -> NDArray[np.int64]:
    """Return ascending positions that certainly include the best `depth` of inexact scores.

    The scores have at most this error. `depth` items truly have the score at rank `depth` minus the error, so a better
    one has here that minus the error.
    """
    last = np.partition(scores, len(scores) - depth)[len(scores) - depth]
    return np.flatnonzero(scores >= last - 2 * error)
