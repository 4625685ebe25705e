"""From a collection to a table: every document and query encoded, every pair of every pool scored, once.

What was computed is appended to files in a folder beside the table, so that after a crash, or a kill, building the same
table goes on where it stopped. Only one process at a time may build a table.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.errors import CostCeiling, InvalidInput
from boundarymorph.evaluation import tables
from boundarymorph.evaluation.datasets import Collection, fingerprint
from boundarymorph.evaluation.tables import ScoreTable
from boundarymorph.retrieval.encoders import Encoder
from boundarymorph.retrieval.words.lexical import PoolWords
from boundarymorph.scoring.bill import NOTHING, Amount
from boundarymorph.scoring.scorer import PricedScorer, Scorer

CHUNK = 32  # texts or pairs between two appends: what a crash can cost
BLOCK = 256
JUDGMENTS = ("grade", "n_relevant")

TRIES = 3  # of pairs that the scorer could not answer at once
Watch = Callable[[str, int, int], None]  # stage, done, of how many
Approve = Callable[[int, Amount], None]  # pairs that are to be scored, and the most that they may cost


@dataclass(frozen=True, slots=True)
class TableBuilder:
    """encoder, scorer: the product's; depth: N, the most candidates of a query; approve: called before a scorer that
    costs money is asked for more than a trial, and raises to prevent it."""

    encoder: Encoder
    scorer: Scorer
    depth: int
    approve: Approve = lambda pairs, most: None

    async def build(self, collection: Collection, path: Path, watch: Watch = lambda *_: None) -> ScoreTable:
        """The table at `path`, built unless it is there already. Raises InvalidInput if another file is there, or
        another process is building the table.

        Scores of a finished table are kept, also where only some of its queries are asked for; its judgments and terms
        are those that the collection has now. A document that the scorer gave no score for is left out of its query's
        pool.
        """
        await self.encoder.check()
        if getattr(self.scorer, "identity", "known") is None:
            await self.scorer.check()  # by which its name is known
        recipe = {
            "documents": fingerprint(collection.documents),
            "queries": [fingerprint({query: text}) for query, text in collection.queries.items()],
            "encoder": self.encoder.name,
            "scorer": self.scorer.name,
            "depth": str(self.depth),
        }
        if (table := _kept(path, recipe, collection)) is not None:
            return table
        with _sole(path) as work:
            table = _kept(path, recipe, collection)  # if another process has built it in the meantime
            if table is None:
                _begin(work, recipe)
                table = await self._built(collection, path, work, recipe, watch)
            shutil.rmtree(work)
        return table

    async def _built(
        self, collection: Collection, path: Path, work: Path, recipe: Mapping[str, Any], watch: Watch
    ) -> ScoreTable:
        documents = await self._encoded(collection, work, watch)
        queries = np.array([await self.encoder.encode_query(text) for text in collection.queries.values()])
        pools, similarities = _pools(documents, queries, min(self.depth, len(documents)))
        scores, seconds = await self._scored(collection, pools, work, watch)
        arrays = _assembled(collection, documents, queries, pools, similarities)
        arrays["pool"][np.isnan(scores)] = -1
        arrays |= {
            "score": np.nan_to_num(scores),
            "call_seconds": np.array(seconds),
            "recipe": np.array(orjson.dumps(recipe).decode()),
        }
        arrays = _judged(_with_terms(arrays, collection), collection)
        table = ScoreTable(path.stem, arrays, (collection.queries, collection.documents))
        tables.write(table, path)
        return table

    async def _encoded(self, collection: Collection, work: Path, watch: Watch) -> NDArray[np.float32]:
        texts = list(collection.documents.values())
        shelf = _Shelf(work / "embeddings", self.encoder.dimension, np.float32)
        watch("encoding documents", len(shelf), len(texts))
        while (start := len(shelf)) < len(texts):
            shelf.append((await self.encoder.encode_documents(texts[start : start + CHUNK])).vectors)
            watch("encoding documents", len(shelf), len(texts))
        return shelf.read()

    async def _scored(
        self, collection: Collection, pools: NDArray[np.intp], work: Path, watch: Watch
    ) -> tuple[NDArray[np.float64], float]:
        texts, queries = list(collection.documents.values()), list(collection.queries.values())
        shelf, clock = _Shelf(work / "scores", 1, np.float64), _Shelf(work / "seconds", 1, np.float64)
        watch("scoring pairs", len(shelf), pools.size)
        self._ask_for_approval(queries, texts, pools, len(shelf))
        while (start := len(shelf)) < pools.size:
            row, column = divmod(start, pools.shape[1])
            chunk = pools[row, column : column + CHUNK]
            begin = perf_counter()
            scores = await self._scores(queries[row], [texts[document] for document in chunk])
            clock.append(np.array([perf_counter() - begin]))
            shelf.append(scores)
            watch("scoring pairs", len(shelf), pools.size)
        return shelf.read().reshape(pools.shape), float(clock.read().sum()) / pools.size

    async def _scores(self, query: str, texts: Sequence[str]) -> NDArray[np.float64]:
        """NaN where the scorer answered without a score. Raises what the scorer does."""
        values = np.full(len(texts), np.nan)
        open = np.arange(len(texts))
        for _ in range(TRIES):
            scores = await self.scorer.score(query, [texts[place] for place in open.tolist()])
            values[open] = scores.values
            if scores.failure is None or isinstance(scores.failure, CostCeiling):
                break
            open = open[np.isnan(scores.values)]
        if scores.failure is not None:
            raise scores.failure
        return values

    def _ask_for_approval(
        self, queries: Sequence[str], texts: Sequence[str], pools: NDArray[np.intp], scored: int
    ) -> None:
        if not isinstance(self.scorer, PricedScorer) or scored == pools.size:
            return
        most = NOTHING
        for place, document in enumerate(pools.ravel().tolist()[scored:], start=scored):
            most = most.plus(self.scorer.most(queries[place // pools.shape[1]], texts[document]))
        self.approve(pools.size - scored, most)


class _Shelf:
    """Rows of one length in a file that only grows, in blocks that each tell where they begin, their number of rows and
    their checksum. The first block that is not as it was written, and all after it, are cut off and computed again."""

    _HEAD = struct.Struct("<QLL")

    def __init__(self, path: Path, width: int, dtype: type[np.floating]) -> None:
        self._path, self._width, self._dtype = path, width, np.dtype(dtype)
        path.touch()
        self._rows = 0
        with path.open("r+b") as file:
            end = 0
            for block in self._blocks(file):
                self._rows += len(block)
                end = file.tell()
            file.truncate(end)

    def __len__(self) -> int:
        return self._rows

    def append(self, rows: NDArray[np.floating]) -> None:
        values = np.ascontiguousarray(rows, dtype=self._dtype).reshape(-1, self._width)
        content = values.tobytes()
        with self._path.open("ab") as file:
            file.write(self._HEAD.pack(self._rows, len(values), _checksum(self._rows, content)) + content)
        self._rows += len(values)

    def read(self) -> NDArray[Any]:
        with self._path.open("rb") as file:
            return np.concatenate([np.empty((0, self._width), self._dtype), *self._blocks(file)])

    def _blocks(self, file: BinaryIO) -> Iterator[NDArray[Any]]:
        """The rows of each block, up to the first that is damaged."""
        rows = 0
        while len(head := file.read(self._HEAD.size)) == self._HEAD.size:
            start, count, checksum = self._HEAD.unpack(head)
            if start != rows or count > CHUNK:
                return
            content = file.read(count * self._width * self._dtype.itemsize)
            if _checksum(start, content) != checksum:
                return
            rows += count
            yield np.frombuffer(content, self._dtype).reshape(-1, self._width)


def _checksum(start: int, content: bytes) -> int:
    return zlib.crc32(content, start & 0xFFFFFFFF)


def _kept(path: Path, recipe: Mapping[str, Any], collection: Collection) -> ScoreTable | None:
    """The finished table that is there, with the collection's judgments and terms; None if there is none."""
    if (done := _finished(path, recipe)) is None:
        return None
    found, rows = ScoreTable(path.stem, done[0], (collection.queries, collection.documents)), done[1]
    table = replace(found, arrays=_judged(_with_terms(found.only(rows).arrays, collection), collection))
    if rows == list(range(len(found))) and _differ(found, table):
        tables.write(table, path)
    return table


def _finished(path: Path, recipe: Mapping[str, Any]) -> tuple[dict[str, NDArray[Any]], list[int]] | None:
    """The table that is there, and its rows that hold the recipe's queries."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays: dict[str, NDArray[Any]] = {name: file[name] for name in file}
        made = orjson.loads(str(arrays["recipe"]))
        row_of = {query: row for row, query in enumerate(made["queries"])}
        if {**made, "queries": None} == {**recipe, "queries": None}:
            return arrays, [row_of[query] for query in recipe["queries"]]
    except (KeyError, *tables.UNREADABLE):
        pass
    raise InvalidInput(
        f"{path} is there already, and was made from other texts or fewer queries, with other models, or with another "
        "depth; "
        "delete it, or name another file with --write-table"
    )


@contextmanager
def _sole(path: Path) -> Iterator[Path]:
    """The folder of unfinished work of a table, for this process alone. Raises InvalidInput if another has it."""
    work = path.with_name(path.name + ".unfinished")
    while True:
        with ExitStack() as stack:
            try:
                work.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(work, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InvalidInput(
                    f"another process is building {path}; wait for its end, or name another file with --write-table"
                ) from None
            except OSError as error:
                raise _no_place(work, error) from error
            if work.exists() and os.path.samestat(os.fstat(descriptor), work.stat()):  # else another has just finished
                yield work
                return


def _begin(work: Path, recipe: Mapping[str, Any]) -> None:
    """Empty the folder of unfinished work if it belongs to another recipe or does not say to which."""
    note = work / "recipe.json"
    try:
        if orjson.loads(note.read_bytes()) == recipe:
            return
    except (OSError, orjson.JSONDecodeError):
        pass
    try:
        for path in work.iterdir():
            path.unlink()
        scratch = work / "recipe.writing"
        scratch.write_bytes(orjson.dumps(recipe))
        os.replace(scratch, note)
    except OSError as error:
        raise _no_place(work, error) from error


def _no_place(work: Path, error: OSError) -> InvalidInput:
    return InvalidInput(f"unfinished work cannot be kept in {work}: {error}; choose another --write-table")


def _pools(
    documents: NDArray[np.float32], queries: NDArray[np.float32], depth: int
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """((Q, depth) rows, (Q, depth) inner products), best first, equal ones in the order of the collection."""
    pools = np.empty((len(queries), depth), dtype=np.intp)
    similarities = np.empty((len(queries), depth), dtype=np.float32)
    for number, query in enumerate(queries):
        products = np.concatenate([documents[at : at + BLOCK] @ query for at in range(0, len(documents), BLOCK)])
        pools[number] = np.argsort(-products, kind="stable")[:depth]
        similarities[number] = products[pools[number]]
    return pools, similarities


def _assembled(
    collection: Collection,
    documents: NDArray[np.float32],
    queries: NDArray[np.float32],
    pools: NDArray[np.intp],
    similarities: NDArray[np.float32],
) -> dict[str, NDArray[Any]]:
    """Everything but scores, terms and judgments; of the documents, those that are in some pool."""
    names = list(collection.documents)
    used, rows = np.unique(pools, return_inverse=True)
    words = PoolWords.of(collection.documents.values())
    return {
        "doc_ids": np.array([names[document] for document in used]),
        "doc_emb": documents[used].astype(np.float16),
        "query_ids": np.array(list(collection.queries)),
        "query_emb": queries.astype(np.float16),
        "pool": rows.reshape(pools.shape).astype(np.int32),
        "mips": similarities,
        "bm25": np.array(
            [words.bm25(text)[pool] for text, pool in zip(collection.queries.values(), pools, strict=True)],
            dtype=np.float32,
        ),
    }


def _judged(arrays: Mapping[str, NDArray[Any]], collection: Collection) -> dict[str, NDArray[Any]]:
    """With the collection's judgments, whatever stood there."""
    arrays = {key: values for key, values in arrays.items() if key not in JUDGMENTS}
    if collection.judgments is not None:
        judged = [collection.judgments.get(query, {}) for query in collection.queries]
        pools = arrays["doc_ids"][arrays["pool"]].tolist()
        arrays["grade"] = np.array(
            [[grades.get(document, 0) for document in pool] for grades, pool in zip(judged, pools, strict=True)],
            dtype=np.uint16,
        )
        present = collection.documents.keys()
        arrays["n_relevant"] = np.array([sum(document in present for document in grades) for grades in judged])
    return arrays


def _with_terms(arrays: Mapping[str, NDArray[Any]], collection: Collection) -> dict[str, NDArray[Any]]:
    documents = [collection.documents[id] for id in arrays["doc_ids"].tolist()]
    return {**arrays, "terms": tables.packed_terms(documents, list(collection.queries.values()), arrays["pool"])}


def _differ(one: ScoreTable, other: ScoreTable) -> bool:
    """Whether in what a finished table takes from the collection anew."""
    absent, renewed = np.empty(0), (*JUDGMENTS, "terms")
    return any(not np.array_equal(one.arrays.get(key, absent), other.arrays.get(key, absent)) for key in renewed)
