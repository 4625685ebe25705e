"""`boundarymorph retriever check`: what is wrong with a retriever, ours or of somebody else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import typer

from boundarymorph.cli.common import console, fail
from boundarymorph.errors import BoundaryMorphError, UnknownIndex
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.pieces import in_awaited_pieces
from boundarymorph.retrieval.remote import RemoteRetriever
from boundarymorph.retrieval.retriever import Search

DEPTH, TOLERANCE = 10, 1e-3
NOBODY = "no-document-has-this-id"


def check(
    url: Annotated[str, typer.Argument(help="URL of the retriever.")],
    index: Annotated[str, typer.Option(help="An index there, with at least one document.")],
    query: Annotated[str, typer.Option(help="A query that finds documents in it.")] = "test",
    api_key: Annotated[str | None, typer.Option(envvar="BOUNDARYMORPH_RETRIEVER__API_KEY")] = None,
) -> None:
    """Check that a retriever answers as docs/retriever.md says, and tell what is wrong."""
    examination = Examination(RemoteRetriever(url, api_key=api_key, timeout=30.0), index, query)
    asyncio.run(examination.run())
    for done in examination.passed:
        console.print(f"ok     {done}", markup=False)
    for wrong in examination.wrong:
        console.print(f"wrong  {wrong}", markup=False)
    if examination.wrong:
        fail(f"{len(examination.wrong)} of {len(examination.passed) + len(examination.wrong)} checks failed")


@dataclass
class Examination:
    """The checks of one retriever."""

    retriever: RemoteRetriever
    index: str
    query: str
    passed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Make all checks; later ones are left out if they cannot mean anything."""
        try:
            await self.retriever.check()
            self.expect(True, "it is ready and encodes a query", "")
            await self._pool()
            await self._errors()
        except BoundaryMorphError as error:
            self.wrong.append(str(error))
        finally:
            await self.retriever.close()

    def expect(self, right: bool, what: str, else_: str) -> None:
        """Note that a check passed, or what is wrong."""
        (self.passed if right else self.wrong).append(what if right else f"{what}: {else_}")

    async def _pool(self) -> None:
        search = Search(self.query, DEPTH)
        pool = (await self.retriever.retrieve(self.index, search)).pool
        self.expect(0 < len(pool) <= DEPTH, "a pool has 1 to depth documents", f"it has {len(pool)} for {DEPTH}")
        products = pool.embeddings.astype(np.float64) @ pool.query
        apart = float(np.abs(products - pool.scores).max(initial=0.0))
        self.expect(apart <= TOLERANCE, "scores are inner products with the query", f"they differ by {apart:.3g}")
        again = (await self.retriever.retrieve(self.index, search)).pool
        self.expect(list(again.ids) == list(pool.ids), "the same request has the same answer", "the ids differ")
        first = (await self.retriever.retrieve(self.index, Search(self.query, 1))).pool
        self.expect(list(first.ids) == list(pool.ids[:1]), "a depth of 1 is the best of more", f"it is {first.ids}")
        vector = await self.retriever.embed_query(self.query)
        same = (await self.retriever.retrieve(self.index, Search("", DEPTH, vector))).pool
        self.expect(
            list(same.ids) == list(pool.ids), "query_embedding takes the place of the query", "the pool is another"
        )
        await self._documents(list(pool.ids))

    async def _documents(self, ids: list[str]) -> None:
        pieces = in_awaited_pieces(lambda left: self.retriever.documents(self.index, left), [*ids, NOBODY])
        found = {id: document async for piece in pieces for id, document in piece.items()}
        missing = [id for id in ids if id not in found]
        self.expect(not missing, "each document of a pool can be read", f"/documents lacks {missing}")
        self.expect(NOBODY not in found, "unknown documents are left out", "/documents made one up")
        lengths = await self.retriever.characters(self.index, [*ids, NOBODY])
        own = {id: len(document.text) + len(document.title or "") for id, document in found.items()}
        self.expect(dict(lengths) == own, "/characters counts title and text", f"{dict(lengths)} and not {own}")
        await self._filters(found)

    async def _filters(self, found: Mapping[str, Document]) -> None:
        for id, document in found.items():
            pairs = {k: v for k, v in document.metadata.items() if isinstance(v, str | int | float) and "." not in k}
            for name, value in list(pairs.items())[:1]:
                filter: dict[str, Any] = {name: value}
                pool = (await self.retriever.retrieve(self.index, Search(self.query, DEPTH, filter=filter))).pool
                read = await self.retriever.documents(self.index, list(pool.ids))
                others = [other for other in read if read[other].metadata.get(name) != value]
                right = id in pool.ids and not others
                self.expect(right, f"a filter {filter} keeps what it means", f"it keeps {list(pool.ids)}")
                return
        self.passed.append("no document of the pool has metadata for a filter")

    async def _errors(self) -> None:
        nothing = await self.retriever.retrieve(self.index, Search(self.query, DEPTH, filter={NOBODY: "x"}))
        self.expect(
            not len(nothing.pool) and bool(nothing.warnings),
            "a filter that nothing passes gives an empty pool and a warning",
            f"{len(nothing.pool)} documents, warnings {list(nothing.warnings)}",
        )
        try:
            await self.retriever.retrieve(NOBODY, Search(self.query, 1))
            self.wrong.append("an unknown index: it answered, and not 404 unknown-index")
        except UnknownIndex:
            self.passed.append("an unknown index is 404 unknown-index")
        except BoundaryMorphError as error:
            self.wrong.append(f"an unknown index: {error}, and not 404 unknown-index")
