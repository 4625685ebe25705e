"""What selections learn from each other over HTTP: of an index, and of pools by a name."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from boundarymorph.access import callers
from boundarymorph.access.learned import SECONDS
from boundarymorph.errors import StorageFull
from boundarymorph.retrieval.index_retriever import IndexRetriever
from boundarymorph.settings import Settings
from tests.api.service import (
    answer,
    application,
    bearer,
    fill_directory,
    filled,
    gateway_to,
    on_socket,
    problem,
    ready,
    serving,
)
from tests.metrics import counted
from tests.patience import PATIENCE, until_async

ASKED = {"index": "texts", "k": 4, "budget": 8, "relevance": "scorer"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_directory=tmp_path, memory={"enabled": True})


async def asked(client: httpx.AsyncClient, count: int = 1, **fields: Any) -> dict[str, Any]:
    """The last answer of so many requests with different queries."""
    for number in range(count):
        found = answer(await client.post("/select", json={"query": f"query {number}", **ASKED, **fields}))
    return dict(found)


async def told(client: httpx.AsyncClient, requests: int) -> dict[str, Any]:
    """The memory of the index, once it has learned from so many requests."""
    async with asyncio.timeout(PATIENCE):
        while True:
            memories = answer(await client.get("/indexes/texts/learned"))["memories"]
            if memories and memories[0]["requests"] >= requests and (requests < 10 or memories[0]["level"] is not None):
                return dict(memories[0])
            await asyncio.sleep(0.02)


async def test_a_selection_uses_what_ten_earlier_ones_told(client: httpx.AsyncClient) -> None:
    first = await asked(client, 10)
    assert first["learned_from"] == 0
    memory = await told(client, 10)
    assert memory["in_force"] and memory["ahead"] > 1 and memory["remembered"] == 10
    assert memory["scorer"] == "seeded" and memory["vectors"] and memory["tenant"] == ""
    await asyncio.sleep(SECONDS)  # for which a process knows what was in force
    learned = await asked(client, query="another", reuse=False)
    assert learned["learned_from"] == 10
    without = await asked(client, query="another", reuse=False, learn=False)
    assert without["learned_from"] == 0
    assert learned["expected_loss"] != without["expected_loss"]
    assert (await told(client, 11))["requests"] == 11, "a request that does not learn does not teach either"
    assert answer(await client.delete("/indexes/texts/learned")) == {"deleted": 1}
    assert answer(await client.get("/indexes/texts/learned")) == {"memories": []}


async def test_what_tells_nothing(client: httpx.AsyncClient) -> None:
    await asked(client, budget=4)  # too few scores
    await asked(client, budget=0)
    await asked(client, method="boundarymorph")
    known = [{"id": str(number), "text": f"t {number}", "cross_encoder_score": number / 50} for number in range(20)]
    await asked(client, index=None, pool=[*known, *({"text": f"more {n}"} for n in range(9))], memory="brought")
    await asked(client, query="once")
    assert (await told(client, 1))["requests"] == 1


async def test_what_was_learned_stays_as_it_is_where_it_is_frozen(client: httpx.AsyncClient, tmp_path: Path) -> None:
    await asked(client, 10)
    await told(client, 10)
    frozen = Settings(data_directory=tmp_path, memory={"enabled": True, "frozen": True})
    async with serving(frozen) as other:
        answers = [await asked(other, query="another", reuse=False) for _ in range(2)]
        first, second = ({**found, "timings_ms": None, "id": None} for found in answers)
        assert first == second and first["learned_from"] == 10
        assert (await told(other, 10))["requests"] == 10


async def test_pools_learn_by_name(client: httpx.AsyncClient, settings: Settings) -> None:
    pool = [{"id": str(number), "text": f"text {number} on things"} for number in range(30)]
    of_pool: dict[str, Any] = {"index": None, "pool": {"documents": pool}}
    problem(await client.post("/select", json={"query": "q", **ASKED, "memory": "tickets"}), 422, "invalid-input")
    problem(await client.post("/select", json={"query": "q", **ASKED, **of_pool, "memory": "Ä"}), 422, "invalid-input")
    assert (await asked(client, 10, **of_pool))["learned_from"] == 0
    await asked(client, 10, **of_pool, memory="tickets")
    async with asyncio.timeout(PATIENCE):
        while not (await asked(client, query="q", **of_pool, memory="tickets"))["learned_from"]:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert (await asked(client, query="q", **of_pool, memory="others"))["learned_from"] == 0
    assert (await asked(client, query="q", **of_pool))["learned_from"] == 0
    assert answer(await client.get("/indexes/texts/learned")) == {"memories": []}
    of_pools: dict[str, Any] = {"params": {"pools": "true"}}
    (memory,) = answer(await client.get("/indexes/tickets/learned", **of_pools))["memories"]
    assert memory["requests"] >= 10 and memory["in_force"] and memory["scorer"] == "seeded"
    assert answer(await client.delete("/indexes/others/learned", **of_pools)) == {"deleted": 0}
    assert answer(await client.delete("/indexes/tickets/learned", **of_pools)) == {"deleted": 1}
    assert answer(await client.get("/indexes/tickets/learned", **of_pools)) == {"memories": []}
    problem(await client.get("/indexes/tickets/learned"), 404, "unknown-index")
    problem(await client.get("/indexes/Tickets/learned", **of_pools), 422, "invalid-input")
    problem(await client.delete("/indexes/Tickets/learned", **of_pools), 422, "invalid-input")


async def test_a_policy_gives_pools_a_memory_on_rerank_routes_too(tmp_path: Path) -> None:
    policies: dict[str, Any] = {"tickets": {"memory": "tickets", "budget": 8}}
    settings = Settings(data_directory=tmp_path, memory={"enabled": True}, policies=policies)
    documents = [f"text {number} on things" for number in range(30)]

    async def reranked(number: int) -> float:
        """How often something learned was used, after another request."""
        body = {"query": f"query {number}", "documents": documents}
        answer(await client.post("/p/tickets/v1/rerank", json=body))
        return counted("boundarymorph_memory_selections_total", in_force="yes")

    async with filled(settings) as client:
        before, number = await reranked(0), 1
        async with asyncio.timeout(PATIENCE):
            while await reranked(number) == before:
                number += 1
                await asyncio.sleep(0.05)
        of_pool = {"query": "q", "pool": [{"text": text} for text in documents], "k": 4}
        assert answer(await client.post("/p/tickets/select", json=of_pool))["learned_from"] >= 10
        assert answer(await client.post("/select", json=of_pool))["learned_from"] == 0
        of_index = answer(await client.post("/p/tickets/select", json={"query": "q", "index": "texts", "k": 4}))
        assert (of_index["usage"]["budget"], of_index["learned_from"]) == (8, 0)


async def test_tenants_learn_apart(tmp_path: Path) -> None:
    made = {tenant: callers.make_key(tenant, [callers.Scope.SELECT], tenant=tenant) for tenant in ("a", "b")}
    guarded = tuple(str(key) for _, key in made.values())
    await fill_directory(tmp_path)
    async with serving(Settings(data_directory=tmp_path, memory={"enabled": True}, keys=guarded)) as client:
        client.headers.update(bearer(made["a"][0]))
        await asked(client, 3)
        assert (await told(client, 3))["tenant"] == "a"
        client.headers.update(bearer(made["b"][0]))
        assert answer(await client.get("/indexes/texts/learned")) == {"memories": []}


async def test_gateways_share_the_memory_of_their_retriever(settings: Settings, tmp_path: Path) -> None:
    await fill_directory(tmp_path)
    behind = application("retriever", settings)
    async with on_socket(behind) as url, gateway_to(url, settings) as one, gateway_to(url, settings) as other:
        await asyncio.gather(ready(one), ready(other))
        await asked(one, 5)
        await asked(other, 5, budget=9)
        memory = await told(other, 10)
        assert memory["requests"] == 10 and memory["in_force"]
        await asyncio.sleep(SECONDS)
        assert (await asked(one, query="another"))["learned_from"] == 10
        answer(await one.delete("/indexes/texts/learned"))
        assert answer(await one.get("/indexes/tickets/learned", params={"pools": "true"})) == {"memories": []}
        refused = {"index": "texts", "scorer": "s", "vectors": "v", "observations": [["c", 1]]}
        async with httpx.AsyncClient(base_url=url) as direct:
            problem(await direct.post("/memories/record", json=refused), 422, "invalid-input")


async def test_a_selection_goes_without_what_cannot_be_read(
    client: httpx.AsyncClient, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    file = settings.data_directory / "indexes" / "texts" / "belongings" / "memories.sqlite3"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"no database" * 1_000)
    assert (await asked(client))["learned_from"] == 0
    assert "goes without what was learned" in caplog.text


async def test_a_selection_does_not_wait_for_a_memory_longer_than_its_deadline(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for = asyncio.Event()

    async def hanging(*_: object) -> None:
        asked_for.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(IndexRetriever, "recall", hanging)
    found = await asked(client, deadline_ms=300)
    assert asked_for.is_set() and found["learned_from"] == 0 and found["stop_reason"] == "deadline"
    assert len(found["documents"]) == 4


async def test_what_cannot_be_told_is_logged_once(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refused(*_: object) -> None:
        raise StorageFull("no room")

    monkeypatch.setattr(IndexRetriever, "record", refused)
    before = counted("boundarymorph_memory_requests_total", outcome="failed")
    await asked(client, 3)
    await until_async(lambda: counted("boundarymorph_memory_requests_total", outcome="failed") >= before + 3)
    assert caplog.text.count("selections are not learned from: no room") == 1
