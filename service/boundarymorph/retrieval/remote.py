"""The retriever in another process."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from http import HTTPStatus
from typing import Any, TypeVar, TypeVarTuple
from urllib.parse import urlsplit

import httpx
import numpy as np
import orjson
from numpy.typing import ArrayLike, NDArray

from boundarymorph import errors
from boundarymorph.errors import (
    PROBLEM_TYPE,
    BoundaryMorphError,
    InvalidConfiguration,
    InvalidInput,
    LimitExceeded,
    MalformedFrame,
    NotReady,
    Overloaded,
    RetrieverFailed,
    RetrieverUnavailable,
)
from boundarymorph.remote.peer import retry_after
from boundarymorph.retrieval import frame
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.retrieval.retriever import Retrieved, Search
from boundarymorph.selection.pool import unit_rows

CONNECT_TIMEOUT = 1.0  # seconds; a server that is up accepts at once
# Less than the five seconds after which our server closes an idle connection, perhaps just when it is used again.
KEEPALIVE = 4.0
EXCERPT = 200  # characters of an answer that is not ours
TEXTS = 128  # of one request for embeddings: its time should not grow with the pool
JSON = {"Content-Type": "application/json"}
OWN = (InvalidConfiguration, NotReady, RetrieverFailed, RetrieverUnavailable)  # which are told anew, with the URL

Arguments = TypeVarTuple("Arguments")
Answer = TypeVar("Answer")


class RemoteRetriever:
    """A `Retriever` over HTTP: `boundarymorph retriever` at a URL.

    What the retriever refuses is raised as it was there. Besides, every call raises RetrieverUnavailable when nobody is
    at the URL or the answer takes too long, and RetrieverFailed when it makes no sense.
    """

    def __init__(self, url: str, *, api_key: str | None = None, timeout: float = 30.0, connections: int = 64) -> None:
        """api_key: sent as a Bearer token; timeout: seconds for one request, the second try included.

        Raises InvalidConfiguration.
        """
        self.url = _base(url)
        self.encoder: str | None = None
        """The full name of its encoder, as it came with the last embeddings; None where none has come yet."""
        self._timeout = timeout
        self._client = httpx.AsyncClient(
            headers={"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {}),
            verify=_trust(),
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT),
            limits=httpx.Limits(
                max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=KEEPALIVE
            ),
        )

    async def retrieve(self, index: str, search: Search) -> Retrieved:
        body: dict[str, object] = {
            "index": index,
            "query": search.query,
            "depth": search.depth,
            "filter": search.filter,
            "hybrid": search.hybrid,
        }
        if search.embedding is not None:
            body |= _vector(search.embedding)
        answer = await self._post("/retrieve", body)
        return await asyncio.to_thread(self._read, frame.decode_pool, answer)

    async def documents(self, index: str, ids: Sequence[str]) -> Mapping[str, Document]:
        answer = await self._post("/documents", {"index": index, "ids": list(ids)})
        documents = (self._read(_document, record) for record in self._array(answer, "documents"))
        return {document.id: document for document in documents}

    async def characters(self, index: str, ids: Sequence[str]) -> Mapping[str, int]:
        answer = await self._post("/characters", {"index": index, "ids": list(ids)})
        counts = self._array(answer, "characters")
        if len(counts) != len(ids) or not all(count is None or _is_count(count) for count in counts):
            raise self._unusable("'characters' holds something else than a count for each id")
        return {id: count for id, count in zip(ids, counts, strict=True) if count is not None}

    async def embed_query(self, query: str) -> NDArray[np.float32]:
        answer = await self._post("/embed/query", {"query": query})
        encoded = self._read(frame.decode_embeddings, answer, 1)
        self.encoder = encoded.encoder
        vector: NDArray[np.float32] = encoded.vectors[0]
        return vector

    async def embed_documents(self, texts: Sequence[str]) -> Embeddings:
        parts = [texts[start : start + TEXTS] for start in range(0, len(texts), TEXTS)] or [texts]
        encoded = []
        for part in parts:
            answer = await self._post("/embed/documents", {"texts": list(part)})
            encoded.append(await asyncio.to_thread(self._read, frame.decode_embeddings, answer, len(part)))
        if len({(part.vectors.shape[1], part.encoder) for part in encoded}) > 1:
            raise self._unusable("its encoder has been exchanged meanwhile")
        self.encoder = encoded[0].encoder
        vectors = np.concatenate([part.vectors for part in encoded])
        return Embeddings(vectors, sum(part.truncated for part in encoded), self.encoder)

    async def forward(
        self, method: str, target: bytes, headers: Mapping[str, str], body: AsyncIterator[bytes] | None
    ) -> httpx.Response:
        """Pass a request on. The answer is as the retriever gave it and still to be read, and to be closed.

        target: path and query of the request, percent-encoded, and not touched, whatever dots it has. What only reads
        begins to be answered in the time of a request, and raises what an answer of 429 or 5xx means. For what writes
        there is no limit to the time that it may take. Raises RetrieverUnavailable.
        """
        prefix = httpx.URL(self.url).raw_path.rstrip(b"/")
        request = self._client.build_request(
            method, self.url, headers=dict(headers), content=body, extensions={"target": prefix + target}
        )
        if not only_reads(method, body):
            with self._in_our_words():
                return await self._client.send(request, stream=True)

        async def send() -> httpx.Response:
            answer = await self._client.send(request, stream=True)
            if _is_refusal(answer):
                await answer.aread()
            return answer

        answer = await self._answer(send)
        if _is_refusal(answer):
            raise self._refusal(target.decode(errors="replace"), answer)
        return answer

    async def check(self) -> None:
        """Have a query encoded, which shows that the key is good, and ask whether its own parts answer.

        Raises what `embed_query` does.
        """
        await self.embed_query("canary")
        response = await self._answer(lambda: self._client.get(self.url + "/readyz"))
        if not response.is_success:
            raise RetrieverUnavailable(f"the retriever at {self.url} is not ready: {_said(response)}")

    async def close(self) -> None:
        await self._client.aclose()

    async def _post(self, path: str, body: Mapping[str, object]) -> bytes:
        """The body of a good answer."""
        content = _encoded(body)
        response = await self._answer(lambda: self._client.post(self.url + path, content=content, headers=JSON))
        if not response.is_success:
            raise self._refusal(path, response)
        return response.content

    async def _answer(self, send: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
        """What comes in time, of what can be asked again. Raises RetrieverUnavailable."""
        try:
            async with asyncio.timeout(self._timeout):
                with self._in_our_words():
                    return await _twice(send)
        except TimeoutError as error:
            message = f"the retriever at {self.url} did not answer in {self._timeout:g} seconds"
            raise RetrieverUnavailable(message) from error

    @contextmanager
    def _in_our_words(self) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            reached = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            said = "broke off" if reached else "cannot be reached"
            raise RetrieverUnavailable(f"the retriever at {self.url} {said} ({reason})") from error

    def _refusal(self, path: str, response: httpx.Response) -> BoundaryMorphError:
        """What the retriever raised, or what its answer means."""
        status, problem = response.status_code, _problem(response)
        detail = str(problem.get("detail", ""))
        slug = str(problem.get("type", "")).removeprefix(PROBLEM_TYPE)
        said = f"the retriever at {self.url} answered {status}: {detail or response.text[:EXCERPT]}"
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            pause = retry_after(response.headers.get("retry-after"), time.time())
            message = detail if slug == Overloaded.slug else said
            public = detail if slug == Overloaded.slug else "the retriever has too much to do; try again later"
            return Overloaded(message, retry_after=max(1.0, pause or 0.0), public=public)
        if slug == "body-too-large":
            return LimitExceeded(f"the retriever takes no request of this size: {detail}")
        if (kind := _kinds().get(slug)) is not None:
            return kind(detail)
        if slug in ("not-ready", RetrieverUnavailable.slug) or (not problem and status in (502, 503, 504)):
            return RetrieverUnavailable(said)
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
            return RetrieverFailed(f"{said}; {path} is not served there: is it a retriever, and of this release?")
        return RetrieverFailed(said)

    def _array(self, answer: bytes, key: str) -> list[Any]:
        try:
            values = orjson.loads(answer)[key]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise self._unusable(f"there is no {key!r} in it") from error
        if not isinstance(values, list):
            raise self._unusable(f"{key!r} is not an array")
        return values

    def _read(self, read: Callable[[*Arguments], Answer], *args: *Arguments) -> Answer:
        try:
            return read(*args)
        except MalformedFrame as error:
            raise MalformedFrame(f"the answer of the retriever at {self.url} cannot be used: {error}") from error

    def _unusable(self, reason: str) -> RetrieverFailed:
        return RetrieverFailed(f"the answer of the retriever at {self.url} cannot be used: {reason}")


def only_reads(method: str, body: AsyncIterator[bytes] | None) -> bool:
    """Whether a request that is passed on may be sent again, and to another retriever."""
    return method == "GET" and body is None


def _is_refusal(answer: httpx.Response) -> bool:
    """Whether it tells of the retriever rather than of what was asked for."""
    return answer.status_code == HTTPStatus.TOO_MANY_REQUESTS or answer.is_server_error


async def _twice(send: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    """Once, and once more where the connection broke: an idle one may, just as it is used again."""
    try:
        return await send()
    except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
        return await send()


def _base(url: str) -> str:
    """The URL without a slash at its end. Raises InvalidConfiguration, whose message repeats no password."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        base = str(httpx.URL(url)).rstrip("/")
    except (ValueError, httpx.InvalidURL) as error:
        raise InvalidConfiguration("the URL of the retriever has a malformed host or port") from error
    if not usable or not url.isprintable() or " " in url or "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidConfiguration(
            "the URL of the retriever must be http://HOST:PORT, or https://, without credentials"
        )
    return base


def _vector(query_embedding: ArrayLike) -> dict[str, object]:
    """The query's vector in the precision in which the retriever is to bring it to unit length, as if it were here.

    Raises InvalidEmbeddings.
    """
    vector = np.asarray(query_embedding)
    unit_rows(vector.reshape(1, -1), ["the query"])
    dtype = "float64" if vector.dtype == np.float64 else "float32"
    numbers = vector.reshape(-1).astype(dtype).astype(np.float64)
    return {"query_embedding": numbers.tolist(), "query_precision": dtype}


def _encoded(body: object) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError as error:
        raise InvalidInput("a text cannot be sent to the retriever: it holds half a surrogate pair") from error


def _document(record: object) -> Document:
    match record:
        case {"id": str(id), "text": str(text), "title": str() | None as title, "metadata": dict(metadata)}:
            return Document(id, text, title, metadata)
    raise MalformedFrame("one of its documents is not one")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _problem(response: httpx.Response) -> dict[str, Any]:
    """The problem details of an answer; empty where it has none."""
    try:
        body = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        return {}
    return body if isinstance(body, dict) and str(body.get("type", "")).startswith(PROBLEM_TYPE) else {}


def _said(response: httpx.Response) -> str:
    """What /readyz says is the matter."""
    try:
        return str(orjson.loads(response.content)["detail"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return f"it answered {response.status_code}"


@cache
def _kinds() -> dict[str, type[BoundaryMorphError]]:
    """The errors that a retriever raises for its caller's sake, by their slugs."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BoundaryMorphError)]
    return {kind.slug: kind for kind in kinds if kind is not BoundaryMorphError and not issubclass(kind, OWN)}


@cache
def _trust() -> ssl.SSLContext:
    """The certificates that are trusted, which take longer to load than all else here."""
    return httpx.create_ssl_context()
