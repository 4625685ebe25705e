"""Store pools with known scores on disk, in one .npz per collection.

| key | shape, type | meaning |
|---|---|---|
| `doc_emb` | (D, d) floating | embeddings, any length; normalised when read |
| `query_emb` | (Q, d) floating | |
| `pool` | (Q, N) integer | rows of `doc_emb` in retrieval order; -1 pads queries with fewer candidates |
| `score` | (Q, N) floating | the scorer's answer in [0, 1]: what a method buys, one call each; NaN in no file |
| `doc_ids`, `query_ids` | (D,), (Q,) str | optional, by default the row numbers |
| `mips` | (Q, N) floating | optional retrieval scores, by default inner products of unit vectors |
| `bm25` | (Q, N) floating | optional; without it, the method `bm25` is left out |
| `terms` | (Q, N) uint64 | optional; bit w is set where the document has term w of its query (`query_terms`) |
| `grade` | (Q, N) number | optional human grades, 0 = not relevant or not judged; without them nCG is null |
| `judged` | (Q, N) bool | optional, whether a person judged it, by default everything |
| `n_relevant` | (Q,) integer | optional, relevant documents in the whole collection |
| `call_seconds` | () floating | optional, mean time of one scorer call when the table was made |
| `scorer` | () str | optional, its name, by default that of the embedded one |
| `trust` | () str | optional: weak, normal or strong, by default as declared for the scorer |

Other keys are ignored. No text is stored, so a table can be passed on if its collection cannot. If its texts are
available, `terms` are found in them, whatever the table says.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput
from boundarymorph.retrieval.words import PoolWords
from boundarymorph.selection.pool import Pool, Trust, unit_rows
from boundarymorph_evaluation.datasets import Collection
from boundarymorph_evaluation.problem import EMBEDDED, Question, QuestionTexts

UNREADABLE = (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error)
WHOLE, NUMBER, TEXT, ANY = "iu", "biuf", "U", "biufcmMOSUV"  # kinds of numpy types
REQUIRED = ("doc_emb", "query_emb", "pool", "score")
COLUMNS = {  # kind and shape, by letters: Q queries, N candidates, D documents, d dimensions
    "doc_emb": (NUMBER, "Dd"),
    "query_emb": (NUMBER, "Qd"),
    "pool": (WHOLE, "QN"),
    "score": (NUMBER, "QN"),
    "doc_ids": (ANY, "D"),
    "query_ids": (ANY, "Q"),
    "mips": (NUMBER, "QN"),
    "bm25": (NUMBER, "QN"),
    "terms": (NUMBER, "QN"),
    "grade": (NUMBER, "QN"),
    "judged": ("b", "QN"),
    "n_relevant": (WHOLE, "Q"),
    "call_seconds": (NUMBER, ""),
    "scorer": (TEXT, ""),
    "trust": (TEXT, ""),
}
TERMS = np.dtype(np.uint64)


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """Pools with known scores.

    Attributes:
        name: The name of the collection.
        arrays: The arrays that the module describes.
        texts: Query and document texts by id, if available.
    """

    name: str
    arrays: Mapping[str, NDArray[Any]]
    texts: tuple[Mapping[str, str], Mapping[str, str]] | None = None

    def __post_init__(self) -> None:
        if (wrong := _complaint(self.arrays)) is not None:
            raise InvalidInput(f"the table {self.name!r} cannot be used: {wrong}")

    def __len__(self) -> int:
        return len(self.arrays["pool"])

    @property
    def depth(self) -> int:
        """N, the size of the largest pool."""
        return int(self.arrays["pool"].shape[1])

    @property
    def provides(self) -> frozenset[str]:
        """The optional keys that are there, and "texts": the things that methods may require."""
        return frozenset(self.arrays) | ({"texts"} if self.texts else frozenset())

    @property
    def call_seconds(self) -> float | None:
        return float(self.arrays["call_seconds"]) if "call_seconds" in self.arrays else None

    def question(self, row: int) -> Question:
        """Return the query of one row with its pool, in order of the retrieval score."""
        arrays = self.arrays
        there = np.flatnonzero(arrays["pool"][row] >= 0)
        documents = arrays["pool"][row][there]
        query = unit_rows(arrays["query_emb"][row : row + 1], ["the query"])[0]
        names = [str(name) for name in (arrays["doc_ids"][documents] if "doc_ids" in arrays else documents)]
        embeddings = unit_rows(arrays["doc_emb"][documents], names)
        retrieval = arrays["mips"][row][there].astype(np.float64) if "mips" in arrays else embeddings @ query
        order = np.argsort(-retrieval, kind="stable")
        there = there[order]
        pool = Pool.from_embeddings(
            [names[place] for place in order],
            embeddings[order],
            query,
            retrieval[order],
            {"bm25": arrays["bm25"][row][there]} if "bm25" in arrays else {},
            _unpacked(arrays["terms"][row][there]) if "terms" in arrays else None,
        )
        identifier = str(arrays["query_ids"][row]) if "query_ids" in arrays else str(row)
        texts = None
        if self.texts is not None:
            queries, contents = self.texts
            texts = QuestionTexts(queries[identifier], [contents[document] for document in pool.ids])
        return Question(
            identifier,
            pool,
            arrays["score"][row][there].astype(np.float64),
            arrays["grade"][row][there].astype(np.float64) if "grade" in arrays else None,
            int(arrays["n_relevant"][row]) if "n_relevant" in arrays else None,
            texts,
            scorer=str(arrays.get("scorer", EMBEDDED)),
            judged=arrays["judged"][row][there] if "judged" in arrays else None,
            trust=cast(Trust, str(arrays["trust"])) if "trust" in arrays else None,
        )

    def questions(self) -> Iterator[Question]:
        return (self.question(row) for row in range(len(self)))

    def head(self, count: int | None) -> ScoreTable:
        """Return the table of the first `count` queries; None keeps all."""
        return self.subset(range(len(self))[:count])

    def subset(self, rows: Sequence[int]) -> ScoreTable:
        """Return the table of the queries of these rows, in this order."""
        per_query, chosen = {name for name, (_, shape) in COLUMNS.items() if shape.startswith("Q")}, list(rows)
        arrays = {name: values[chosen] if name in per_query else values for name, values in self.arrays.items()}
        return ScoreTable(self.name, arrays, self.texts)


def read(path: Path) -> ScoreTable:
    """Read a table.

    Raises:
        InvalidInput: With the missing part, if the file is not a table.
    """
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in COLUMNS if name in file}
    except UNREADABLE as error:
        raise InvalidInput(f"{path} cannot be read as a table (.npz): {error}") from error
    if "score" in arrays and np.isnan(arrays["score"]).any():
        raise InvalidInput(f"{path} lacks a score; make the table again")
    return ScoreTable(path.stem, arrays)


def with_texts(table: ScoreTable, collections: Sequence[Collection]) -> ScoreTable:
    """Return the table with the texts of its documents and queries, and `terms` by them.

    They come from the first of these collections that has all of them. If none has, the table is unchanged.
    """
    arrays = table.arrays
    if not {"doc_ids", "query_ids"} <= arrays.keys():
        return table
    documents, queries = (arrays[ids].astype(str).tolist() for ids in ("doc_ids", "query_ids"))
    for one in collections:
        if one.documents.keys() >= set(documents) and one.queries.keys() >= set(queries):
            texts = [one.documents[id] for id in documents], [one.queries[id] for id in queries]
            whole = {**arrays, "terms": packed_terms(*texts, arrays["pool"])}
            return ScoreTable(table.name, whole, (one.queries, one.documents))
    return table


def packed_terms(documents: Sequence[str], queries: Sequence[str], pools: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Return (Q, N) `terms` of a table, from D texts, Q texts and (Q, N) rows of the former."""
    words = PoolWords.from_texts(documents)
    packed = np.zeros(pools.shape, dtype=TERMS)
    for row, query in enumerate(queries):
        for number, having in enumerate(words.terms(query)):
            packed[row] |= having[pools[row]].astype(TERMS) << TERMS.type(number)
    packed[pools < 0] = 0
    return packed


def write(table: ScoreTable, path: Path) -> None:
    """Write a table atomically.

    A reader never sees half a file, even if several processes write it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{uuid4().hex}.writing")
    try:
        with scratch.open("wb") as file:
            np.savez_compressed(file, **dict(table.arrays))  # type: ignore[arg-type]  # savez takes arrays by any name
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def _complaint(arrays: Mapping[str, NDArray[Any]]) -> str | None:
    """Return why arrays are not a table, or None if they are."""
    if missing := [key for key in REQUIRED if key not in arrays]:
        return f"it lacks {', '.join(missing)}"
    for key, (kinds, _) in COLUMNS.items():
        if key in arrays and arrays[key].dtype.kind not in kinds:
            wanted = {WHOLE: "whole numbers", TEXT: "a text"}.get(kinds, "numbers")
            return f"{key} is of {arrays[key].dtype}; it takes {wanted}"
    if "terms" in arrays and arrays["terms"].dtype != TERMS:
        return f"terms is of {arrays['terms'].dtype}; it takes {TERMS}"
    pool, documents = arrays["pool"], arrays["doc_emb"]
    if pool.ndim != 2 or not pool.size:
        return f"it holds no query with candidates: pool has the shape {pool.shape}"
    if documents.ndim != 2:
        return f"doc_emb has the shape {documents.shape}, not (documents, dimension)"
    sizes = dict(zip("QNDd", (*pool.shape, *documents.shape), strict=True))
    for key, (_, letters) in COLUMNS.items():
        shape = tuple(sizes[letter] for letter in letters)
        if key in arrays and arrays[key].shape != shape:
            beside = f"beside pool {pool.shape} and doc_emb {documents.shape}"
            return f"{key} has the shape {arrays[key].shape}; it should be {shape} {beside}"
    if (wrong := pool[(pool < -1) | (pool >= len(documents))]).size:
        return f"pool names row {wrong[0]} of {len(documents)} documents; rows count from 0, and -1 pads"
    if (empty := np.flatnonzero((pool < 0).all(axis=1))).size:
        return f"the query in row {empty[0]} has no candidates; leave it out"
    if "trust" in arrays and str(arrays["trust"]) not in get_args(Trust):
        return f"trust is {str(arrays['trust'])!r}; it takes {', '.join(get_args(Trust))}"
    scores = arrays["score"][pool >= 0]
    if ((scores < 0) | (scores > 1)).any():
        return "a score lies outside [0, 1]; apply a sigmoid to logits first"
    return None


def _unpacked(terms: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return (w, n) of (n,) numbers with a bit for each of w terms."""
    count = int(np.bitwise_or.reduce(terms)).bit_length()
    bits: NDArray[np.uint64] = (terms >> np.arange(count, dtype=TERMS)[:, None]) & TERMS.type(1)
    return bits.astype(np.bool_)
