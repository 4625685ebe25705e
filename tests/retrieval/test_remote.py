"""Test RemoteRetriever over real sockets: contract, equal bits, and failures."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson
import pytest
import pytest_asyncio
from numpy.typing import ArrayLike

from boundarymorph import errors
from boundarymorph.errors import (
    PROBLEM_TYPE,
    BoundaryMorphError,
    InvalidConfiguration,
    InvalidEmbeddings,
    MalformedFrame,
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
from boundarymorph.server.app import create_retriever_app
from boundarymorph.settings import Settings
from tests.clocks import Clock
from tests.contract.retriever import DOCUMENTS, RetrieverContract
from tests.fakes import service
from tests.fakes.service import fake_retrieval
from tests.fakes.upstream import Behaviour, Upstream, answer, hang, listening, reset
from tests.patience import PATIENCE, until_async
from tests.retrieval.fakes import SeededEncoder, vector_of
from tests.retrieval.test_directions import DIMENSION, topical
from tests.retrieval.test_frame import check_equal

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def indexes_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the indexes of the contract, and three more.

    In "many", every third of 500 documents has a direction that float16 represents badly. "wide" has directions, and
    "words" has no vectors.
    """
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


@asynccontextmanager
async def serving(build: Callable[..., Any], settings: Settings) -> AsyncIterator[RemoteRetriever]:
    async with service.listening(create_retriever_app(settings, build=build)) as (url, _):
        retriever = RemoteRetriever(url)
        yield retriever
        await retriever.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def retriever(indexes_folder: Path) -> AsyncIterator[RemoteRetriever]:
    async with serving(fake_retrieval, Settings(data_directory=indexes_folder)) as retriever:
        yield retriever


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local(indexes_folder: Path) -> AsyncIterator[IndexRetriever]:
    part = fake_retrieval(Settings(data_directory=indexes_folder))
    yield cast(IndexRetriever, part.retriever)
    await part.close()


class TestRemoteRetriever(RetrieverContract):
    """The remote retriever fulfils the contract of retrievers."""


@pytest.mark.parametrize("depth", [1, 7, 10_000])
@pytest.mark.parametrize(
    "embedding", [[0.1 * n - 1 for n in range(24)], np.linspace(-3, 7, 24).astype(np.float16), np.arange(1, 25)[None]]
)
async def test_remote_pool_equals_the_local_one_bit_for_bit(
    retriever: RemoteRetriever, local: IndexRetriever, embedding: ArrayLike, depth: int
) -> None:
    here = await local.retrieve("many", Search("", depth, embedding))
    there = await retriever.retrieve("many", Search("", depth, embedding))
    check_equal(here.pool, there.pool)
    assert list(there.warnings) == list(here.warnings)


async def test_remote_pool_equals_the_local_one_for_every_index_kind(
    retriever: RemoteRetriever, local: IndexRetriever
) -> None:
    for index, search in (
        ("trams", Search("violins", 3)),
        ("wide", Search("tram", 100, topical(1)[0], directions=False)),
        ("wide", Search("tram", 100, topical(1)[0], directions=True)),
        ("words", Search("a violin at dawn", 5)),
        ("words", Search("zebra", 5)),
    ):
        here, there = [await one.retrieve(index, search) for one in (local, retriever)]
        check_equal(here.pool, there.pool)
        assert (there.vectors, list(there.warnings)) == (here.vectors, list(here.warnings))
        assert index != "wide" or there.pool.embeddings.shape == (100, COUNT if search.directions else DIMENSION)


async def test_remote_embeddings_equal_local_ones_across_requests(
    retriever: RemoteRetriever, local: IndexRetriever
) -> None:
    np.testing.assert_array_equal(await retriever.embed_query("trams"), await local.embed_query("trams"))
    for count in (0, 128, 300):
        texts = [f"text {n} " * (n % 30) for n in range(count)]
        here, there = await local.embed_documents(texts), await retriever.embed_documents(texts)
        np.testing.assert_array_equal(there.vectors, here.vectors)
        assert there.vectors.dtype == np.float32 and there.truncated == here.truncated
    for vector in ([np.nan] * 24, [0.0] * 24, ["a"] * 24, [], [1.0] * 25):
        for one in (local, retriever):
            with pytest.raises(InvalidEmbeddings):
                await one.retrieve("many", Search("", 5, vector))


@asynccontextmanager
async def scripted_retrievers(*scripts: list[Behaviour], **options: Any) -> AsyncIterator[tuple[RemoteRetriever, Any]]:
    """Yield a retriever, and servers that follow scripts and repeat their last behaviour."""
    servers = [Upstream() for _ in scripts]
    for server, script in zip(servers, scripts, strict=True):
        *server.script, server.behaviour = script
    async with listening(*servers):
        retriever = RemoteRetriever(*(f"{server.url}/" for server in servers), **options)
        yield retriever, servers
        await retriever.close()


async def test_unreachable_retriever_is_unavailable_at_once() -> None:
    """The timeout is an hour, but the call does not wait."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    retriever = RemoteRetriever(f"http://127.0.0.1:{port}", timeout=3600)
    async with asyncio.timeout(PATIENCE):
        for call in (retriever.embed_query("q"), retriever.documents("i", []), retriever.retrieve("i", Search("q", 1))):
            with pytest.raises(RetrieverUnavailable, match=f"{port} cannot be reached"):
                await call
    await retriever.close()
    with pytest.raises(RuntimeError):
        await retriever.embed_query("q")


def problem(slug: str, status: int) -> Behaviour:
    return answer({"type": f"{PROBLEM_TYPE}{slug}", "detail": "said"}, status, content_type="application/problem+json")


HTML = b"<html>no answer from 10.0.0.7</html>"
PAUSED = answer(HTML, 429, retry_after="7")


@pytest.mark.parametrize(
    ("slug", "kind"),
    [
        ("empty-index", errors.EmptyIndex),
        ("unknown-index", errors.UnknownIndex),
        ("encoder-failed", errors.EncoderFailed),
        ("body-too-large", errors.LimitExceeded),
    ],
)
async def test_problem_of_the_retriever_is_raised_as_its_error(slug: str, kind: type[BoundaryMorphError]) -> None:
    async with scripted_retrievers([problem(slug, 422)]) as (retriever, _):
        with pytest.raises(kind, match="said") as raised:
            await retriever.embed_query("q")
        assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (problem("not-ready", 503), RetrieverUnavailable),
        (answer(HTML, 502, content_type="text/html"), RetrieverUnavailable),
        (answer(b"", 503), RetrieverUnavailable),
        (answer({"detail": "teapot"}, 418), RetrieverFailed),
        (problem("new-one", 422), RetrieverFailed),
        (problem("retriever-failed", 502), RetrieverFailed),
        (problem("retriever-unavailable", 503), RetrieverUnavailable),
        (answer([], 500), RetrieverFailed),
        (answer(b"not JSON"), RetrieverFailed),
        (answer([]), RetrieverFailed),
        (answer({"documents": {}}), RetrieverFailed),
        (answer({"documents": [{"id": 1, "text": "t", "title": None, "metadata": {}}]}), RetrieverFailed),
        (PAUSED, Overloaded),
        (problem("rate-limited", 429), Overloaded),
    ],
)
async def test_unusable_answer_of_a_retriever_raises_a_typed_error(
    reply: Behaviour, expected: type[BoundaryMorphError]
) -> None:
    async with scripted_retrievers([reply]) as (retriever, _):
        with pytest.raises(expected, match=r"127\.0\.0\.1") as raised:
            await retriever.documents("i", ["a"])
        if isinstance(raised.value, Overloaded):
            assert raised.value.retry_after == pytest.approx(7 if reply is PAUSED else 1, abs=0.5)


async def test_malformed_frames_and_wrong_counts_are_refused() -> None:
    calls: list[Callable[[Retriever], Awaitable[Any]]] = [
        lambda retriever: retriever.retrieve("i", Search("q", 1)),
        lambda retriever: retriever.embed_query("q"),
        lambda retriever: retriever.embed_documents(["t"]),
    ]
    for call in calls:
        async with scripted_retrievers([answer({"documents": []})]) as (retriever, _):
            with pytest.raises(MalformedFrame, match=r"127\.0\.0\.1.*header"):
                await call(retriever)
    for counts in ([], [1, 2, 3], [1, -1], [1, "2"], [1, True], {"a": 1}):
        async with scripted_retrievers([answer({"characters": counts})]) as (retriever, _):
            with pytest.raises(RetrieverFailed, match="characters"):
                await retriever.characters("i", ["a", "b"])


async def test_encoder_change_during_a_call_fails_the_call() -> None:
    parts = [Embeddings(np.eye(128, dtype=np.float32), encoder=name) for name in ("old", "new")]
    async with scripted_retrievers([answer(frame.encode_embeddings(part)) for part in parts]) as (retriever, _):
        with pytest.raises(RetrieverFailed, match="its encoder has changed"):
            await retriever.embed_documents(256 * ["t"])


async def test_forwarded_read_has_a_time_limit() -> None:
    script = [answer({"detail": "none"}, 404), answer(b"away", 503), hang]
    async with scripted_retrievers(script, timeout=0.5) as (retriever, [server]):
        passed = await retriever.forward("GET", "/indexes/i", {}, None)
        assert (passed.status_code, await passed.read()) == (404, b'{"detail":"none"}')
        for reason in ("answered 503: away", "within 0.5 s"):
            with pytest.raises(RetrieverUnavailable, match=reason):
                await retriever.forward("GET", "/indexes/i", {}, None)
        await until_async(lambda: server.left == 1)


@pytest.mark.parametrize("method", ["GET", "PUT"])
@pytest.mark.parametrize("status", [301, 401, 403, 502, 503])
async def test_forward_hides_redirects_and_errors_between_our_servers(method: str, status: int) -> None:
    """The caller's own key is valid, so refusals and redirects of our servers do not reach it."""
    kind = RetrieverFailed if status < 500 else RetrieverUnavailable
    async with scripted_retrievers([answer(HTML, status, content_type="text/html", location="http://b/")]) as (
        retriever,
        _,
    ):
        with pytest.raises(kind, match=f"answered {status}") as raised:
            await retriever.forward(method, "/indexes/i", {}, None)
        assert "10.0.0.7" not in raised.value.public
    async with scripted_retrievers([problem("storage-unavailable", 503)]) as (retriever, _):
        passed = await retriever.forward("PUT", "/indexes/i", {}, None)
        assert (passed.status_code, orjson.loads(await passed.read())["detail"]) == (503, "said")


@pytest.mark.parametrize("url", ["", "ftp://host", "http://user:secret@host", "http://host?a=b"])
async def test_malformed_retriever_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidConfiguration) as raised:
        RemoteRetriever(url)
    assert "secret" not in str(raised.value)


async def test_retrievers_with_different_encoders_are_not_mixed() -> None:
    frames = [frame.encode_embeddings(Embeddings(np.ones((1, 1), "f4"), encoder=name)) for name in ("e/1", "e/2")]
    async with scripted_retrievers(*([answer(each)] for each in frames), clock=Clock()) as (retriever, _):
        encoders = {(await retriever.embed_documents(["t"])).encoder for _ in range(20)}
        assert len(encoders) == 1
        faults = [str(member.fault) for member in retriever._balancer.replicas.values()]
        assert sum("serves e/" in fault for fault in faults) == 1


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_forwarded_write_is_not_repeated(method: str) -> None:
    async with scripted_retrievers([reset], [reset]) as (retriever, servers):
        with pytest.raises(RetrieverUnavailable):
            await retriever.forward(method, "/indexes/i/documents", {}, None)
        assert [request.method for server in servers for request in server.requests].count(method) == 1


@pytest.mark.parametrize("broken", [reset, answer(b"away", 503), answer({}, 500)])
async def test_forwarded_read_is_repeated_at_another_retriever(broken: Behaviour) -> None:
    async with scripted_retrievers([broken], [answer(b"[]")], clock=Clock()) as (retriever, _):
        for _ in range(20):
            passed = await retriever.forward("GET", "/indexes", {}, None)
            assert (passed.status_code, await passed.read()) == (200, b"[]")
