"""RemoteRetriever over real sockets: the contract, the same bits as in one process, and what may go wrong between."""

import asyncio
import inspect
import shutil
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import orjson
import pytest
import pytest_asyncio
from numpy.typing import ArrayLike

from boundarymorph import errors
from boundarymorph.api.lifecycle import Parts
from boundarymorph.errors import (
    PROBLEM_TYPE,
    BodyTooLarge,
    BoundaryMorphError,
    InvalidConfiguration,
    InvalidEmbeddings,
    LimitExceeded,
    MalformedFrame,
    NotReady,
    Overloaded,
    RetrieverFailed,
    RetrieverUnavailable,
)
from boundarymorph.retrieval import frame
from boundarymorph.retrieval.document import Document, Retriever, Search
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.retrieval.index_retriever import IndexRetriever
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.retrieval.local.store import COUNT, FEWEST
from boundarymorph.retrieval.remote import RemoteRetriever
from boundarymorph.server.app import create_retriever_app, create_scorer_app
from boundarymorph.server.composition import build_gateway
from boundarymorph.settings import Limits, RetrieverSettings, ScorerSettings, Settings
from tests.clocks import Clock
from tests.contract.retriever import DOCUMENTS, RetrieverContract
from tests.fakes.service import client_of, fake_retrieval, on_socket, ready
from tests.patience import PATIENCE
from tests.retrieval.fakes import SeededEncoder, vector_of
from tests.retrieval.test_directions import DIMENSION, topical
from tests.retrieval.test_frame import same

pytestmark = pytest.mark.asyncio(loop_scope="module")
UP_TO = PATIENCE
GONE = (RetrieverFailed, RetrieverUnavailable, InvalidConfiguration, NotReady, BodyTooLarge)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The indexes of the contract, "many": 500 documents, each third in a direction that float16 holds badly; "wide",
    with directions of its own; and "words", without vectors."""
    folder = tmp_path_factory.mktemp("made")
    catalog, encoder = LocalCatalog(folder / "indexes"), SeededEncoder()
    vectors = np.array([vector_of(document.content) for document in DOCUMENTS])
    catalog.create("trams", encoder=encoder.name, dimension=encoder.dimension).upsert(DOCUMENTS, vectors)
    catalog.create("own", encoder=None, dimension=4).upsert([Document(f"e{i}", "") for i in range(4)], np.eye(4))
    catalog.create("empty", encoder=encoder.name, dimension=encoder.dimension)
    catalog.create("foreign", encoder="other-encoder", dimension=4).upsert([Document("x", "")], np.ones((1, 4)))
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((500, 24))
    rows[::3] = np.sign(rows[::3]) * (1 + 4e-4 * rng.random((167, 24)))
    documents = [Document(f"ä {n}", "t" * n, metadata={"n": n, "of": ["many", None, 2**53]}) for n in range(500)]
    catalog.create("many", encoder=None, dimension=24).upsert(documents, rows)
    trams = [Document(str(number), f"tram {number}") for number in range(FEWEST)]
    catalog.create("wide", encoder=None, dimension=DIMENSION).upsert(trams, topical(FEWEST))
    words = catalog.create("words", encoder=None, dimension=0, kind="words")
    words.upsert(DOCUMENTS, np.empty((len(DOCUMENTS), 0)))
    catalog.close()
    return folder


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    """A copy of them."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


@asynccontextmanager
async def serving(settings: Settings, **options: Any) -> AsyncIterator[RemoteRetriever]:
    async with on_socket(create_retriever_app(settings, build=fake_retrieval)) as url:
        retriever = RemoteRetriever(url, **options)
        async with asyncio.timeout(UP_TO):
            while True:
                try:
                    await retriever.embed_query("probe")
                    break
                except RetrieverUnavailable:
                    await asyncio.sleep(0.005)
        yield retriever
        await retriever.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def retriever(made: Path) -> AsyncIterator[RemoteRetriever]:
    async with serving(Settings(data_directory=made)) as retriever:
        yield retriever


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local(made: Path) -> AsyncIterator[IndexRetriever]:
    part = fake_retrieval(Settings(data_directory=made))
    yield cast(IndexRetriever, part.retriever)
    await part.close()


class TestRemoteRetriever(RetrieverContract):
    """Everything that a Retriever does."""


@pytest.mark.parametrize("depth", [1, 7, 500, 10_000])
@pytest.mark.parametrize(
    "embedding",
    [
        [1] + 23 * [0],
        [0.1 * n - 1 for n in range(24)],
        np.linspace(-3, 7, 24),
        np.linspace(-3, 7, 24).astype(np.float32),
        np.linspace(-3, 7, 24).astype(np.float16),
        np.arange(1, 25)[None],
    ],
)
async def test_the_same_pool_bit_for_bit(
    retriever: RemoteRetriever, local: IndexRetriever, embedding: ArrayLike, depth: int
) -> None:
    here = await local.retrieve("many", Search("", depth, embedding))
    there = await retriever.retrieve("many", Search("", depth, embedding))
    same(here.pool, there.pool)
    assert list(there.warnings) == list(here.warnings)


@pytest.mark.parametrize("directions", [False, True])
async def test_vectors_in_the_directions_of_their_index(
    retriever: RemoteRetriever, local: IndexRetriever, directions: bool
) -> None:
    search = Search("tram", 100, topical(1)[0], directions=directions)
    here, there = [await one.retrieve("wide", search) for one in (local, retriever)]
    same(here.pool, there.pool)
    assert there.pool.embeddings.shape == (100, COUNT if directions else DIMENSION)


@pytest.mark.parametrize("query", ["a violin at dawn", "zebra"])
async def test_the_same_without_vectors(retriever: RemoteRetriever, local: IndexRetriever, query: str) -> None:
    here, there = [await one.retrieve("words", Search(query, 5)) for one in (local, retriever)]
    same(here.pool, there.pool)
    assert (there.vectors, list(there.warnings)) == (here.vectors, list(here.warnings))


async def test_the_same_of_everything_else(retriever: RemoteRetriever, local: IndexRetriever) -> None:
    same(
        (await local.retrieve("trams", Search("violins", 3))).pool,
        (await retriever.retrieve("trams", Search("violins", 3))).pool,
    )
    ids = ["ä 7", "nobody", "ä 0", "ä 499", "ä 7"]
    for one in (local, retriever):
        found = await one.documents("many", ids)
        assert found == await local.documents("many", ids)
        assert list(found) == ["ä 7", "ä 0", "ä 499"]
        assert await one.characters("many", ids) == {"ä 7": 7, "ä 0": 0, "ä 499": 499}
    assert await retriever.documents("many", []) == {}
    assert await retriever.characters("many", []) == {}
    np.testing.assert_array_equal(await retriever.embed_query("trams"), await local.embed_query("trams"))


async def test_texts_in_several_requests(retriever: RemoteRetriever, local: IndexRetriever) -> None:
    for count in (0, 1, 128, 300):
        texts = [f"text {n} " * (n % 30) for n in range(count)]
        here, there = await local.embed_documents(texts), await retriever.embed_documents(texts)
        np.testing.assert_array_equal(there.vectors, here.vectors)
        assert there.vectors.dtype == np.float32
        assert there.truncated == here.truncated


@pytest.mark.parametrize("vector", [[np.nan] * 24, [0.0] * 24, [np.inf] + 23 * [0.0], ["a"] * 24, [], [1.0] * 25])
async def test_vectors_without_a_direction(retriever: RemoteRetriever, local: IndexRetriever, vector: Any) -> None:
    for one in (local, retriever):
        with pytest.raises(InvalidEmbeddings):
            await one.retrieve("many", Search("", 5, vector))


async def test_limits_are_the_retriever_s(made: Path) -> None:
    async with serving(Settings(data_directory=made, limits=Limits(body_bytes=2048))) as retriever:
        with pytest.raises(LimitExceeded, match="2,048 bytes"):
            await retriever.documents("trams", ["i" * 3000])


KINDS = [
    kind
    for kind in vars(errors).values()
    if inspect.isclass(kind) and issubclass(kind, BoundaryMorphError) and kind is not BoundaryMorphError
]


class Failing:
    """A part whose retriever raises what it is told to, except on the probe."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.retriever = self

    async def embed_query(self, query: str) -> Any:
        if self.error is not None:
            raise self.error
        return np.eye(1, 4, dtype=np.float32)[0]

    async def check(self) -> None:
        pass

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not issubclass(kind, GONE)])  # a scorer's
async def test_what_the_retriever_raises_is_raised_here(kind: type[BoundaryMorphError]) -> None:
    failing = Failing()
    app = create_retriever_app(Settings(), build=lambda *_: cast(Parts, failing))
    async with on_socket(app) as url:
        retriever = RemoteRetriever(url)
        async with client_of(app) as client:
            await ready(client)
        failing.error = Overloaded("much to do", retry_after=7) if kind is Overloaded else kind("what and why")
        with pytest.raises(kind) as raised:
            await retriever.embed_query("q")
        assert type(raised.value) is kind
        assert raised.value.public == failing.error.public
        if isinstance(raised.value, Overloaded):
            assert raised.value.retry_after == pytest.approx(7, abs=0.5)
        await retriever.close()


async def test_a_retriever_that_breaks_or_starts() -> None:
    failing = Failing()
    failing.error = ZeroDivisionError()
    there = asyncio.Event()

    async def check() -> None:
        await there.wait()

    failing.check = check  # type: ignore[method-assign]
    async with on_socket(create_retriever_app(Settings(), build=lambda *_: cast(Parts, failing))) as url:
        retriever = RemoteRetriever(url)
        with pytest.raises(RetrieverUnavailable, match="warming up"):
            await retriever.embed_query("q")
        there.set()
        await asyncio.sleep(0.05)
        with pytest.raises(RetrieverFailed, match="500"):
            await retriever.embed_query("q")
        await retriever.close()


async def test_something_else_at_the_url() -> None:
    part = SimpleNamespace(check=asyncio.Event().wait, close=asyncio.Event().wait)
    part.close = Failing().close
    async with on_socket(create_scorer_app(Settings(), build=lambda *_: cast(Any, part))) as url:
        retriever = RemoteRetriever(url)
        with pytest.raises(RetrieverFailed, match="/embed/query does not exist there"):
            await retriever.embed_query("q")
        await retriever.close()


Behaviour = Callable[[asyncio.StreamWriter], Awaitable[None]]


def answer(body: object, status: int = 200, kind: str = "application/json", more: str = "") -> Behaviour:
    """more: a header."""
    content = body if isinstance(body, bytes) else orjson.dumps(body)

    async def behaviour(writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(content)}\r\n"
        head += f"{more}\r\n\r\n" if more else "\r\n"
        writer.write(head.encode() + content)
        await writer.drain()

    return behaviour


async def reset(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def hang(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


class Server:
    """A stand-in that does one thing after the other, whatever it is asked, and in the end the same with every request.

    checked: what it does with the requests of a check; None for the same.
    """

    def __init__(self, *script: Behaviour) -> None:
        *self.script, self.behaviour = script
        self.checked: Behaviour | None = None
        self.asked: Counter[str] = Counter()
        self.left = asyncio.Event()
        self.url = ""

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r")[0] or 0))
                path = head.split()[1]
                self.asked[path] += 1
                behaviour = self.script.pop(0) if self.script else self.behaviour
                if self.checked is not None and path in ("/embed/query", "/readyz"):
                    behaviour = self.checked
                doing = asyncio.ensure_future(behaviour(writer))
                leaving = asyncio.ensure_future(reader.read(1))
                await asyncio.wait([doing, leaving], return_when=asyncio.FIRST_COMPLETED)
                if leaving.done():
                    self.left.set()
                doing.cancel()
                leaving.cancel()
                await asyncio.gather(doing, leaving, return_exceptions=True)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def standing_in(*servers: Server, **options: Any) -> AsyncIterator[RemoteRetriever]:
    """One retriever in front of them all."""
    async with AsyncExitStack() as stack:
        for server in servers:
            listening = await asyncio.start_server(server.connection, "127.0.0.1", 0)
            stack.push_async_callback(listening.wait_closed)
            stack.callback(listening.close)
            server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        retriever = RemoteRetriever(*(f"{server.url}/" for server in servers), **options)
        stack.push_async_callback(retriever.close)
        yield retriever


@asynccontextmanager
async def scripted(*script: Behaviour, **options: Any) -> AsyncIterator[tuple[RemoteRetriever, Server]]:
    async with standing_in(server := Server(*script), **options) as retriever:
        yield retriever, server


DOCUMENT: dict[str, object] = {"documents": [{"id": "a", "text": "t", "title": None, "metadata": {}}]}


async def test_a_retriever_that_is_away_is_unavailable_at_once() -> None:
    """At once: nothing is waited for that an hour of timeout could change."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    retriever = RemoteRetriever(f"http://127.0.0.1:{port}", timeout=3600)
    async with asyncio.timeout(UP_TO):
        for call in (retriever.embed_query("q"), retriever.documents("i", []), retriever.retrieve("i", Search("q", 1))):
            with pytest.raises(RetrieverUnavailable, match=f"{port} cannot be reached"):
                await call
    await retriever.close()


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (answer(b"<html>bad gateway</html>", 502, "text/html"), RetrieverUnavailable),
        (answer(b"", 503), RetrieverUnavailable),
        (answer({"detail": "teapot"}, 418), RetrieverFailed),
        (answer({"type": "urn:boundarymorph:problem:new-one", "detail": "from the future"}, 422), RetrieverFailed),
        (answer({"type": "urn:boundarymorph:problem:retriever-failed", "detail": "of whom?"}, 502), RetrieverFailed),
        (
            answer({"type": "urn:boundarymorph:problem:retriever-unavailable", "detail": "Milvus"}, 503),
            RetrieverUnavailable,
        ),
        (answer([], 500), RetrieverFailed),
        (answer(b"not JSON"), RetrieverFailed),
        (answer([]), RetrieverFailed),
        (answer({"documents": {}}), RetrieverFailed),
        (answer({"documents": [{"id": 1, "text": "t", "title": None, "metadata": {}}]}), RetrieverFailed),
        (answer({"documents": [{"id": "1", "text": "t", "title": 0, "metadata": {}}]}), RetrieverFailed),
    ],
)
async def test_answers_that_are_none(reply: Behaviour, expected: type[BoundaryMorphError]) -> None:
    async with scripted(reply) as (retriever, _):
        with pytest.raises(expected, match=r"127\.0\.0\.1"):
            await retriever.documents("i", ["a"])


RATE_LIMITED = {"type": "urn:boundarymorph:problem:rate-limited", "detail": "100 a minute"}


@pytest.mark.parametrize(
    ("reply", "seconds"),
    [
        (answer(RATE_LIMITED, 429, more="retry-after: 7"), 7),
        (answer(b"<html>slow down</html>", 429, "text/html", "retry-after: 7"), 7),
        (answer(b"", 429), 1),
        (answer(b"", 429, more="retry-after: 0"), 1),
    ],
)
async def test_a_429_becomes_overloaded_with_its_pause(reply: Behaviour, seconds: float) -> None:
    """The retriever's own rate limit, or a proxy that knows no problem details."""
    async with scripted(reply) as (retriever, _):
        with pytest.raises(Overloaded, match=r"127\.0\.0\.1.* answered 429") as raised:
            await retriever.documents("i", ["a"])
        assert raised.value.retry_after == pytest.approx(seconds, abs=0.5)


async def test_what_reads_is_passed_on_in_time() -> None:
    async with scripted(answer({"detail": "none"}, 404), answer(b"away", 503), hang, timeout=0.05) as (
        retriever,
        server,
    ):
        passed = await retriever.forward("GET", "/indexes/i", {}, None)
        assert (passed.status_code, await passed.read()) == (404, b'{"detail":"none"}')
        for reason in ("answered 503: away", r"within 0\.05 s"):
            with pytest.raises(RetrieverUnavailable, match=reason):
                await retriever.forward("GET", "/indexes/i", {}, None)
        async with asyncio.timeout(UP_TO):
            await server.left.wait()


@pytest.mark.parametrize("method", ["GET", "PUT"])
@pytest.mark.parametrize("status", [301, 307, 401, 403])
async def test_what_is_said_to_us_is_not_passed_on(method: str, status: int) -> None:
    """The caller's own key is right, and no header tells it where a redirect leads."""
    said = {"type": "urn:boundarymorph:problem:forbidden", "detail": "the API key of gateway does not have the scope"}
    async with scripted(answer(said, status, more="location: http://elsewhere/")) as (retriever, _):
        with pytest.raises(RetrieverFailed, match=f"answered {status}: the API key of gateway") as raised:
            await retriever.forward(method, "/indexes/i", {}, None)
        assert "gateway" not in raised.value.public


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_what_a_proxy_says_of_the_retriever_is_not_passed_on(status: int) -> None:
    html, busy = (
        b"<html>no answer from 10.0.0.7</html>",
        {"type": f"{PROBLEM_TYPE}storage-unavailable", "detail": "busy"},
    )
    for method in ("GET", "PUT"):
        async with scripted(answer(html, status, "text/html")) as (retriever, _):
            with pytest.raises(RetrieverUnavailable, match=f"answered {status}") as raised:
                await retriever.forward(method, "/indexes/i", {}, None)
            assert "10.0.0.7" not in raised.value.public
    async with scripted(answer(busy, status, "application/problem+json")) as (retriever, _):
        passed = await retriever.forward("PUT", "/indexes/i", {}, None)
        assert (passed.status_code, orjson.loads(await passed.read())) == (status, busy)


async def test_what_writes_is_passed_on_however_long_it_takes() -> None:
    async def slow(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        await answer({"detail": "full"}, 507)(writer)

    async def body() -> AsyncIterator[bytes]:
        yield b"{}"

    async with scripted(slow, timeout=0.05) as (retriever, _):
        passed = await retriever.forward("POST", "/indexes/i/documents", {"content-length": "2"}, body())
        assert (passed.status_code, await passed.read()) == (507, b'{"detail":"full"}')


async def test_an_encoder_that_is_exchanged_meanwhile() -> None:
    parts = [Embeddings(np.eye(128, dtype=np.float32), encoder=name) for name in ("old", "new")]
    async with scripted(*(answer(frame.encode_embeddings(part)) for part in parts)) as (retriever, _):
        with pytest.raises(RetrieverFailed, match="its encoder has changed"):
            await retriever.embed_documents(256 * ["t"])


@pytest.mark.parametrize("counts", [[], [1, 2, 3], [1, -1], [1, "2"], [1, True], {"a": 1}])
async def test_counts_that_are_none(counts: object) -> None:
    async with scripted(answer({"characters": counts})) as (retriever, _):
        with pytest.raises(RetrieverFailed, match="characters"):
            await retriever.characters("i", ["a", "b"])


async def test_frames_that_are_none() -> None:
    calls: list[Callable[[Retriever], Awaitable[Any]]] = [
        lambda retriever: retriever.retrieve("i", Search("q", 1)),
        lambda retriever: retriever.embed_query("q"),
        lambda retriever: retriever.embed_documents(["t"]),
    ]
    for call in calls:
        async with scripted(answer(DOCUMENT)) as (retriever, _):
            with pytest.raises(MalformedFrame, match=r"127\.0\.0\.1.*header"):
                await call(retriever)


async def test_a_closed_retriever_refuses_calls() -> None:
    retriever = RemoteRetriever("http://127.0.0.1:1")
    await retriever.close()
    with pytest.raises(RuntimeError):
        await retriever.embed_query("q")


@pytest.mark.parametrize(
    "url",
    ["", "retriever:8082", "ftp://host", "http://", "http://host:port", "http://user:secret@host", "http://host?a=b",
     "http://host#a", "http://host:0", "http://ho st"],
)  # fmt: skip
async def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(InvalidConfiguration) as raised:
        RemoteRetriever(url)
    assert "secret" not in str(raised.value)


def encoded_by(name: str) -> Behaviour:
    return answer(frame.encode_embeddings(Embeddings(np.ones((1, 1), "f4"), encoder=name)))


async def test_several_retrievers_must_run_one_encoder() -> None:
    async with standing_in(Server(encoded_by("e/1")), Server(encoded_by("e/2")), clock=Clock()) as retriever:
        encoders = {(await retriever.embed_documents(["t"])).encoder for _ in range(20)}
        assert len(encoders) == 1
        faults = [str(member.fault) for member in retriever._balancer.replicas.values()]
        assert sum("serves e/" in fault for fault in faults) == 1


async def test_one_of_several_retrievers_is_not_waited_for_as_long_as_the_only_one() -> None:
    servers = [Server(hang), Server(hang)]
    async with standing_in(*servers):
        for urls, seconds in (([servers[0].url], "0.2"), ([server.url for server in servers], "0.05")):
            settings = Settings(
                retriever=RetrieverSettings(url=tuple(urls), timeout_seconds=0.2, attempt_seconds=0.05),
                scorer=ScorerSettings(url=("http://127.0.0.1:1",)),
            )
            gateway = build_gateway(settings)
            with pytest.raises(RetrieverUnavailable, match=f"did not answer within {seconds} s"):
                await gateway.retriever.documents("i", ["a"])
            await gateway.close()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_writing_is_not_tried_twice(method: str) -> None:
    servers = [Server(reset), Server(reset)]
    async with standing_in(*servers) as retriever:
        with pytest.raises(RetrieverUnavailable):
            await retriever.forward(method, "/indexes/i/documents", {}, None)
        assert sum(server.asked["/indexes/i/documents"] for server in servers) == 1


@pytest.mark.parametrize("broken", [reset, hang, answer(b"away", 503), answer({}, 500), answer(RATE_LIMITED, 429)])
async def test_reading_is_tried_elsewhere(broken: Behaviour) -> None:
    servers = [Server(broken), Server(answer(b"[]"))]
    async with standing_in(*servers, clock=Clock(), timeout=0.5 if broken is hang else UP_TO) as retriever:
        for _ in range(20):
            passed = await retriever.forward("GET", "/indexes", {}, None)
            assert (passed.status_code, await passed.read()) == (200, b"[]")
        assert servers[0].asked["/indexes"] == (2 if broken is reset else 1), "it is left alone then"
