"""Several retrievers over the same documents, any of which will do."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import httpx
import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import (
    BoundaryMorphError,
    InvalidConfiguration,
    Overloaded,
    RetrieverFailed,
    RetrieverUnavailable,
)
from boundarymorph.remote.balancer import OnChange, ignore_change
from boundarymorph.remote.replicas import Replicas, Ticket
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.retrieval.remote import RemoteRetriever, only_reads
from boundarymorph.retrieval.retriever import Retrieved, Search

Answer = TypeVar("Answer")

_log = logging.getLogger(__name__)


class ReplicatedRetriever:
    """A `Retriever` in front of several, each call of which goes to the one with the fewest under way.

    One that cannot be reached or breaks off is left alone for a while (`Replicas`), and the call goes to another at
    once; so it does when one asks for a pause. It also does when one makes no sense, which is held against that one as
    soon as another has answered the same call. As long as others work, one that failed is looked at before it gets a
    call again, and so is one that several callers in a row gave up. They must see the same documents, one directory or
    one database, and run the same encoder, that of most of those that answer: one that runs another makes no sense.
    """

    def __init__(
        self,
        retrievers: Sequence[RemoteRetriever],
        *,
        clock: Callable[[], float] = time.monotonic,
        seed: int = 0,
        on_change: OnChange = ignore_change,
    ) -> None:
        """The retrievers are this one's to close. on_change: called with the URL of each and whether it works, which
        all do to begin with.

        Raises InvalidConfiguration for none, or one of them twice.
        """
        if not retrievers or len({retriever.url for retriever in retrievers}) < len(retrievers):
            raise InvalidConfiguration("retriever.url: give at least one URL, and none of them twice")
        self._retrievers = tuple(retrievers)
        self._replicas = Replicas(len(retrievers), requests=2**31, clock=clock, seed=seed)
        self._on_change = on_change
        self._closed = False
        self._works = [True] * len(retrievers)
        self._faults: list[BoundaryMorphError | None] = [None] * len(retrievers)
        self._checks: dict[int, asyncio.Task[None]] = {}
        self._encoder: str | None = None
        self._run: list[str | None] = [None] * len(retrievers)  # the encoders of those that answer
        for retriever in retrievers:
            on_change(retriever.url, True)

    async def retrieve(self, index: str, search: Search) -> Retrieved:
        return await self._ask(lambda one: one.retrieve(index, search))

    async def documents(self, index: str, ids: Sequence[str]) -> Mapping[str, Document]:
        return await self._ask(lambda one: one.documents(index, ids))

    async def characters(self, index: str, ids: Sequence[str]) -> Mapping[str, int]:
        return await self._ask(lambda one: one.characters(index, ids))

    async def embed_query(self, query: str) -> NDArray[np.float32]:
        return await self._ask(lambda one: self._alike(one, one.embed_query(query)))

    async def embed_documents(self, texts: Sequence[str]) -> Embeddings:
        return await self._ask(lambda one: self._alike(one, one.embed_documents(texts)))

    async def check(self) -> None:
        """Raises what one raises, where none answers."""
        await self._ask(lambda one: self._alike(one, one.check()))

    async def forward(
        self, method: str, target: bytes, headers: Mapping[str, str], body: AsyncIterator[bytes] | None
    ) -> httpx.Response:
        """As of `RemoteRetriever`. What writes goes to one that works, and to no other when that breaks off."""
        if only_reads(method, body):
            return await self._ask(lambda one: one.forward(method, target, headers, None))
        # However long it takes, it is nothing by which to see whether that one is back.
        index = self._replicas.pick(1)
        if not isinstance(index, int):
            raise self._nobody()
        try:
            return await self._retrievers[index].forward(method, target, headers, body)
        except RetrieverUnavailable as failure:
            self._eject(index, failure)
            raise

    async def close(self) -> None:
        self._closed = True
        checks = list(self._checks.values())
        for check in checks:
            check.cancel()
        await asyncio.gather(*checks, return_exceptions=True)
        for retriever in self._retrievers:
            await retriever.close()

    async def _ask(self, call: Callable[[RemoteRetriever], Awaitable[Answer]]) -> Answer:
        """The answer of the first that gives one. Raises what it raises, or why there is none left to ask.

        What makes no sense may do so for the call's sake: that another has answered it tells that it does not.
        """
        tried: set[int] = set()
        failures: dict[int, RetrieverFailed] = {}
        while isinstance(index := self._replicas.pick(1, tried), int):
            tried.add(index)
            ticket = self._replicas.begin(index, 1)
            given_up = False
            try:
                answer = await call(self._retrievers[index])
            except RetrieverFailed as failure:
                failures[index] = failure
            except RetrieverUnavailable as failure:
                self._eject(index, failure)
            except Overloaded as busy:
                self._faults[index] = busy
                self._replicas.paused(index, busy.retry_after)
            except asyncio.CancelledError:  # its caller left, or the caller's time was over
                given_up = True
                raise
            except BoundaryMorphError:
                self._answered(ticket, failures)
                raise
            else:
                self._answered(ticket, failures)
                return answer
            finally:
                self._replicas.end(ticket)
                if given_up:
                    self._replicas.missed(index)
                    self._check_doubtful()
        if failures:
            raise failures.popitem()[1]
        raise self._nobody()

    async def _alike(self, one: RemoteRetriever, encoding: Awaitable[Answer]) -> Answer:
        """What it encodes, unless another of them encodes otherwise."""
        answer = await encoding
        self._run[self._retrievers.index(one)] = one.encoder
        self._elect()
        if one.encoder not in (None, self._encoder):
            raise RetrieverFailed(
                f"the retriever at {one.url} runs the encoder {one.encoder!r}, and others run {self._encoder!r}; "
                "let all run the same"
            )
        return answer

    def _elect(self) -> None:
        """Go by the encoder of most of those that answer, and rather by the present one than another of as many."""
        votes = Counter(name for name in self._run if name is not None)
        chosen = max(votes, key=lambda name: (votes[name], name == self._encoder), default=self._encoder)
        before, self._encoder = self._encoder, chosen
        if before in (None, chosen):
            return
        _log.warning("the retrievers run another encoder from now on: %s, no longer %s", chosen, before)
        for index, name in enumerate(self._run):
            if name == chosen and isinstance(self._faults[index], RetrieverFailed):
                self._replicas.readmit(index)
                self._note_works(index)

    def _answered(self, ticket: Ticket, failures: Mapping[int, RetrieverFailed]) -> None:
        """failures: of those that were asked before, by index."""
        if self._replicas.succeeded(ticket):
            self._note_works(ticket.index)
        for index, failure in failures.items():
            self._eject(index, failure)
        self._check_doubtful()

    def _check_doubtful(self) -> None:
        for index in self._replicas.to_probe():
            if index not in self._checks and not self._closed:
                self._checks[index] = asyncio.ensure_future(self._check(index))
                self._checks[index].add_done_callback(lambda _, index=index: self._checks.pop(index))  # type: ignore[misc]

    async def _check(self, index: int) -> None:
        one = self._retrievers[index]
        try:
            await self._alike(one, one.check())
        except Overloaded:
            self._replicas.probed(index)
        except BoundaryMorphError as failure:
            self._eject(index, failure)
        else:
            self._replicas.probed(index)

    def _eject(self, index: int, failure: BoundaryMorphError) -> None:
        if self._works[index]:
            _log.warning("a retriever is left alone for now: %s", failure)
            self._set_works(index, False)
        self._faults[index] = failure
        self._replicas.failed(index)
        if isinstance(failure, RetrieverUnavailable):
            self._run[index] = None
            self._elect()

    def _note_works(self, index: int) -> None:
        self._faults[index] = None
        if not self._works[index]:
            _log.info("a retriever works again: %s", self._retrievers[index].url)
            self._set_works(index, True)

    def _set_works(self, index: int, works: bool) -> None:
        self._works[index] = works
        self._on_change(self._retrievers[index].url, works)

    def _nobody(self) -> BoundaryMorphError:
        """Why there is none left to ask."""
        faults = [fault for fault in self._faults if fault is not None]
        reasons = "; ".join(map(str, faults)) or "no retriever may be asked now"
        pauses = [fault.retry_after for fault in faults if isinstance(fault, Overloaded)]
        if pauses:
            return Overloaded(
                reasons, retry_after=min(pauses), public="the retrievers have too much to do; try again later"
            )
        if faults and all(isinstance(fault, RetrieverFailed) for fault in faults):
            return RetrieverFailed(reasons)
        return RetrieverUnavailable(reasons)
