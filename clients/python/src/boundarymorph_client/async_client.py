"""The client for asyncio. `make client` writes client.py, the client that blocks, from this file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from boundarymorph_client import batches, bodies, calls, errors
from boundarymorph_client.attempts import Attempts, Connection
from boundarymorph_client.calls import Call
from boundarymorph_client.events import Events
from boundarymorph_client.models import (
    DeleteReport,
    DocumentPage,
    IndexDescription,
    IndexStatistics,
    PoolDocument,
    Query,
    Ready,
    Round,
    Selection,
    SelectOptions,
    StoredDocument,
    UploadReport,
)
from boundarymorph_client.pools import AsyncPools

Result = TypeVar("Result")


class AsyncClient:
    """A BoundaryMORPH service. Several tasks may use it. As a context manager it closes itself.

    Each process has connections of its own, and so has each event loop.

    base_url: by default BOUNDARYMORPH_URL of the environment, else http://127.0.0.1:8080.
    api_key: by default BOUNDARYMORPH_API_KEY, else none.
    timeout: seconds for a call, with all its attempts and the pauses between them.
    retries: attempts after the first, at most: of what was refused with 429 or 503, after its `Retry-After`, and where
        the connection failed, unless something might be done twice by it.
    http: an httpx client of yours, with proxies or certificates of its own, which you close.

    Every call raises a ProblemError for what the service refuses, InvalidArgument for what cannot be sent, and
    ConnectionFailed, TimedOut or UnexpectedAnswer.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        retries: int = 3,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        self._connection = Connection.of(base_url, api_key, timeout, retries)
        self._pools = AsyncPools(http)

    def __reduce__(self) -> tuple[object, ...]:
        """Copy and pickle it with connections of its own, which cannot be shared."""
        if self._pools.given is not None:
            raise TypeError(
                "a client with an httpx client of yours can be neither copied nor pickled; make another one"
            )
        return _again, (type(self), self._connection)

    async def select(self, query: Query, **options: Unpack[SelectOptions]) -> Selection:
        """The best documents of an `index` or a `pool`. See SelectOptions.

        A sequence of queries has one budget and one set, of what answers any of them best.
        """
        return await self._result(calls.select(query, options))

    async def extend(
        self,
        query: str,
        documents: Sequence[str | PoolDocument | Mapping[str, object]],
        scores: Sequence[float] | Mapping[int, float],
        **options: Unpack[SelectOptions],
    ) -> Selection:
        """The best `k` of all documents, by scores that you have of some of them: no call of a cross-encoder is made.

        documents: the candidates, whose order counts only with `ranked=True`: best first by your retriever. scores: in
        [0, 1], of the first documents, or by position. options: as for `select`, without `index`, `pool` and `budget`;
        embeddings make it better. The `source` of a document in the answer says whether its relevance is a score of
        yours or inferred from them.

        Raises ValueError for a score of no document, and for a budget.
        """
        return await self._result(calls.extend(query, documents, scores, options))

    async def stream(self, query: Query, **options: Unpack[SelectOptions]) -> AsyncGenerator[Round | Selection, None]:
        """As `select`, but a Round before each round, and the Selection last.

        Leaving the loop early and closing it ends the service's work, so use `contextlib.aclosing`.
        """
        response = await self._answer(calls.select(query, options, accept=calls.EVENTS), stream=True)
        events = Events(response)
        try:
            async for received in response.aiter_bytes():
                for event in events.feed(received):
                    yield event
        except httpx.RequestError as error:
            raise errors.of_transport(error, self._connection.url) from error
        finally:
            await response.aclose()
        events.end()

    def select_batch(
        self, requests: Iterable[Mapping[str, Any]], *, concurrency: int = 8
    ) -> AsyncGenerator[Selection | errors.BoundaryMorphError, None]:
        """Make many selections, and yield their results in the order of the requests.

        requests: the arguments of `select`, a mapping for each selection. They are read as they are needed.
        concurrency: how many selections are made at a time, at most.

        The result of a selection that fails is its error, and the others go on. Every selection has the time and the
        retries of a call of its own. Close the generator if you leave the loop early, so use `contextlib.aclosing`.
        """
        bodies.check_items(requests, "requests", 'df.to_dict("records")')
        if concurrency < 1:
            raise errors.InvalidArgument(f"concurrency is {concurrency}; give 1 or more")
        return batches.async_results(self._attempt, requests, concurrency)

    async def _attempt(self, request: Mapping[str, Any]) -> Selection | errors.BoundaryMorphError:
        """Make a selection of a batch, and return it or its error."""
        try:
            if "query" not in request:
                raise errors.InvalidArgument("a request of a batch needs a 'query'")
            return await self.select(**request)
        except errors.BoundaryMorphError as error:
            return error

    async def list_indexes(self) -> list[IndexDescription]:
        """Those that the key is for. A warning names each that cannot be read, and is missing from the list."""
        return await self._result(calls.list_indexes())

    async def create_index(
        self,
        name: str,
        *,
        dimension: int | None = None,
        encoder: str | None = None,
        kind: str | None = None,
        lexical: bool = True,
    ) -> IndexDescription:
        """Create it if it is not there. With a `dimension` it is for your own vectors, with the encoder "none" it has
        none, else the service's encoder makes them. Raises IndexConflict if it is there and different."""
        return await self._result(
            calls.create_index(name, dimension=dimension, encoder=encoder, kind=kind, lexical=lexical)
        )

    async def describe_index(self, name: str) -> IndexDescription:
        """Raises UnknownIndex."""
        return await self._result(calls.describe_index(name))

    async def set_description(self, name: str, description: str) -> None:
        """Say what its documents are, for people and language models who choose among indexes; empty for no
        description. Raises UnknownIndex."""
        await self._result(calls.set_description(name, description))

    async def delete_index(self, name: str) -> None:
        """With all its documents. Raises UnknownIndex."""
        await self._result(calls.delete_index(name))

    async def upload(
        self,
        index: str,
        documents: Iterable[bodies.Uploaded] | AsyncIterable[bodies.Uploaded],
        *,
        strict: bool = False,
        stall_seconds: float = 600.0,
    ) -> UploadReport:
        """Add or replace documents, in one request, which reads them as it sends them.

        strict: write nothing if any document is bad or has an unknown field. stall_seconds: that nothing may move.
        Raises InvalidArgument at a document that is no JSON; the documents before it are written, unless it is strict,
        and its `report` is theirs.
        """
        lines = bodies.AsyncLines(documents, whole=strict)
        return await self._result(calls.upload(index, lines, strict=strict, stall_seconds=stall_seconds))

    async def get_document(self, index: str, id: str) -> StoredDocument:
        """Raises UnknownIndex or UnknownDocument."""
        return await self._result(calls.get_document(index, id))

    async def list_documents(self, index: str, *, after: str = "", limit: int = 100) -> DocumentPage:
        """Those whose ids come after this one, in the order of their ids. Raises UnknownIndex."""
        return await self._result(calls.list_documents(index, after, limit))

    async def index_statistics(self, name: str) -> IndexStatistics:
        """Its description, with what a sample of its documents looks like. Raises UnknownIndex."""
        return await self._result(calls.index_statistics(name))

    async def delete_document(self, index: str, id: str) -> None:
        """Raises UnknownIndex or UnknownDocument."""
        await self._result(calls.delete_document(index, id))

    async def delete_documents(
        self, index: str, ids: Sequence[str] | None = None, *, filter: Mapping[str, Any] | None = None
    ) -> DeleteReport:
        """Delete documents by id, or all that pass a filter, which must not match everything. Unknown ids are ignored.
        Raises UnknownIndex."""
        return await self._result(calls.delete_documents(index, ids, filter))

    async def ready(self) -> Ready:
        """Whether the service can serve: its `status` is then `ok`."""
        return await self._result(calls.ready())

    async def close(self) -> None:
        """Close the connections. A later call makes new ones."""
        await self._pools.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _result(self, call: Call[Result]) -> Result:
        return call.read(await self._answer(call))

    async def _answer(self, call: Call[Result], *, stream: bool = False) -> httpx.Response:
        attempts = Attempts(call, self._connection)
        while True:
            try:
                http = self._pools.current()
                response = await http.send(http.build_request(**attempts.request()), stream=stream)
                if call.answered_by(response):
                    return response
                await response.aread()
                pause = attempts.after_answer(response)
            except httpx.RequestError as error:
                pause = attempts.after_failure(error)
            await asyncio.sleep(pause)


def _again(kind: type[AsyncClient], connection: Connection) -> AsyncClient:
    return kind(connection.url, api_key=connection.api_key, timeout=connection.timeout, retries=connection.retries)
