"""Milvus that is not there, never answers, refuses, or is killed in between: a typed error in time, and back again."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import numpy as np
import pytest
from milvus_lite.adapter.grpc.servicer import MilvusServicer
from milvus_lite.db import MilvusLite
from pymilvus import MilvusClient
from pymilvus.grpc_gen import common_pb2, milvus_pb2, milvus_pb2_grpc

from boundarymorph.errors import BoundaryMorphError, RetrieverFailed, RetrieverUnavailable
from boundarymorph.retrieval.document import Document, Search
from boundarymorph.retrieval.index_retriever import IndexRetriever
from boundarymorph.retrieval.stores.catalog import StoreCatalog
from boundarymorph_stores import milvus_connection
from boundarymorph_stores.milvus import MilvusStore
from boundarymorph_stores.milvus_connection import MilvusConnection
from tests.contract.vector_index import names, unit
from tests.patience import PATIENCE
from tests.ports import free_port


@contextmanager
def silent() -> Iterator[str]:
    """A server that accepts connections, and never sends anything."""
    held: list[socket.socket] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                held.append(door.accept()[0])

    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{door.getsockname()[1]}"
        door.shutdown(socket.SHUT_RDWR)
    for connection in held:
        connection.close()


class Moody(MilvusServicer):  # type: ignore[misc]
    """Milvus that does what it is told to in place of a search or a write."""

    def __init__(self, database: MilvusLite) -> None:
        super().__init__(database)
        self.mood: Any = None
        self.asleep, self.woken = threading.Event(), threading.Event()

    def Search(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._moody(milvus_pb2.SearchResults, context) or super().Search(request, context)

    def Upsert(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._moody(milvus_pb2.MutationResult, context) or super().Upsert(request, context)

    def _moody(self, answer: Any, context: Any) -> Any:
        match self.mood:
            case grpc.StatusCode():
                context.abort(self.mood, "no")
            case "asleep":
                self.asleep.set()
                self.woken.wait(30)
            case int():
                return answer(status=common_pb2.Status(code=self.mood, error_code=1, reason="what and why"))
        return None


@contextmanager
def moody(directory: Path, port: int = 0) -> Iterator[tuple[str, Moody]]:
    database = MilvusLite(str(directory))
    server, servicer = grpc.server(ThreadPoolExecutor(8)), Moody(database)
    milvus_pb2_grpc.add_MilvusServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}", servicer
    finally:
        servicer.woken.set()
        server.stop(None).wait()
        database.close()


def catalog_of(url: str, timeout: float = 10.0) -> StoreCatalog:
    return StoreCatalog(MilvusStore(MilvusConnection(url, timeout=timeout)))


def fill(catalog: StoreCatalog, count: int = 30) -> None:
    index = catalog.create("a", encoder=None, dimension=4)
    index.upsert([Document(id, f"text {id}") for id in names(count)], unit(count, 4))


async def all_calls_raise(catalog: StoreCatalog, kind: type[BoundaryMorphError]) -> None:
    retriever = IndexRetriever(catalog, None)
    with pytest.raises(kind):
        await retriever.retrieve("a", Search("", 5, np.ones(4)))
    with pytest.raises(kind):
        await retriever.documents("a", ["d0"])
    with pytest.raises(kind):
        await retriever.characters("a", ["d0"])
    for call in (catalog.check, catalog.list, lambda: catalog.create("a", encoder=None, dimension=4)):
        with pytest.raises(kind):
            call()
    await retriever.close()
    catalog.close()


async def test_nobody_is_there() -> None:
    await all_calls_raise(catalog_of(f"http://127.0.0.1:{free_port()}", timeout=0.3), RetrieverUnavailable)


async def test_somebody_who_never_answers() -> None:
    with silent() as url:
        await all_calls_raise(catalog_of(url, timeout=0.3), RetrieverUnavailable)


def test_those_who_wait_for_a_connection_fail_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[str] = []

    def attempt(url: str, **options: Any) -> MilvusClient:
        attempts.append(url)
        time.sleep(0.5)  # so that all wait for it
        return MilvusClient(url, **options)

    monkeypatch.setattr(milvus_connection, "MilvusClient", attempt)
    with silent() as url, ThreadPoolExecutor(8) as threads:
        connection = MilvusConnection(url, timeout=1.0)
        for call in [threads.submit(connection.call, "list_collections") for _ in range(8)]:
            with pytest.raises(RetrieverUnavailable, match=url):
                call.result(timeout=PATIENCE)
    assert attempts == [url]


def test_one_call_at_a_time_tries_a_milvus_that_was_away(tmp_path: Path) -> None:
    """The others fail meanwhile, and go through once it has."""
    search = Search("", 5, np.ones(4))
    with moody(tmp_path) as (url, _):
        catalog = catalog_of(url, timeout=20.0)
        fill(catalog)
        index = catalog.get("a")
    with pytest.raises(RetrieverUnavailable):
        index.retrieve(search)
    with moody(tmp_path, urlsplit(url).port or 0) as (_, servicer), ThreadPoolExecutor(1) as thread:
        servicer.mood = "asleep"
        trial = thread.submit(index.retrieve, search)
        while not servicer.asleep.wait(0.1):
            if trial.done():  # gRPC pauses before it connects again
                trial = thread.submit(index.retrieve, search)
        for _ in range(3):
            with pytest.raises(RetrieverUnavailable):
                index.retrieve(search)
        assert not trial.done()
        servicer.mood = None
        servicer.woken.set()
        assert len(trial.result().pool) == 5
        assert len(index.retrieve(search).pool) == 5
    catalog.close()


@pytest.fixture(scope="module")
def answering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Moody]]:
    """One with an index, for all that it may answer."""
    with moody(tmp_path_factory.mktemp("moody")) as (url, servicer):
        catalog = catalog_of(url)
        fill(catalog)
        catalog.close()
        yield url, servicer


@pytest.mark.parametrize(
    ("mood", "kind", "said"),
    [
        (1, RetrieverUnavailable, "what and why"),
        (65_535, RetrieverUnavailable, "what and why"),
        ("asleep", RetrieverUnavailable, "does not work now"),
        (grpc.StatusCode.UNAVAILABLE, RetrieverUnavailable, "no"),
        (grpc.StatusCode.INTERNAL, RetrieverUnavailable, "no"),
        (grpc.StatusCode.UNAUTHENTICATED, RetrieverFailed, "rejects its api_key"),
        (grpc.StatusCode.PERMISSION_DENIED, RetrieverFailed, "rejects its api_key"),
    ],
)
def test_it_answers_with_an_error(
    answering: tuple[str, Moody], mood: Any, kind: type[BoundaryMorphError], said: str
) -> None:
    url, servicer = answering
    impatient = catalog_of(url, timeout=1.0)
    index = impatient.get("a")
    servicer.woken.clear()
    servicer.mood = mood
    with pytest.raises(kind, match=said) as raised:
        index.retrieve(Search("", 5, np.ones(4)))
    assert type(raised.value) is kind
    with pytest.raises(kind, match=said):
        index.upsert([Document("x", "")], unit(1, 4))
    servicer.mood = None
    servicer.woken.set()
    assert len(index.retrieve(Search("", 5, np.ones(4))).pool) == 5
    impatient.close()
