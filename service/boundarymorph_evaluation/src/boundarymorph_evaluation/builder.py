"""Turn a collection into a table: encode all texts, and score every pair once.

Results are kept in a file beside the table, so that after a crash, or a kill, building the same table continues where
it stopped. Only one process at a time may build a table.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput
from boundarymorph.inference.models import identity_of
from boundarymorph.retrieval.encoders import Encoder
from boundarymorph.retrieval.words import PoolWords
from boundarymorph.scoring.scorer import Scorer
from boundarymorph_evaluation import tables
from boundarymorph_evaluation.datasets import Collection, fingerprint
from boundarymorph_evaluation.run import Watch
from boundarymorph_evaluation.tables import ScoreTable

PAIR = 16  # bytes of a score and its seconds
CHUNK = 32  # texts or pairs to store at a time, which a crash can lose
RENEWED = ("grade", "judged", "n_relevant", "terms")  # keys that a finished table takes again from the collection

TRIES = 3  # tries for pairs that the scorer could not answer at once


@dataclass(frozen=True, slots=True)
class TableBuilder:
    """Builds tables.

    Attributes:
        encoder: The product's encoder.
        scorer: The product's scorer.
        depth: N, the most candidates of a query.
        known: Vectors of documents that need not be encoded, by their text.
    """

    encoder: Encoder
    scorer: Scorer
    depth: int
    known: Mapping[str, NDArray[np.floating]] = field(default_factory=dict)

    async def build(
        self, collection: Collection, path: Path, watch: Watch = lambda *_: None, *, scored: bool = True
    ) -> ScoreTable:
        """Return the table at `path`, built unless it is there already.

        Scores of a finished table are kept, even if only some of its queries are requested; its judgments and terms are
        the present ones of the collection. A document without a score is left out of its query's pool.

        Args:
            collection: The texts and queries.
            path: The file of the table.
            watch: Reports the progress.
            scored: False for a table without scores (NaN), unless it is there; it is not kept, but its vectors are.

        Raises:
            InvalidInput: If another file is there, or another process is building the table.
        """
        await self.encoder.check()
        if identity_of(self.scorer) is None:
            await self.scorer.check()  # this makes its name known
        recipe = {
            "documents": fingerprint(collection.documents),
            "queries": [fingerprint({query: text}) for query, text in collection.queries.items()],
            "encoder": self.encoder.name,
            "scorer": self.scorer.name,
            "depth": str(self.depth),
        }
        if (table := _kept(path, recipe, collection)) is not None:
            return table
        with _unfinished(path, recipe, keep=not scored) as work:
            table = _kept(path, recipe, collection)  # if another process has built it in the meantime
            if table is None:
                table = await self._built(collection, path, work, recipe, watch, scored)
        return table

    async def _built(
        self, collection: Collection, path: Path, work: _Work, recipe: Mapping[str, Any], watch: Watch, scored: bool
    ) -> ScoreTable:
        documents = await self._encoded(collection, work, watch)
        queries = np.array([await self.encoder.encode_query(text) for text in collection.queries.values()])
        pools, similarities = _pools(documents, queries, min(self.depth, len(documents)))
        arrays = _assembled(collection, documents, queries, pools, similarities)
        texts = collection.queries, collection.documents
        if not scored:
            arrays |= {"score": np.full(pools.shape, np.nan), "scorer": np.array(self.scorer.name)}
            return ScoreTable(path.stem, _renewed(arrays, collection), texts)
        scores, seconds = (await self._scored(collection, pools, work, watch)).T
        scores = scores.reshape(pools.shape)
        arrays["pool"][np.isnan(scores)] = -1
        arrays |= {
            "score": np.nan_to_num(scores),
            "call_seconds": seconds.mean(),
            "scorer": np.array(self.scorer.name),
            "recipe": np.array(orjson.dumps(recipe).decode()),
        }
        table = ScoreTable(path.stem, _renewed(arrays, collection), texts)
        tables.write(table, path)
        return table

    async def _encoded(self, collection: Collection, work: _Work, watch: Watch) -> NDArray[np.float32]:
        def rows() -> NDArray[np.float32]:
            return np.frombuffer(work.content("embeddings"), np.float32).reshape(-1, self.encoder.dimension)

        texts = list(collection.documents.values())
        done = len(rows())
        watch("encoding documents", done, len(texts))
        while done < len(texts):
            chunk = texts[done : done + CHUNK]
            missing = [text for text in chunk if text not in self.known]
            made = (await self.encoder.encode_documents(missing)).vectors if missing else ()
            new = dict(zip(missing, made, strict=True))
            vectors = [new[text] if text in new else self.known[text] for text in chunk]
            work.append("embeddings", np.array(vectors, dtype=np.float32).tobytes())
            done += len(chunk)
            watch("encoding documents", done, len(texts))
        return rows()

    async def _scored(
        self, collection: Collection, pools: NDArray[np.intp], work: _Work, watch: Watch
    ) -> NDArray[np.float64]:
        """Return (pairs, 2): the score of each pair of the pools, and the seconds that it took."""
        texts, queries = list(collection.documents.values()), list(collection.queries.values())
        done = len(work.content("scores")) // PAIR
        watch("scoring pairs", done, pools.size)
        while done < pools.size:
            row, column = divmod(done, pools.shape[1])
            chunk = pools[row, column : column + CHUNK]
            begin = perf_counter()
            scores = await self.scores(queries[row], [texts[document] for document in chunk])
            seconds = np.full(len(chunk), (perf_counter() - begin) / len(chunk))
            work.append("scores", np.column_stack([scores, seconds]).tobytes())
            done += len(chunk)
            watch("scoring pairs", done, pools.size)
        return np.frombuffer(work.content("scores")).reshape(-1, 2)

    async def scores(self, query: str, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return scores, NaN where the scorer answered without a score.

        Errors of the scorer pass through.
        """
        values = np.full(len(texts), np.nan)
        open = np.arange(len(texts))
        for _ in range(TRIES):
            scores = await self.scorer.score(query, [texts[place] for place in open.tolist()])
            values[open] = scores.values
            if scores.failure is None:
                break
            open = open[np.isnan(scores.values)]
        if scores.failure is not None:
            raise scores.failure
        return values


class _Work:
    """The results for a table so far: rows of numbers, by their name, in an SQLite database."""

    def __init__(self, database: sqlite3.Connection, recipe: bytes) -> None:
        """Open the database, and delete results of another recipe."""
        self._database = database
        database.execute("create table if not exists work (number integer primary key, name text, content blob)")
        if self.content("recipe") != recipe:
            database.execute("delete from work")
            self.append("recipe", recipe)

    def content(self, name: str) -> bytes:
        """Return all that was appended."""
        found = self._database.execute("select content from work where name = ? order by number", (name,))
        return b"".join(content for (content,) in found)

    def append(self, name: str, content: bytes) -> None:
        """Store more content, all of it or nothing."""
        self._database.execute("insert into work (name, content) values (?, ?)", (name, content))
        self._database.commit()


@contextmanager
def _unfinished(path: Path, recipe: Mapping[str, Any], *, keep: bool) -> Iterator[_Work]:
    """Yield the unfinished work of a table, for this process alone.

    It is deleted when all is done unless `keep`.

    Raises:
        InvalidInput: If another process has it, or it cannot be stored.
    """
    file = path.with_name(path.name + ".unfinished")
    with suppress(OSError):  # SQLite will say so
        file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with closing(sqlite3.connect(file, timeout=0)) as database:
            database.execute("pragma locking_mode = exclusive")  # from the next line to the end
            database.execute("begin exclusive")
            yield _Work(database, orjson.dumps(recipe))
    except sqlite3.Error as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
            raise InvalidInput(
                f"another process is building {path}; wait for its end, or name another file with --write-table"
            ) from None
        raise InvalidInput(
            f"unfinished work cannot be kept in {file}: {error}; delete it, or choose another --write-table"
        ) from error
    if not keep:
        file.unlink(missing_ok=True)


def _kept(path: Path, recipe: Mapping[str, Any], collection: Collection) -> ScoreTable | None:
    """Return the existing table if it is finished, with present judgments and terms, else None."""
    if (done := _finished(path, recipe)) is None:
        return None
    arrays, rows = done
    found = ScoreTable(path.stem, arrays, (collection.queries, collection.documents))
    table = replace(found, arrays=_renewed(found.subset(rows).arrays, collection))
    absent = np.empty(0)
    as_before = (np.array_equal(arrays.get(key, absent), table.arrays.get(key, absent)) for key in RENEWED)
    if rows == list(range(len(found))) and not all(as_before):
        tables.write(table, path)
    return table


def _finished(path: Path, recipe: Mapping[str, Any]) -> tuple[dict[str, NDArray[Any]], list[int]] | None:
    """Return the existing table, and its rows that hold the recipe's queries."""
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
        "depth; delete it, or name another file with --write-table"
    )


def _pools(
    documents: NDArray[np.float32], queries: NDArray[np.float32], depth: int
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Return (Q, depth) rows and inner products, best first.

    Equal ones are in the order of the collection.
    """
    pools, similarities = [], []
    for query in queries:
        products = documents @ query
        pools.append(np.argsort(-products, kind="stable")[:depth])
        similarities.append(products[pools[-1]])
    return np.array(pools), np.array(similarities, dtype=np.float32)


def _assembled(
    collection: Collection,
    documents: NDArray[np.float32],
    queries: NDArray[np.float32],
    pools: NDArray[np.intp],
    similarities: NDArray[np.float32],
) -> dict[str, NDArray[Any]]:
    """Return everything but scores, terms, and judgments.

    The documents are those that are in some pool.
    """
    names = list(collection.documents)
    used, rows = np.unique(pools, return_inverse=True)
    words = PoolWords.from_texts(collection.documents.values())
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


def _renewed(arrays: Mapping[str, NDArray[Any]], collection: Collection) -> dict[str, NDArray[Any]]:
    """Return the arrays with the present terms and judgments of the collection."""
    documents = [collection.documents[id] for id in arrays["doc_ids"].tolist()]
    terms = tables.packed_terms(documents, list(collection.queries.values()), arrays["pool"])
    renewed = {**{key: values for key, values in arrays.items() if key not in RENEWED}, "terms": terms}
    if collection.judgments is not None:
        judged = [collection.judgments.get(query, {}) for query in collection.queries]
        pools = arrays["doc_ids"][arrays["pool"]].tolist()
        renewed["grade"] = np.array(
            [[grades.get(document, 0) for document in pool] for grades, pool in zip(judged, pools, strict=True)],
            dtype=np.uint16,
        )
        present = collection.documents.keys()
        renewed["n_relevant"] = np.array([sum(g > 0 and d in present for d, g in grades.items()) for grades in judged])
        if not collection.complete:
            of_pools = zip(judged, pools, strict=True)
            renewed["judged"] = np.array([[document in grades for document in pool] for grades, pool in of_pools])
    return renewed
