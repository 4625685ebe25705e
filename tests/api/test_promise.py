"""POST /select with a promised loss: certified by selections that are scored to the end while nobody waits."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from boundarymorph.access import learned
from boundarymorph.access.learned import SECONDS
from boundarymorph.memory.memory import Audited
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.selection.promise import Audit, Look
from boundarymorph.settings import Settings
from tests.api.service import (
    answer,
    application,
    fill_directory,
    filled,
    gateway_to,
    on_socket,
    problem,
    ready,
    select,
    serving,
)
from tests.metrics import counted
from tests.patience import PATIENCE, until_async
from tests.scoring.fakes import score_of

OBJECTIVE = {"lose_at_most": 0.3, "in": 0.8}
ASKED: dict[str, Any] = {"index": "texts", "k": 4, "relevance": "scorer"}
PROMISED = {**ASKED, "query": "another", "objective": OBJECTIVE, "reuse": False}
KIND = "k = 4, relevance to the scorer"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_directory=tmp_path, auto_budget=36, memory={"enabled": True, "audits": 1.0})


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned, "QUIET", 0.05)
    monkeypatch.setattr(learned, "PAUSE", 0.01)


async def asked(client: httpx.AsyncClient, count: int) -> None:
    for number in range(count):
        answer(await client.post("/select", json={"query": f"query {number}", "budget": 8, **ASKED}))


async def audited(client: httpx.AsyncClient, count: int) -> dict[str, Any]:
    """The selections of the index that were audited, once there are so many."""
    async with asyncio.timeout(PATIENCE):
        while True:
            for memory in answer(await client.get("/indexes/texts/learned"))["memories"]:
                if memory["audited"] and memory["audited"][0]["audits"] >= count:
                    await asyncio.sleep(SECONDS)  # for which a process knows what there was
                    return dict(memory["audited"][0])
            await asyncio.sleep(0.02)


async def test_a_promise_is_certified_by_audits(client: httpx.AsyncClient, settings: Settings) -> None:
    first = await select(client, **PROMISED)
    assert first["promise"]["status"] == "not_certified" and first["promise"]["missing"] == "audits"
    assert "0 selections with k = 4" in first["promise"]["detail"] and len(first["documents"]) == 4
    await asked(client, 11)
    found = await audited(client, 12)  # with the first
    assert found["kind"] == KIND and found["audits"] == 12 and 0 <= found["real_loss"] < 0.3
    promised = await select(client, **PROMISED)
    assert promised["promise"] == {"status": "certified", "audits": 12, "missing": None, "detail": None}
    assert promised["stop_reason"] in ("settled", "budget") and promised["usage"]["budget"] == 36
    memories = LocalCatalog(settings.data_directory / "indexes").belongings("texts").memories.all()
    kept = orjson.dumps([memory.to_json() for memory in memories.values()])
    assert b"query" not in kept and b"text" not in kept and b"d0" not in kept, "nothing of what was asked is kept"


async def test_an_audit_knows_what_was_lost(client: httpx.AsyncClient, settings: Settings) -> None:
    await asked(client, 1)
    await audited(client, 1)
    memory = next(iter(LocalCatalog(settings.data_directory / "indexes").belongings("texts").memories.all().values()))
    looks = memory.audits[0].audit.looks
    assert looks[-1].calls == 36 and [look.calls for look in looks] == sorted({look.calls for look in looks})
    last = await select(client, **ASKED, query="query 0", budget=36, learn=False, reuse=False)
    scores = {f"d{number}": score_of("query 0", f"text {number}") for number in range(40)}
    best, chosen = sum(sorted(scores.values())[-4:]), sum(scores[one["id"]] for one in last["documents"])
    assert looks[-1].real == pytest.approx(1 - chosen / best, abs=1e-5)
    assert all(0 <= look.real <= 1 for look in looks) and looks[0].real > looks[-1].real


async def test_a_caller_goes_first(client: httpx.AsyncClient) -> None:
    """No audit goes on while a request is inside, here one whose body is still on its way."""
    done, sending = asyncio.Event(), asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        sending.set()
        yield b"{"
        await done.wait()
        yield orjson.dumps(PROMISED)[1:]

    before = counted("boundarymorph_audits_total", outcome="done")
    waiting = asyncio.create_task(client.post("/select", content=body()))
    await sending.wait()
    await asked(client, 3)
    await asyncio.sleep(0.5)
    assert counted("boundarymorph_audits_total", outcome="done") == before
    done.set()
    answer(await waiting)
    assert (await audited(client, 4))["audits"] == 4
    assert counted("boundarymorph_audits_total", outcome="done") == before + 4


async def test_calls_of_audits_are_bounded(tmp_path: Path) -> None:
    """Of 60 calls an hour one whole pool is scored, and half of the next; larger pools are left out."""
    memory = {"enabled": True, "audits": 1.0}
    async with filled(Settings(data_directory=tmp_path, memory={**memory, "audit_calls": 60})) as client:
        await asked(client, 3)
        await audited(client, 1)
        await asyncio.sleep(0.5)
        assert (await audited(client, 1))["audits"] == 1
    left = counted("boundarymorph_audits_total", outcome="left_out")
    async with serving(Settings(data_directory=tmp_path, memory={**memory, "audit_pool": 39})) as client:
        answer(await client.post("/select", json={"query": "b", **ASKED, "budget": 8}))
        await until_async(lambda: counted("boundarymorph_audits_total", outcome="left_out") > left)


async def test_what_is_not_audited(client: httpx.AsyncClient) -> None:
    known = await select(client, **PROMISED | {"known_scores": {"d1": 0.5}})
    assert known["promise"]["missing"] == "memory" and "known_scores" in known["promise"]["detail"]
    pool = [{"text": f"t {number}"} for number in range(9)]
    of_pool = await select(client, **PROMISED | {"index": None, "pool": pool, "budget": 8})
    assert of_pool["promise"]["missing"] == "memory" and of_pool["usage"]["cross_encoder_calls"] <= 8
    whole = await select(client, **PROMISED | {"k": 40})
    assert whole["promise"]["status"] == "certified" and whole["usage"]["cross_encoder_calls"] == 0
    assert answer(await client.post("/select", json={**ASKED, "query": "a"}))["promise"] is None


async def test_audits_are_off_where_nobody_asked_for_them(tmp_path: Path) -> None:
    async with filled(Settings(data_directory=tmp_path, memory={"enabled": True})) as client:
        await asked(client, 2)
        await asyncio.sleep(0.5)
        assert all(not memory["audited"] for memory in answer(await client.get("/indexes/texts/learned"))["memories"])


async def test_gateways_share_the_audits_of_their_retriever(settings: Settings, tmp_path: Path) -> None:
    await fill_directory(tmp_path)
    behind = application("retriever", settings)
    async with on_socket(behind) as url, gateway_to(url, settings) as one, gateway_to(url, settings) as other:
        for of in (one, other):
            await ready(of)
            await asked(of, 6)
        await audited(other, 12)
        assert (await select(one, **PROMISED))["promise"]["status"] == "certified"
        async with httpx.AsyncClient(base_url=url) as direct:
            place = {"index": "texts", "scorer": "s", "vectors": "v"}
            for bad in ([], [KIND, "c", []], [KIND, "c", [[1, 0.5, 2.0]]], [KIND, "c", [[2, 0.1, 0.1], [1, 0.1, 0.1]]]):
                problem(await direct.post("/memories/audits", json={**place, "audited": bad}), 422, "invalid-input")


async def test_a_drifted_scorer_takes_the_certificate_away(client: httpx.AsyncClient, settings: Settings) -> None:
    await asked(client, 12)
    await audited(client, 12)
    assert (await select(client, **PROMISED))["promise"]["status"] == "certified"
    memories = LocalCatalog(settings.data_directory / "indexes").belongings("texts").memories
    key, memory = next(iter(memories.all().items()))
    lost = Audit((Look(18, 0.0, 0.9), Look(36, 0.0, 0.9)))
    for _ in range(16):
        memories.record_audit(key, Audited(KIND, lost, memory.audits[0].caller))
    await asyncio.sleep(SECONDS)
    found = await select(client, **PROMISED)
    assert found["promise"]["status"] == "not_certified" and found["promise"]["missing"] == "scorer"
    assert "a better scorer" in found["promise"]["detail"] and len(found["documents"]) == 4
