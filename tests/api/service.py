"""The application in this process: a client for it, fake rooms behind it, and what its problems look like."""

import asyncio
import atexit
import base64
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from urllib.parse import unquote

import httpx
import numpy as np
import orjson
import uvicorn
from fastapi import FastAPI
from numpy.typing import ArrayLike
from starlette.types import ASGIApp

from boundarymorph.caching.known import ScoreCache
from boundarymorph.calibration.belongings import Belongings
from boundarymorph.retrieval.encoders import Encoder
from boundarymorph.retrieval.index_retriever import IndexRetriever
from boundarymorph.retrieval.learned import Learned
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.scoring.scorer import Scorer
from boundarymorph.selector.selector import Selector
from boundarymorph.server.app import Build, create_app
from boundarymorph.server.composition import AllInOne, Retrieval
from boundarymorph.server.protocol import configured
from boundarymorph.settings import Settings
from tests.patience import PATIENCE
from tests.retrieval.fakes import SeededEncoder
from tests.scoring.fakes import SeededScorer

NDJSON = {"content-type": "application/x-ndjson"}


def faked(
    scorer: Scorer | None = None, encoder: Encoder | None = None, cache: ScoreCache | None = None
) -> Callable[..., AllInOne]:
    """Builds real indexes, and what is not given cheap and deterministic."""

    def build(settings: Settings, on_lost: object = None) -> AllInOne:
        parts, scoring = fake_retrieval(settings, encoder=encoder), scorer or SeededScorer()
        selector = Selector(parts.retriever, scoring, cache)
        return AllInOne(parts.catalog, parts.encoder, parts.retriever, scoring, selector)

    return build


fake_service = faked()


def fake_retrieval(settings: Settings, on_lost: object = None, encoder: Encoder | None = None) -> Retrieval:
    """Real indexes; the encoder, unless it is given, is cheap and deterministic."""
    catalog, encoder = LocalCatalog(settings.data_directory / "indexes"), encoder or SeededEncoder()
    return Retrieval(catalog, encoder, IndexRetriever(catalog, encoder, learned=Learned(catalog, settings)))


class Server(uvicorn.Server):
    """One of several in this process: a signal handler of one that has ended would end streams of the others."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def on_socket(app: ASGIApp) -> AsyncIterator[str]:
    """The URL of an application on a real socket, which has begun to start."""
    # Of a socket that names its protocol asyncio turns Nagle's algorithm off, as it does of those that uvicorn opens.
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
async def starting(settings: Settings, build: Build) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service that has begun to start."""
    async with client_of(create_app(settings, build=build)) as client:
        yield client


@asynccontextmanager
async def client_of(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application that has begun to start. An exception that escapes it is a 500, as on a socket."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as client,
    ):
        yield client


@asynccontextmanager
async def serving(settings: Settings, build: Build = fake_service) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service that is ready."""
    async with starting(settings, build) as client:
        await ready(client)
        yield client


@asynccontextmanager
async def filled(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a ready service on fakes, with the indexes "texts" (d0 to d39) and "own" (e0 to e3, unit vectors)."""
    shutil.copytree(await _filled_once(), settings.data_directory, dirs_exist_ok=True)
    async with serving(settings) as client:
        yield client


_made: list[Path] = []


async def _filled_once() -> Path:
    """A data directory with these indexes, for as long as this process lives."""
    if not _made:
        folder = Path(mkdtemp(prefix="filled-"))
        atexit.register(shutil.rmtree, folder)
        async with serving(Settings(data_directory=folder)) as client:
            await fill(client)
        _made.append(folder)
    return _made[0]


async def fill(client: httpx.AsyncClient) -> None:
    """The indexes "texts" (d0 to d39) and "own" (e0 to e3, the unit vectors)."""
    answer(await client.put("/indexes/texts"))
    lines = b"\n".join(orjson.dumps(document | {"metadata": {"from": "index"}}) for document in texts(40))
    assert answer(await client.post("/indexes/texts/documents", content=lines, headers=NDJSON))["added"] == 40
    answer(await client.put("/indexes/own", json={"dimension": 4}))
    units = [{"id": f"e{i}", "text": f"unit {i}", "embedding": [float(i == j) for j in range(4)]} for i in range(4)]
    assert answer(await client.post("/indexes/own/documents", json=units))["added"] == 4


def belongings(settings: Settings, index: str) -> Belongings:
    """What belongs to an index of a data directory."""
    return LocalCatalog(settings.data_directory / "indexes").belongings(index)


async def ready(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(PATIENCE):
        while not (await client.get("/readyz")).is_success:  # noqa: ASYNC110 - as its users wait
            await asyncio.sleep(0.005)


def problem(response: httpx.Response, status: int, slug: str) -> str:
    """Check that this is the expected problem, whole and well-formed; its detail."""
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
    """The body of a successful response."""
    assert response.is_success, response.text
    body: dict[str, Any] = response.json()
    return body


def texts(count: int) -> list[dict[str, Any]]:
    """Documents of a pool, with ids and texts."""
    return [{"id": f"d{number}", "text": f"text {number}"} for number in range(count)]


def block(vectors: ArrayLike, dtype: str = "float32", shape: list[int] | None = None) -> dict[str, Any]:
    """Vectors as they travel in one piece."""
    array = np.asarray(vectors, dtype={"float16": "<f2", "float32": "<f4"}[dtype])
    return {
        "data": base64.b64encode(array.tobytes()).decode(),
        "shape": list(array.shape) if shape is None else shape,
        "dtype": dtype,
    }
