"""Call a service from asyncio; `make client` writes client.py from this file."""

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
    """A BoundaryMORPH service. Several tasks may use it.

    As a context manager it closes itself. Each process has connections of its own, and so has each event loop. Every
    call raises a ProblemError if the service refuses it, InvalidArgument if an argument cannot be sent, and
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
        """Set the address; the first call connects.

        Args:
            base_url: By default BOUNDARYMORPH_URL of the environment, else http://127.0.0.1:8080.
            api_key: By default BOUNDARYMORPH_API_KEY of the environment.
            timeout: Seconds for a call, with all its attempts and the pauses between them.
            retries: Most attempts after the first: after 429 or 503, when their `Retry-After` has passed, and after a
                failed connection, unless this might repeat work.
            http: Your own httpx client, with proxies or certificates, which you close.
        """
        self._connection = Connection.create(base_url, api_key, timeout, retries)
        self._pools = AsyncPools(http)

    def __reduce__(self) -> tuple[object, ...]:
        """Make copies and pickles open connections of their own, which cannot be shared."""
        if self._pools.given is not None:
            raise TypeError(
                "a client with an httpx client of yours can be neither copied nor pickled; make another one"
            )
        return _again, (type(self), self._connection)

    async def select(self, query: Query, **options: Unpack[SelectOptions]) -> Selection:
        """Return the best documents of an `index` or a `pool`. See SelectOptions.

        A sequence of queries has one budget and one set of the documents that answer any of them best.
        """
        return await self._result(calls.select(query, options))

    async def extend(
        self,
        query: str,
        documents: Sequence[str | PoolDocument | Mapping[str, object]],
        scores: Sequence[float] | Mapping[int, float],
        **options: Unpack[SelectOptions],
    ) -> Selection:
        """Return the best `k` of all documents by scores of some of them, without a cross-encoder.

        The `source` of a document in the answer says whether its relevance is one of your scores or inferred from them.

        Args:
            query: The query.
            documents: The candidates. Their order counts only with `ranked=True`: best first by your retriever.
            scores: Scores in [0, 1] of the first documents, or by position.
            options: The options of `select`, without `index`, `pool` and `budget`; embeddings make the result better.

        Raises:
            ValueError: For a score without a document, and for a budget.
        """
        return await self._result(calls.extend(query, documents, scores, options))

    async def stream(self, query: Query, **options: Unpack[SelectOptions]) -> AsyncGenerator[Round | Selection, None]:
        """Select as `select` does, and yield a Round before each round, and the Selection last.

        Leaving the loop early and closing it ends the service's work, so use `contextlib.aclosing`.
        """
        response = await self._answer(calls.select(query, options, accept=calls.EVENTS), stream=True)
        events = Events(response)
        try:
            async for received in response.aiter_bytes():
                for event in events.feed(received):
                    yield event
        except httpx.RequestError as error:
            raise errors.error_from_transport(error, self._connection.url) from error
        finally:
            await response.aclose()
        events.end()

    def select_batch(
        self, requests: Iterable[Mapping[str, Any]], *, concurrency: int = 8
    ) -> AsyncGenerator[Selection | errors.BoundaryMorphError, None]:
        """Make many selections, and yield their results in the order of the requests.

        The result of a selection that fails is its error, and the others continue. Every selection has the time and the
        retries of its own call. Close the generator if you leave the loop early, so use `contextlib.aclosing`.

        Args:
            requests: The arguments of `select`, a mapping for each selection, read as they are needed.
            concurrency: Most selections at a time.
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
        """Return the indexes that the key may use.

        A warning names each index that cannot be read, and is missing from the list.
        """
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
        """Create an index unless it exists.

        With a `dimension` it is for your own vectors, with the encoder "none" it has no vectors, and otherwise the
        service's encoder makes them.

        Raises:
            IndexConflict: If it exists and is different.
        """
        return await self._result(
            calls.create_index(name, dimension=dimension, encoder=encoder, kind=kind, lexical=lexical)
        )

    async def describe_index(self, name: str) -> IndexDescription:
        """Return the description of an index. Raises UnknownIndex."""
        return await self._result(calls.describe_index(name))

    async def set_description(self, name: str, description: str) -> None:
        """Describe the documents of an index for people and language models that choose an index.

        An empty text removes the description.

        Raises:
            UnknownIndex: If there is no such index.
        """
        await self._result(calls.set_description(name, description))

    async def delete_index(self, name: str) -> None:
        """Delete an index with all its documents. Raises UnknownIndex."""
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

        Args:
            index: The name of the index.
            documents: The documents.
            strict: Whether to write nothing if any document is bad or has an unknown field.
            stall_seconds: Seconds of silence after which the upload fails.

        Raises:
            InvalidArgument: At a document that JSON cannot express. A lenient upload writes the documents before
                it, and `report` of the error is about them.
        """
        lines = bodies.AsyncLines(documents, whole=strict)
        return await self._result(calls.upload(index, lines, strict=strict, stall_seconds=stall_seconds))

    async def get_document(self, index: str, id: str) -> StoredDocument:
        """Return a document. Raises UnknownIndex or UnknownDocument."""
        return await self._result(calls.get_document(index, id))

    async def list_documents(self, index: str, *, after: str = "", limit: int = 100) -> DocumentPage:
        """Return the documents with ids after this one, in order of ids. Raises UnknownIndex."""
        return await self._result(calls.list_documents(index, after, limit))

    async def index_statistics(self, name: str) -> IndexStatistics:
        """Return the description of an index with statistics of a sample. Raises UnknownIndex."""
        return await self._result(calls.index_statistics(name))

    async def delete_document(self, index: str, id: str) -> None:
        """Delete a document. Raises UnknownIndex or UnknownDocument."""
        await self._result(calls.delete_document(index, id))

    async def delete_documents(
        self, index: str, ids: Sequence[str] | None = None, *, filter: Mapping[str, Any] | None = None
    ) -> DeleteReport:
        """Delete documents by id, or all that pass a filter, which must not match everything.

        Unknown ids are ignored.

        Raises:
            UnknownIndex: If there is no such index.
        """
        return await self._result(calls.delete_documents(index, ids, filter))

    async def ready(self) -> Ready:
        """Return whether the service can serve: its `status` is then `ok`."""
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
