"""Call retrievers in other processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import Any, TypeVar

import numpy as np
import orjson
from numpy.typing import ArrayLike, NDArray

from boundarymorph import errors
from boundarymorph.calibration.calibration import Calibration
from boundarymorph.errors import PROBLEM_TYPE, BoundaryMorphError
from boundarymorph.inference.concurrency import TimeBudget
from boundarymorph.remote.balancer import Balancer, Role
from boundarymorph.remote.peer import (
    JSON,
    SMALL,
    Peer,
    PeerResponse,
    RelayedError,
    ServerBusy,
    ServerUnavailable,
    UnusableAnswer,
    concerns_us,
    pause_of,
    tells_of_server,
)
from boundarymorph.remote.urls import parse_plain, segment
from boundarymorph.remote.wire import MalformedAnswer, array, encode_json, is_count, mapping, parse_json
from boundarymorph.retrieval import frame
from boundarymorph.retrieval.document import Document, Retrieval, Search
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.retrieval.interfaces import instrument
from boundarymorph.selection.pool import unit_rows

TEXTS = 128  # texts per request for embeddings, so that the time of a request does not grow with the pool
INLINE = 2**19  # bytes of an answer to parse at once, in about a millisecond
PROBE = encode_json({"query": "probe"})
CANDIDATE = 4_096  # bytes of a candidate in a frame besides vector and document: id, score, signals, terms
RECORD = 1_024  # bytes of a document in JSON besides the uploaded fields
ABSENT = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)
OWN = (errors.InvalidConfiguration, errors.NotReady, errors.RetrieverFailed, errors.RetrieverUnavailable)
AWAY = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)  # as proxies say it
_ROLE = Role("retriever", errors.RetrieverUnavailable, errors.RetrieverFailed)

Answer = TypeVar("Answer")


class RemoteRetriever:
    """A `Retriever` over HTTP: one or more servers with the same documents and encoder.

    The servers run `boundarymorph retriever`. Errors for the caller are passed on. Every call also raises Overloaded,
    RetrieverUnavailable if no retriever can be reached in time, and RetrieverFailed for an invalid answer; if there are
    several retrievers, another one is tried first.
    """

    def __init__(
        self,
        *urls: str,
        api_key: str | None = None,
        timeout: float = 30.0,
        connections: int = 64,
        dimension: int = 8_192,
        line_bytes: int = 4 * 2**20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the connections.

        Args:
            urls: The addresses of the retrievers.
            api_key: The key that is sent to them.
            timeout: Seconds for one request to one server.
            connections: Connections to each.
            dimension: The largest dimension of a vector in an answer.
            line_bytes: Most bytes of a document in an answer.
            clock: Returns the time in seconds.

        Raises:
            InvalidConfiguration: For a URL that is missing, repeated, or malformed.
        """
        bases = [parse_plain(url, "a retriever") for url in urls]
        peers = [Peer(base, _ROLE.name, api_key=api_key, connections=connections, ours=True) for base in bases]
        self._budget = TimeBudget(timeout, last=False)
        self._vector, self._document = 4 * dimension, RECORD + line_bytes  # bytes
        self._balancer = Balancer(peers, _ROLE, requests=2**31, clock=clock)

    @property
    def identity(self) -> str | None:
        """The encoder that the retrievers serve, or None before one of them has encoded anything."""
        return self._balancer.model

    @instrument
    async def retrieve(self, index: str, search: Search, *, caller: str = "") -> Retrieval:
        body: dict[str, object] = {
            "index": index,
            "query": search.query,
            "depth": search.depth,
            "filter": search.filter,
            "hybrid": search.hybrid,
            "documents": search.documents,
            "directions": search.directions,
        }
        if search.embedding is not None:
            body |= _vector(search.embedding)
        most = SMALL + search.depth * (self._vector + CANDIDATE) + search.documents * self._document
        return await self._call("/retrieve", body, frame.decode_pool, most, caller)

    @instrument
    async def documents(
        self, index: str, ids: Sequence[str], *, texts: bool = True, caller: str = ""
    ) -> Mapping[str, Document]:
        def read(answer: bytes) -> Mapping[str, Document]:
            return frame.documents_of(array(mapping(parse_json(answer)), "documents"))

        asked = {"index": index, "ids": list(ids)} | ({} if texts else {"texts": False})
        return await self._call("/documents", asked, read, SMALL + len(ids) * self._document, caller)

    @instrument
    async def characters(self, index: str, ids: Sequence[str], *, caller: str = "") -> Mapping[str, int]:
        def read(answer: bytes) -> Mapping[str, int]:
            counts = array(mapping(parse_json(answer)), "characters")
            if len(counts) != len(ids) or not all(count is None or is_count(count) for count in counts):
                raise MalformedAnswer("'characters' must contain a count or null for each id")
            return {id: count for id, count in zip(ids, counts, strict=True) if count is not None}

        asked = {"index": index, "ids": list(ids)}
        return await self._call("/characters", asked, read, SMALL + RECORD * len(ids), caller)

    async def set_calibration(self, index: str, made: Calibration) -> None:
        content, target = encode_json({"calibration": made.to_json()}), f"/indexes/{segment(index)}/artifacts"

        async def write(peer: Peer) -> None:
            answer = await peer.send("PATCH", target, budget=self._budget, content=content, headers=JSON, most=SMALL)
            if not answer.is_success:
                raise _refusal(peer, target, answer)

        await self._balancer.call(write)

    @instrument
    async def embed_query(self, query: str, *, caller: str = "") -> NDArray[np.float32]:
        content = encode_json({"query": query})
        embeddings = await self._balancer.call(lambda peer: self._embed(peer, "/embed/query", content, 1, caller))
        vector: NDArray[np.float32] = embeddings.vectors[0]
        return vector

    @instrument
    async def embed_documents(self, texts: Sequence[str], *, caller: str = "") -> Embeddings:
        parts = [texts[start : start + TEXTS] for start in range(0, len(texts), TEXTS)] or [texts]
        contents = [encode_json({"texts": list(part)}) for part in parts]

        async def embed(peer: Peer) -> Embeddings:
            embedded = [
                await self._embed(peer, "/embed/documents", content, len(part), caller)
                for part, content in zip(parts, contents, strict=True)
            ]
            if len({(part.vectors.shape[1], part.encoder) for part in embedded}) > 1:
                raise _unusable(peer, "its encoder has changed in the meantime")
            vectors = np.concatenate([part.vectors for part in embedded])
            return Embeddings(vectors, sum(part.truncated for part in embedded), embedded[0].encoder)

        return await self._balancer.call(embed)

    async def forward(
        self, method: str, target: str, headers: Mapping[str, str], body: AsyncIterator[bytes] | None, caller: str = ""
    ) -> PeerResponse:
        """Forward a request and return the retriever's answer unchanged; read and close it.

        A request that only reads has a time limit, and raises an answer of 429 or 5xx as an error. Any other has none,
        and is sent to another retriever only if the first could not be reached.

        Args:
            method: The HTTP method.
            target: The path, made of `remote.urls.segment`s, and the query.
            headers: The headers to forward.
            body: The body, if any.
            caller: The caller that the request is for.

        Raises:
            RetrieverUnavailable: If no retriever can be reached.
            RetrieverFailed: For a redirect or a rejected key.
        """

        async def read(peer: Peer) -> PeerResponse:
            answer = await peer.send(method, target, budget=self._budget, headers=headers, most=None, caller=caller)
            if tells_of_server(answer):
                raise _refusal(peer, target, answer)
            return answer

        async def write(peer: Peer) -> PeerResponse:
            answer = await peer.send(
                method, target, budget=None, content=body, headers=headers, repeatable=False, most=None, caller=caller
            )
            if concerns_us(answer):
                raise _refusal(peer, target, answer)
            if answer.status_code in AWAY and "problem" not in answer.headers.get("content-type", ""):
                answer.close()
                raise ServerUnavailable(f"{peer.base} answered {answer.status_code}, and not as a retriever does")
            return answer

        if method == "GET" and body is None:
            return await self._balancer.call(read)
        return await self._balancer.call(write, repeatable=False)

    async def check(self) -> None:
        await self._balancer.call(self._probe)

    async def close(self) -> None:
        await self._balancer.close()

    async def _call(
        self, path: str, body: Mapping[str, object], read: Callable[[bytes], Answer], most: int, caller: str
    ) -> Answer:
        content = encode_json(body)
        return await self._balancer.call(lambda peer: self._post(peer, path, content, read, most, caller))

    async def _post(
        self, peer: Peer, path: str, content: bytes, read: Callable[[bytes], Answer], most: int, caller: str
    ) -> Answer:
        """Return one retriever's answer of at most `most` bytes, converted by `read`."""
        answer = await peer.send(
            "POST", path, budget=self._budget, content=content, headers=JSON, most=most, caller=caller
        )
        if not answer.is_success:
            raise _refusal(peer, path, answer)
        try:
            if len(answer.content) < INLINE:
                return read(answer.content)
            return await asyncio.to_thread(read, answer.content)
        except (errors.MalformedFrame, MalformedAnswer) as error:
            raise _unusable(peer, error) from error

    async def _embed(self, peer: Peer, path: str, content: bytes, count: int, caller: str = "") -> Embeddings:
        """Return embeddings.

        Raises OtherModel if the retriever has another encoder than the one in use.
        """
        most = SMALL + count * self._vector
        embeddings = await self._post(
            peer, path, content, lambda answer: frame.decode_embeddings(answer, count), most, caller
        )
        if embeddings.encoder is not None:
            self._balancer.serves(peer, embeddings.encoder)
        return embeddings

    async def _probe(self, peer: Peer) -> bool:
        await self._embed(peer, "/embed/query", PROBE, 1)
        answer = await peer.send("GET", "/readyz", budget=self._budget)
        if not answer.is_success:
            raise ServerUnavailable(peer.said("/readyz", answer))
        return True


def _unusable(peer: Peer, reason: object) -> UnusableAnswer:
    kind = errors.MalformedFrame if isinstance(reason, errors.MalformedFrame) else None
    return UnusableAnswer(f"the answer of the retriever at {peer.base} cannot be used: {reason}", kind=kind)


def _refusal(peer: Peer, path: str, response: PeerResponse) -> Exception:
    """Return the error that the retriever raised for its caller, or the meaning of its answer."""
    status, problem = response.status_code, _problem(response)
    detail = str(problem.get("detail", ""))
    slug = str(problem.get("type", "")).removeprefix(PROBLEM_TYPE)
    said = peer.said(path, response)
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        own = detail if slug == errors.Overloaded.slug else None
        return ServerBusy(own or said, max(1.0, pause_of(response) or 0.0), public=own)
    if slug == errors.BodyTooLarge.slug:
        return RelayedError(errors.LimitExceeded(f"the retriever rejects requests of this size: {detail}"))
    if (kind := _kinds().get(slug)) is not None:
        return RelayedError(kind(detail))
    if slug in (errors.NotReady.slug, errors.RetrieverUnavailable.slug) or (not problem and status in AWAY):
        return ServerUnavailable(said)
    if status in ABSENT:
        return UnusableAnswer(f"{said}; {path} does not exist there: is it a retriever of the same release?")
    return UnusableAnswer(said)


def _vector(query_embedding: ArrayLike) -> dict[str, object]:
    """Return the query's vector in its own precision, so that it is normalized as it is here."""
    vector = np.asarray(query_embedding)
    unit_rows(vector.reshape(1, -1), ["the query"])
    dtype = "float64" if vector.dtype == np.float64 else "float32"
    numbers = vector.reshape(-1).astype(dtype).astype(np.float64)
    return {"query_embedding": numbers.tolist(), "query_precision": dtype}


def _problem(response: PeerResponse) -> dict[str, Any]:
    try:
        body = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        return {}
    return body if isinstance(body, dict) and str(body.get("type", "")).startswith(PROBLEM_TYPE) else {}


@cache
def _kinds() -> dict[str, type[BoundaryMorphError]]:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BoundaryMorphError)]
    return {kind.slug: kind for kind in kinds if kind is not BoundaryMorphError and not issubclass(kind, OWN)}
