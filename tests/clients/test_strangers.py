"""What people who had not seen the clients before gave to them, and where they ran them."""

from __future__ import annotations

import asyncio
import copy
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from haystack import Document as HaystackDocument
from haystack.utils import Secret
from langchain_core.documents import Document as LangChainDocument
from llama_index.core.schema import NodeWithScore, TextNode

from boundarymorph import Selector
from boundarymorph_client import AsyncClient, Client, ConnectionFailed, InvalidArgument, haystack, langchain, llamaindex
from tests.clients.examples import EXAMPLES
from tests.clients.flavours import Connect
from tests.clients.way import Recorder, Way
from tests.patience import PATIENCE

pytestmark = pytest.mark.strangers

KEY = "bm_a-secret-that-nobody-prints"
POOL = ["the sea", "the hills", "the valley"]
WHITE_SPACE = [
    pytest.param(f"{KEY}\n", id="newline"),
    pytest.param(f"{KEY}\r\n", id="carriage return"),
    pytest.param(f" \t{KEY} ", id="blanks"),
    pytest.param(f"\u00a0{KEY}\u2003", id="blanks of Unicode"),
]
WRONG_KEYS = [
    pytest.param(f"“{KEY}”", id="typographic quotes"),
    pytest.param(f"{KEY}\nX-Other: 1", id="another header"),
    pytest.param(f"{KEY} {KEY}", id="two keys"),
    pytest.param(f"{KEY}\0", id="NUL"),
    pytest.param(f"Bearer {KEY}", id="with its scheme"),
    pytest.param(f"{KEY}é", id="accent"),
    pytest.param(f"{KEY}\u200b", id="zero-width space"),
]


@pytest.mark.parametrize("given", WHITE_SPACE)
@pytest.mark.parametrize("by", ["argument", "variable"])
async def test_white_space_around_a_key_is_removed(
    connect: Connect, url: str, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, given: str, by: str
) -> None:
    if by == "variable":
        monkeypatch.setenv("BOUNDARYMORPH_API_KEY", given)
    client = connect(f"{url}\n", **({"api_key": given} if by == "argument" else {}))
    assert (await client.select("sea", pool=POOL, budget=1, k=1)).status == "complete"
    assert recorder.seen[-1].headers["authorization"] == f"Bearer {KEY}"


def component(kind: Any, **options: Any) -> Any:
    """Ask a reranker for something."""
    if kind is haystack.BoundaryMorphRanker:
        options["api_key"] = Secret.from_token(options["api_key"])
    return kind(base_url="http://127.0.0.1:9", **options)


ASKING: list[Callable[[str], Any]] = [
    lambda key: Client(api_key=key),
    lambda key: AsyncClient(api_key=key),
    lambda key: component(langchain.BoundaryMorphRerank, api_key=key).compress_documents([LangChainDocument("a")], "q"),
    lambda key: component(llamaindex.BoundaryMorphRerank, api_key=key).postprocess_nodes(
        [NodeWithScore(node=TextNode(text="a"))], query_str="q"
    ),
    lambda key: component(haystack.BoundaryMorphRanker, api_key=key).run("q", [HaystackDocument(content="a")]),
]


@pytest.mark.parametrize("key", WRONG_KEYS)
@pytest.mark.parametrize("ask", ASKING, ids=["Client", "AsyncClient", "LangChain", "LlamaIndex", "Haystack"])
def test_a_key_that_no_header_can_carry_is_refused_without_it(ask: Callable[[str], Any], key: str) -> None:
    with pytest.raises(InvalidArgument, match="the API key has characters") as raised:
        ask(key)
    printed = "".join(traceback.format_exception(raised.value))
    assert KEY not in "\n".join(line for line in printed.splitlines() if not line.lstrip().startswith("lambda"))


WRONG_URLS = [
    pytest.param("127.0.0.1:8080", id="no scheme"),
    pytest.param("localhost:8080", id="a host as the scheme"),
    pytest.param("ftp://host", id="another scheme"),
    pytest.param("http://", id="no host"),
    pytest.param("http://ho\nst", id="newline within"),
    pytest.param("http://host:port", id="port that is no number"),
    pytest.param("http://host:70000", id="port that is too large"),
    pytest.param("http://[::1", id="half an address"),
    pytest.param("http://host/?key=1", id="query"),
]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("given", WRONG_URLS)
def test_a_url_that_cannot_be_used_is_refused(kind: Any, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for make in (lambda: kind(given), kind):
        with pytest.raises(InvalidArgument, match=r"the URL of the service, .* give it as http://HOST:PORT"):
            make()
        monkeypatch.setenv("BOUNDARYMORPH_URL", given)


@pytest.mark.parametrize("given", ["user:hunter2@host:8080", "http://user:hunter2@ho\nst", "http://user:hunter2@"])
def test_a_password_in_such_a_url_is_not_printed(given: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        Client(given)
    assert "hunter2" not in str(raised.value) and raised.value.__cause__ is None


async def test_a_header_of_ones_own_client_is_not_printed(url: str) -> None:
    async with httpx.AsyncClient(headers={"x-key": f"{KEY}\n"}) as http:
        with pytest.raises(ConnectionFailed, match=r"LocalProtocolError$") as raised:
            await AsyncClient(url, http=http).ready()
    assert KEY not in "".join(traceback.format_exception(raised.value))


class Table:
    """A table as pandas, polars and pyarrow have it: it is read by the names of its columns."""

    columns = ("text", "id")

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __bool__(self) -> bool:
        raise ValueError("the truth value of a table is ambiguous")


WRONG = [
    pytest.param(Table(), "a Table is read by the names of its columns", id="table"),
    pytest.param({"a": "one"}, "a dict is read by its keys", id="dict"),
    pytest.param("one text", "not a single text", id="text"),
    pytest.param(b"one text", "not a single text", id="bytes"),
    pytest.param(7, "not a int", id="number"),
]


@pytest.mark.parametrize(("given", "says"), WRONG)
async def test_wrong_kinds_of_documents_are_refused(connect: Connect, url: str, given: Any, says: str) -> None:
    client = connect(url)
    with pytest.raises(InvalidArgument, match=says):
        await client.select("sea", pool=given, budget=1, k=1)
    with pytest.raises(InvalidArgument, match=says):
        await client.extend("sea", given, [0.5], k=1)
    with pytest.raises(InvalidArgument, match=says):
        await client.upload("texts", given)
    with pytest.raises(InvalidArgument, match=says):
        [answer async for answer in client.select_batch(given)]


@pytest.mark.parametrize("item", [None, 7, float("nan"), ["a", "b"], b"text"], ids=repr)
async def test_wrong_kinds_of_items_are_refused(connect: Connect, url: str, item: Any) -> None:
    with pytest.raises(InvalidArgument, match=rf"pool\[1\] is of the type {type(item).__name__}"):
        await connect(url).select("sea", pool=["a", item], budget=1, k=1)


async def test_anything_that_yields_texts_is_taken(connect: Connect, url: str) -> None:
    for pool in (tuple(POOL), dict.fromkeys(POOL).keys(), (text for text in POOL)):
        assert len((await connect(url).select("sea", pool=pool, budget=1, k=3)).documents) == 3  # type: ignore[arg-type]


@pytest.mark.parametrize(("given", "says"), WRONG)
@pytest.mark.parametrize(
    "rerank",
    [
        lambda given: langchain.BoundaryMorphRerank(base_url="http://nowhere").compress_documents(given, "q"),
        lambda given: llamaindex.BoundaryMorphRerank(base_url="http://nowhere").postprocess_nodes(given, query_str="q"),
        lambda given: haystack.BoundaryMorphRanker(base_url="http://nowhere").run("q", given),
    ],
    ids=["LangChain", "LlamaIndex", "Haystack"],
)
def test_components_refuse_wrong_kinds_of_documents(rerank: Callable[[Any], Any], given: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        rerank(given)
    with pytest.raises(InvalidArgument, match=r"\[0\] is of the type str; give a (Document|NodeWithScore)"):
        rerank(["a text"])


async def test_an_order_that_means_nothing_is_no_evidence(connect: Connect, url: str) -> None:
    texts = ["gzip compresses", "cat", "xz compresses"]
    found = await connect(url).extend("compress", texts, {0: 0.9}, k=2, relevance="people")
    assert [texts[int(document.id)] for document in found.documents] == ["gzip compresses", "xz compresses"]
    found = await connect(url).extend("compress", texts, [0.9], k=2, relevance="people", ranked=True)
    assert [texts[int(document.id)] for document in found.documents] == ["gzip compresses", "cat"]


async def asked(client: AsyncClient) -> str:
    return (await client.select("sea", pool=POOL, budget=1, k=1)).status


async def asked_often(client: AsyncClient, times: int) -> list[str]:
    return await asyncio.gather(*(asked(client) for _ in range(times)))


async def test_an_async_client_serves_one_event_loop_after_another(way: Way) -> None:
    client = AsyncClient(way.url)

    def loops() -> list[Any]:
        return [asyncio.run(asked(client)) for _ in range(4)] + [asyncio.run(asked_often(client, 30))]

    assert await asyncio.to_thread(loops) == ["complete"] * 4 + [["complete"] * 30]
    assert len(client._pools._clients) == 1, "nothing is kept for loops that are closed"


async def test_an_async_client_serves_event_loops_side_by_side(url: str) -> None:
    client = AsyncClient(url)
    asked_by_all = threading.Barrier(4)

    async def often() -> list[str]:
        first = await asked_often(client, 5)
        await asyncio.to_thread(asked_by_all.wait, PATIENCE)
        second = await asked_often(client, 5)
        await client.close()
        return first + second

    runs = [asyncio.to_thread(asyncio.run, often()) for _ in range(4)]
    assert await asyncio.gather(*runs) == [["complete"] * 10] * 4
    assert client._pools._clients == {}


async def test_an_async_client_keeps_its_connection_within_a_loop(way: Way) -> None:
    async with AsyncClient(way.url) as client:
        assert [await asked(client) for _ in range(3)] == ["complete"] * 3
    assert way.connections == 1


async def test_a_client_works_again_after_it_was_closed(connect: Connect, url: str) -> None:
    client = connect(url)
    for _ in range(2):
        assert (await client.ready()).status == "ok"
        await client.close()


def _asked_by_child(url: str, calls: int) -> list[str]:
    """Ask by the client of the parent."""
    return [CLIENTS[url].select("sea", pool=[f"{os.getpid()} {n}", "hill"], k=2).documents[0].id for n in range(calls)]


CLIENTS: dict[str, Client] = {}


async def test_a_client_makes_connections_of_its_own_after_a_fork(way: Way) -> None:
    client = CLIENTS[way.url] = Client(way.url)

    def parent_and_children() -> None:
        for _ in range(2):
            assert client.ready().status == "ok"
        with multiprocessing.get_context("fork").Pool(4) as pool:
            answers = pool.starmap_async(_asked_by_child, [(way.url, 10)] * 4, chunksize=1)
            assert all(len(answer) == 10 for answer in answers.get(PATIENCE))
        assert client.ready().status == "ok"

    await asyncio.to_thread(parent_and_children)
    assert 3 <= way.connections <= 5, "one of the parent, and at most one of each child"


def _reranked(component: Any) -> list[str]:
    return [document.page_content for document in component.compress_documents([*map(LangChainDocument, POOL)], "sea")]


def test_components_with_the_embedded_scorer_are_pickled_and_forked() -> None:
    rerank = langchain.BoundaryMorphRerank(selector=Selector("embedded"), k=2, budget=3)
    expected = _reranked(rerank)
    for again in (copy.deepcopy(rerank), pickle.loads(pickle.dumps(rerank))):
        assert _reranked(again) == expected
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map_async(_reranked, [rerank] * 4).get(PATIENCE) == [expected] * 4
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map_async(_reranked, [rerank]).get(PATIENCE) == [expected]


EXAMPLE_PROGRAMS = [
    ["plain.py"],
    ["several_questions.py"],
    ["with_langchain.py"],
    ["with_llamaindex.py"],
    ["with_haystack.py"],
    ["other_reranker.py"],
    ["functions.py"],
    ["deep_research/deep_research.py", "question", "--chat", "http://127.0.0.1:9/v1", "--model", "m"],
    ["own_stores/langchain_stores.py", "ask", "question", "articles"],
    ["own_stores/llamaindex_stores.py", "ask", "question", "nodes"],
]


@pytest.mark.slow
@pytest.mark.parametrize("program", EXAMPLE_PROGRAMS, ids=lambda program: program[0])
def test_examples_end_with_one_line_that_names_the_address(program: list[str]) -> None:
    path, *arguments = program
    variables = {
        "BOUNDARYMORPH_URL": "http://127.0.0.1:9/\n",
        "BOUNDARYMORPH_API_KEY": f"{KEY}\n",
        "OPENAI_API_KEY": "k",
    }
    ended = subprocess.run(
        [sys.executable, EXAMPLES / path, *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    error = ended.stderr.strip().splitlines()[-1]
    assert error.startswith("error: ") and "http://127.0.0.1:9" in error
    assert "Traceback" not in ended.stderr and KEY not in ended.stderr + ended.stdout
