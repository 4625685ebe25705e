"""Run the service in this process with fake models, and read its answers."""

import asyncio
import atexit
import base64
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from urllib.parse import unquote

import httpx
import numpy as np
import orjson
import pytest
import uvicorn
from fastapi import FastAPI
from numpy.typing import ArrayLike
from starlette.types import ASGIApp

from boundarymorph.api.lifecycle import Build, Parts
from boundarymorph.caching.scores import ScoreCache
from boundarymorph.retrieval.artifacts import ArtifactFile
from boundarymorph.retrieval.encoders import Encoder
from boundarymorph.retrieval.index_retriever import IndexRetriever
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.retrieval.remote import RemoteRetriever
from boundarymorph.scoring.build import declared_trust
from boundarymorph.scoring.scorer import BatchingScorer, Scorer, Scores
from boundarymorph.selector.selector import Selector
from boundarymorph.server.app import create_app, create_retriever_app, create_scorer_app
from boundarymorph.server.protocol import configured
from boundarymorph.settings import RetrieverSettings, Settings
from tests.fakes.scorer import SeededCrossEncoder, SeededScorer
from tests.patience import PATIENCE
from tests.retrieval.fakes import SeededEncoder

NDJSON = {"content-type": "application/x-ndjson"}
QUEUE_TOKENS = 300  # for a scorer without a service


def faked(
    scorer: Scorer | None = None, encoder: Encoder | None = None, cache: ScoreCache | None = None
) -> Callable[..., Parts]:
    """Return a function that builds a whole service with real indexes.

    Its models are cheap and deterministic unless they are given.
    """

    def build(settings: Settings, on_lost: object = None) -> Parts:
        parts, scoring = fake_retrieval(settings, encoder=encoder), scorer or SeededScorer()
        selector = Selector(parts.retriever, scoring, cache, trust=declared_trust(settings.scorer))
        return replace(parts, scorer=scoring, selector=selector)

    return build


fake_service = faked()


def fake_retrieval(settings: Settings, on_lost: object = None, encoder: Encoder | None = None) -> Parts:
    catalog, encoder = LocalCatalog(settings.data_directory / "indexes"), encoder or SeededEncoder()
    return Parts(catalog, encoder, IndexRetriever(catalog, encoder))


def fake_gateway(settings: Settings, on_lost: object = None) -> Parts:
    """Build a gateway with a real client of a retriever."""
    key = settings.retriever.api_key
    retriever = RemoteRetriever(*settings.retriever.url, api_key=key.get_secret_value() if key else None)
    return Parts(retriever=retriever, scorer=(scorer := SeededScorer()), selector=Selector(retriever, scorer))


def fake_scorer(model: SeededCrossEncoder | None = None) -> Callable[..., Parts]:
    """Return a function that builds a scorer without a service."""

    def build(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> Parts:
        return Parts(scorer=BatchingScorer(model or SeededCrossEncoder(), queue_tokens=QUEUE_TOKENS, on_lost=on_lost))

    return build


def application(role: str, settings: Settings) -> FastAPI:
    """Return a service, a gateway, a retriever, or a scorer, with fake models."""
    match role:
        case "whole":
            return create_app(settings, build=fake_service)
        case "gateway":
            return create_app(settings, build=fake_gateway)
        case "retriever":
            return create_retriever_app(settings, build=fake_retrieval)
        case _:
            return create_scorer_app(settings, build=fake_scorer())


class Server(uvicorn.Server):
    """A server without signal handlers.

    The handlers of a server that has ended would end the streams of other servers in this process.
    """

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def on_socket(app: ASGIApp) -> AsyncIterator[str]:
    """Yield the URL of an application that has begun to start on a real socket."""
    # asyncio turns Nagle's algorithm off for a socket with a protocol, as it does for uvicorn's own sockets.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as door:
        door.bind(("127.0.0.1", 0))
        access = getattr(app.state, "access", None) if isinstance(app, FastAPI) else None
        settings = Settings() if access is None else access.settings
        server = Server(configured(app, settings, log_level="error", timeout_graceful_shutdown=1))
        serving = asyncio.create_task(server.serve(sockets=[door]))
        async with asyncio.timeout(PATIENCE):
            while not server.started:  # noqa: ASYNC110 - it tells nobody else
                await asyncio.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{door.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


@asynccontextmanager
async def listening(app: FastAPI) -> AsyncIterator[tuple[str, httpx.AsyncClient]]:
    """Yield the URL of an application on a real socket, and a client, once it is ready."""
    async with on_socket(app) as url, httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        await ready(client)
        yield url, client


@asynccontextmanager
async def starting(settings: Settings, build: Build) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a service that has begun to start."""
    async with client_of(create_app(settings, build=build)) as client:
        yield client


@asynccontextmanager
async def client_of(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of an application that has begun to start.

    An exception that escapes the application is a 500, as on a socket.
    """
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as client,
    ):
        yield client


@asynccontextmanager
async def serving(settings: Settings, build: Build = fake_service) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a service that is ready."""
    async with starting(settings, build) as client:
        await ready(client)
        yield client


@asynccontextmanager
async def filled(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a ready service with fake models and the indexes of `fill`."""
    await fill_directory(settings.data_directory)
    async with serving(settings) as client:
        yield client


@asynccontextmanager
async def gateway_to(url: str, settings: Settings | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a gateway that has begun to start, with the retriever at a URL."""
    front = (settings or Settings()).model_copy(update={"retriever": RetrieverSettings(url=(url,))})
    async with client_of(application("gateway", front)) as client:
        yield client


@asynccontextmanager
async def gateway(behind: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a ready gateway, whose retriever is on a real socket.

    Args:
        behind: The settings of the retriever.
    """
    async with on_socket(application("retriever", behind)) as url, gateway_to(url) as client:
        await ready(client)
        yield client


class BlockedScoring:
    """Make scorers wait until `open` is set, except for the queries `passing`.

    Attributes:
        open: The event that they wait for.
        order: The queries in the order of arrival.
        running: The number of queries that are being scored.
        most: The largest number so far.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *passing: str) -> None:
        self.open, self.order, self.running, self.most = asyncio.Event(), list[str](), 0, 0
        score = SeededScorer.score

        async def held(scorer: SeededScorer, query: str, given: Sequence[str], **options: Any) -> Scores:
            self.order.append(query)
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await asyncio.sleep(0) if query in passing else await self.open.wait()
                return await score(scorer, query, given, **options)
            finally:
                self.running -= 1

        monkeypatch.setattr(SeededScorer, "score", held)


_made: list[Path] = []


async def fill_directory(folder: Path) -> None:
    """Copy a data directory with the indexes of `fill`, which is made once per process."""
    if not _made:
        made = Path(mkdtemp(prefix="filled-"))
        atexit.register(shutil.rmtree, made)
        async with serving(Settings(data_directory=made)) as client:
            await fill(client)
        _made.append(made)
    shutil.copytree(_made[0], folder, dirs_exist_ok=True)


async def fill(client: httpx.AsyncClient) -> None:
    """Make the indexes "texts" (d0 to d39) and "own" (e0 to e3, the unit vectors)."""
    answer(await client.put("/indexes/texts"))
    lines = b"\n".join(orjson.dumps(document | {"metadata": {"from": "index"}}) for document in texts(40))
    assert answer(await client.post("/indexes/texts/documents", content=lines, headers=NDJSON))["added"] == 40
    answer(await client.put("/indexes/own", json={"dimension": 4}))
    units = [{"id": f"e{i}", "text": f"unit {i}", "embedding": [float(i == j) for j in range(4)]} for i in range(4)]
    assert answer(await client.post("/indexes/own/documents", json=units))["added"] == 4


def artifacts(settings: Settings, index: str) -> ArtifactFile:
    """Return the artifacts of an index of a data directory."""
    return LocalCatalog(settings.data_directory / "indexes").artifacts(index)


async def ready(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(PATIENCE):
        while not (await client.get("/readyz")).is_success:  # noqa: ASYNC110 - as its users wait
            await asyncio.sleep(0.005)


def problem(response: httpx.Response, status: int, slug: str) -> str:
    """Check that a response is the expected problem, and return its detail."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["type"] == f"urn:boundarymorph:problem:{slug}"
    assert body["status"] == status
    assert body["title"]
    assert body["instance"].isascii()
    assert unquote(body["instance"]) == unquote(response.request.url.raw_path.partition(b"?")[0])
    assert set(body) <= {"type", "title", "status", "detail", "instance", "errors"}
    assert "Traceback" not in response.text and ".py" not in response.text
    detail = body["detail"]
    assert isinstance(detail, str) and 0 < len(detail) < 2_000
    return detail


def answer(response: httpx.Response) -> dict[str, Any]:
    """Return the body of a successful response."""
    assert response.is_success, response.text
    body: dict[str, Any] = response.json()
    return body


async def select(client: httpx.AsyncClient, **request: Any) -> dict[str, Any]:
    """Return the answer to POST /select."""
    return answer(await client.post("/select", json=request))


async def streamed(client: httpx.AsyncClient, **request: Any) -> list[dict[str, Any]]:
    """Return the events of POST /select, of which the last is the selection."""
    response = await client.post("/select", json=request, headers={"accept": "text/event-stream"})
    assert response.headers["content-type"].startswith("text/event-stream"), response.text
    return [orjson.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def texts(count: int) -> list[dict[str, Any]]:
    """Return documents of a pool, with ids and texts."""
    return [{"id": f"d{number}", "text": f"text {number}"} for number in range(count)]


def block(vectors: ArrayLike, dtype: str = "float32", shape: list[int] | None = None) -> dict[str, Any]:
    """Return vectors in the form of one block of a request."""
    array = np.asarray(vectors, dtype={"float16": "<f2", "float32": "<f4"}[dtype])
    return {
        "data": base64.b64encode(array.tobytes()).decode(),
        "shape": list(array.shape) if shape is None else shape,
        "dtype": dtype,
    }
