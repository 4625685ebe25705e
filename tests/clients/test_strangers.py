"""Test inputs and environments of the first users of the clients."""

import asyncio
import copy
import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from haystack import Document as HaystackDocument
from haystack.utils import Secret
from langchain_core.documents import Document as LangChainDocument
from llama_index.core.schema import NodeWithScore, TextNode

from boundarymorph_client import AsyncClient, Client, InvalidArgument, haystack, langchain, llamaindex
from boundarymorph_client.attempts import Connection
from tests.clients.conftest import Recorder
from tests.patience import PATIENCE

pytestmark = pytest.mark.strangers

KEY = "bm_a-secret-that-nobody-prints"
POOL = ["the sea", "the hills", "the valley"]
NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize("given", [f"{KEY}\n", f"{KEY}\r\n", f" \t{KEY} ", f"\u00a0{KEY}\u2003"], ids=ascii)
@pytest.mark.parametrize("by", ["argument", "variable"])
def test_client_strips_white_space_around_key_and_url(monkeypatch: pytest.MonkeyPatch, given: str, by: str) -> None:
    monkeypatch.setenv("BOUNDARYMORPH_API_KEY", given if by == "variable" else "another")
    made = Connection.create(f"{NOWHERE}/\n", given if by == "argument" else None, 1, 1)
    assert (made.url, made.api_key) == (NOWHERE, KEY)


ASKING: dict[str, Callable[[str], Any]] = {
    "Client": lambda key: Client(api_key=key),
    "AsyncClient": lambda key: AsyncClient(api_key=key),
    "LangChain": lambda key: langchain.BoundaryMorphRerank(base_url=NOWHERE, api_key=key).compress_documents(
        [LangChainDocument("a")], "q"
    ),
    "LlamaIndex": lambda key: llamaindex.BoundaryMorphRerank(base_url=NOWHERE, api_key=key).postprocess_nodes(
        [NodeWithScore(node=TextNode(text="a"))], query_str="q"
    ),
    "Haystack": lambda key: haystack.BoundaryMorphRanker(base_url=NOWHERE, api_key=Secret.from_token(key)).run(
        "q", [HaystackDocument(content="a")]
    ),
}


@pytest.mark.parametrize("ask", ASKING)
@pytest.mark.parametrize(
    "key",
    [f"“{KEY}”", f"{KEY}\nX-Other: 1", f"{KEY} {KEY}", f"{KEY}\0", f"Bearer {KEY}", f"{KEY}é", f"{KEY}\u200b"],
    ids=ascii,
)
def test_key_that_no_header_can_carry_is_refused_without_echo(ask: str, key: str) -> None:
    with pytest.raises(InvalidArgument, match="the API key has characters") as raised:
        ASKING[ask](key)
    assert KEY not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    "given",
    [
        "127.0.0.1:8080", "localhost:8080", "ftp://host", "http://", "http://ho\nst", "http://host:port",
        "http://host:70000", "http://[::1", "http://host/?key=1", "user:hunter2@host:8080",
        "http://user:hunter2@ho\nst", "http://user:hunter2@",
    ],
    ids=ascii,
)  # fmt: skip
def test_unusable_url_is_refused_without_its_password(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for url in (given, None):
        with pytest.raises(InvalidArgument, match=r"the URL of the service.* give it as http://HOST:PORT") as raised:
            Client(url)
        assert "hunter2" not in str(raised.value) and raised.value.__cause__ is None
        monkeypatch.setenv("BOUNDARYMORPH_URL", given)


async def statuses(client: AsyncClient, times: int = 1) -> list[str]:
    found = await asyncio.gather(*(client.select("sea", pool=POOL, budget=1, k=1) for _ in range(times)))
    return [selection.status for selection in found]


def test_async_client_works_in_successive_event_loops(url: str) -> None:
    client = AsyncClient(url)
    for times in (1, 1, 1, 30):
        assert asyncio.run(statuses(client, times)) == ["complete"] * times
    assert len(client._pools._clients) == 1, "nothing is kept for loops that are closed"


def _select_in_child(url: str, calls: int) -> list[str]:
    """Send requests with the parent's client."""
    return [CLIENTS[url].select("sea", pool=[f"{os.getpid()} {n}", "hill"], k=2).documents[0].id for n in range(calls)]


CLIENTS: dict[str, Client] = {}


def test_client_opens_its_own_connections_after_a_fork(url: str, recorder: Recorder) -> None:
    client = CLIENTS[url] = Client(url)
    assert client.ready().status == client.ready().status == "ok"
    with multiprocessing.get_context("fork").Pool(4) as pool:
        answers = pool.starmap_async(_select_in_child, [(url, 10)] * 4, chunksize=1)
        assert all(len(answer) == 10 for answer in answers.get(PATIENCE))
    assert client.ready().status == "ok"
    assert 2 <= recorder.connections <= 5, "one of the parent, and at most one of each child"


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_clients_can_be_copied_and_pickled(kind: Any) -> None:
    client = kind("http://a", api_key="k", timeout=3, retries=1)
    for again in (copy.copy(client), copy.deepcopy(client), pickle.loads(pickle.dumps(client))):
        assert again._connection == client._connection
        assert again._pools is not client._pools
    http = httpx.Client() if kind is Client else httpx.AsyncClient()
    with pytest.raises(TypeError, match="of yours"):
        copy.deepcopy(kind(http=http))
