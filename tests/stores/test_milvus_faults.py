"""Test a Milvus that is missing, never answers or refuses, and its recovery."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from unittest.mock import Mock

import grpc
import numpy as np
import pytest
from pymilvus import MilvusException
from pymilvus.client.types import Status

from boundarymorph.errors import BoundaryMorphError, RetrieverFailed, RetrieverUnavailable, UnknownIndex
from boundarymorph.retrieval.document import Search
from boundarymorph.retrieval.index_retriever import IndexRetriever
from boundarymorph.retrieval.stores.catalog import StoreCatalog
from boundarymorph_stores import milvus_connection
from boundarymorph_stores.milvus import MilvusStore
from boundarymorph_stores.milvus_connection import MilvusConnection
from tests.patience import PATIENCE
from tests.ports import free_port


class Refused(grpc.RpcError, grpc.Call):  # type: ignore[misc]
    """An error as gRPC raises it."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "what and why"


Refused.__abstractmethods__ = frozenset()
AWAY = MilvusException(Status.CONNECT_FAILED, "what and why")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Replace the client of `pymilvus` by a mock."""
    client = Mock()
    monkeypatch.setattr(milvus_connection, "MilvusClient", Mock(return_value=client))
    return client


@pytest.mark.parametrize("listens", [False, True])
async def test_milvus_that_does_not_answer_is_unavailable(listens: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) if listens else nullcontext() as door:
        port = door.getsockname()[1] if door else free_port()
        catalog = StoreCatalog(MilvusStore(MilvusConnection(f"http://127.0.0.1:{port}", timeout=0.3)))
        retriever = IndexRetriever(catalog, None)
        for call in (
            retriever.retrieve("a", Search("", 5, np.ones(4))),
            retriever.documents("a", ["d0"]),
            retriever.characters("a", ["d0"]),
        ):
            with pytest.raises(RetrieverUnavailable):
                await call
        for request in (catalog.check, catalog.list, lambda: catalog.create("a", encoder=None, dimension=4)):
            with pytest.raises(RetrieverUnavailable):
                request()
        await retriever.close()
        catalog.close()


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (MilvusException(1, "what and why"), RetrieverUnavailable, "does not work now: what and why"),
        (AWAY, RetrieverUnavailable, "what and why"),
        (MilvusException(100, "what and why"), UnknownIndex, "is gone"),
        (Refused(grpc.StatusCode.UNAVAILABLE), RetrieverUnavailable, "what and why"),
        (Refused(grpc.StatusCode.DEADLINE_EXCEEDED), RetrieverUnavailable, "what and why"),
        (Refused(grpc.StatusCode.UNAUTHENTICATED), RetrieverFailed, "rejects its api_key"),
        (Refused(grpc.StatusCode.PERMISSION_DENIED), RetrieverFailed, "rejects its api_key"),
    ],
)
def test_milvus_error_is_raised_as_a_typed_error(
    client: Mock, error: Exception, kind: type[BoundaryMorphError], said: str
) -> None:
    connection = MilvusConnection("http://host:1", timeout=7.0)
    client.search.side_effect = [error, "found"]
    with pytest.raises(kind, match=said) as raised:
        connection.call("search", "a", limit=3)
    assert type(raised.value) is kind
    assert connection.call("search", "a", limit=3) == "found"
    client.search.assert_called_with("a", limit=3, timeout=7.0)


@pytest.mark.parametrize("error", [AWAY, Refused(grpc.StatusCode.UNAVAILABLE)])
def test_milvus_after_a_failure_is_tried_by_one_call_at_a_time(client: Mock, error: Exception) -> None:
    """The other calls fail until this call has succeeded."""
    connection, begun, goes_on = MilvusConnection("http://host:1"), threading.Event(), threading.Event()
    client.search.side_effect = error
    with pytest.raises(RetrieverUnavailable):
        connection.call("search")

    def slow(timeout: float) -> str:
        begun.set()
        assert goes_on.wait(PATIENCE)
        return "found"

    client.search.side_effect = slow
    with ThreadPoolExecutor(1) as thread:
        trial = thread.submit(connection.call, "search")
        assert begun.wait(PATIENCE)
        for _ in range(3):
            with pytest.raises(RetrieverUnavailable):
                connection.call("search")
        assert not trial.done()
        goes_on.set()
        assert trial.result() == connection.call("search") == "found"
    assert client.search.call_count == 3
