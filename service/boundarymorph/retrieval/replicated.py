"""Several retrievers over the same documents, any of which will do."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import httpx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from boundarymorph.errors import (
    BoundaryMorphError,
    InvalidConfiguration,
    Overloaded,
    RetrieverFailed,
    RetrieverUnavailable,
)
from boundarymorph.remote.replicas import Replicas, Ticket
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.retrieval.remote import RemoteRetriever
from boundarymorph.retrieval.retriever import Retrieved

Answer = TypeVar("Answer")

CHECK_TIMEOUT = 2.0  # seconds for a short query while others do the work
_log = logging.getLogger(__name__)


class ReplicatedRetriever:
    """A `Retriever` in front of several, each call of which goes to the one with the fewest under way.

    One that cannot be reached, breaks off or makes no sense is left alone for a while (`Replicas`), and the call goes
    to another at once; so it does when one asks for a pause. As long as others work, one that failed is looked at
    before it gets a call again. They must see the same documents: one directory, or one database.
    """

    def __init__(
        self, retrievers: Sequence[RemoteRetriever], *, clock: Callable[[], float] = time.monotonic, seed: int = 0
    ) -> None:
        """The retrievers are this one's to close. Raises InvalidConfiguration for none, or one of them twice."""
        if not retrievers or len({retriever.url for retriever in retrievers}) < len(retrievers):
            raise InvalidConfiguration("retriever.url: give at least one URL, and none of them twice")
        self._retrievers = tuple(retrievers)
        self._replicas = Replicas(len(retrievers), requests=2**31, clock=clock, seed=seed)
        self._faults: list[BoundaryMorphError | None] = [None] * len(retrievers)
        self._checks: dict[int, asyncio.Task[None]] = {}

    async def retrieve(
        self,
        index: str,
        query: str,
        depth: int,
        query_embedding: ArrayLike | None = None,
        *,
        filter: Mapping[str, Any] | None = None,
        hybrid: bool = False,
    ) -> Retrieved:
        return await self._ask(
            lambda one: one.retrieve(index, query, depth, query_embedding, filter=filter, hybrid=hybrid)
        )

    async def documents(self, index: str, ids: Sequence[str]) -> Mapping[str, Document]:
        return await self._ask(lambda one: one.documents(index, ids))

    async def characters(self, index: str, ids: Sequence[str]) -> Mapping[str, int]:
        return await self._ask(lambda one: one.characters(index, ids))

    async def embed_query(self, query: str) -> NDArray[np.float32]:
        return await self._ask(lambda one: one.embed_query(query))

    async def embed_documents(self, texts: Sequence[str]) -> Embeddings:
        return await self._ask(lambda one: one.embed_documents(texts))

    async def check(self) -> None:
        """Raises what one raises, where none answers."""
        await self._ask(lambda one: one.check())

    async def forward(
        self, method: str, target: bytes, headers: Mapping[str, str], body: AsyncIterator[bytes] | None
    ) -> httpx.Response:
        """As of `RemoteRetriever`. What writes goes to one that works, and to no other when that breaks off."""
        attempts = len(self._retrievers) if method == "GET" and body is None else 1
        return await self._ask(lambda one: one.forward(method, target, headers, body), attempts)

    async def close(self) -> None:
        checks = list(self._checks.values())
        for check in checks:
            check.cancel()
        await asyncio.gather(*checks, return_exceptions=True)
        for retriever in self._retrievers:
            await retriever.close()

    async def _ask(self, call: Callable[[RemoteRetriever], Awaitable[Answer]], attempts: int | None = None) -> Answer:
        """The answer of the first that gives one. Raises what it raises, or why there is none left to ask."""
        tried: set[int] = set()
        while len(tried) < (attempts or len(self._retrievers)):
            index = self._replicas.pick(1, tried)
            if not isinstance(index, int):
                break
            tried.add(index)
            ticket = self._replicas.begin(index, 1)
            try:
                answer = await call(self._retrievers[index])
            except (RetrieverUnavailable, RetrieverFailed) as failure:
                self._eject(index, failure)
            except Overloaded as busy:
                self._faults[index] = busy
                self._replicas.paused(index, busy.retry_after)
            except asyncio.CancelledError:
                if self._replicas.missed(index):
                    self._faults[index] = RetrieverUnavailable(
                        f"{self._retrievers[index].url} keeps its callers waiting"
                    )
                raise
            except BoundaryMorphError:
                self._answered(ticket)
                raise
            else:
                self._answered(ticket)
                return answer
            finally:
                self._replicas.end(ticket)
        raise self._nobody()

    def _answered(self, ticket: Ticket) -> None:
        if self._replicas.succeeded(ticket):
            self._faults[ticket.index] = None
        for other in self._replicas.to_check():
            if other not in self._checks:
                self._checks[other] = asyncio.ensure_future(self._check(other))
                self._checks[other].add_done_callback(lambda _, other=other: self._checks.pop(other))  # type: ignore[misc]

    async def _check(self, index: int) -> None:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT):
                await self._retrievers[index].check()
        except Overloaded:
            self._replicas.checked(index)
        except TimeoutError:
            self._eject(index, RetrieverUnavailable(f"the retriever at {self._retrievers[index].url} hangs"))
        except BoundaryMorphError as failure:
            self._eject(index, failure)
        else:
            self._replicas.checked(index)

    def _eject(self, index: int, failure: BoundaryMorphError) -> None:
        if self._faults[index] is None:
            _log.warning("a retriever is left alone for now: %s", failure)
        self._faults[index] = failure
        self._replicas.failed(index)

    def _nobody(self) -> BoundaryMorphError:
        """Why there is none left to ask."""
        faults = [fault for fault in self._faults if fault is not None]
        reasons = "; ".join(map(str, faults)) or "no retriever may be asked now"
        pauses = [fault.retry_after for fault in faults if isinstance(fault, Overloaded)]
        if pauses:
            return Overloaded(reasons, retry_after=min(pauses))
        if faults and all(isinstance(fault, RetrieverFailed) for fault in faults):
            return RetrieverFailed(reasons)
        return RetrieverUnavailable(reasons)
