"""Trips to a scorer: how many a request makes, and what they cost."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from boundarymorph.api.lifecycle import Parts
from boundarymorph.caching.known import ScoreCache
from boundarymorph.scoring.build import build_scorer, trips_to
from boundarymorph.scoring.trips import LATEST, Clock, Trips
from boundarymorph.selector.selector import Selector
from boundarymorph.settings import Settings
from tests.fakes.service import answer, fake_service, select, serving, texts
from tests.fakes.upstream import slow
from tests.fakes.wires import Cohere, Decisions, Ours, Server, SystemOne, Tei, Wire, running

POOL = texts(150)


@asynccontextmanager
async def gateway(
    wire: Wire,
    folder: Path,
    cache: ScoreCache | None = None,
    trips: Trips | None = None,
    judge: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[httpx.AsyncClient, Server]]:
    """The service with a scorer of this kind, 20 ms away. trips: to it, by default those of the settings."""
    async with running(wire) as [server]:
        server.behaviour = slow(0.02)
        named = f"?model={wire.models[0]}" if wire.description_path is None else ""
        url = f"{wire.scheme}://127.0.0.1:{server.port}{named}"
        scorer_settings = {"url": url, "judge": judge or {}}
        settings = Settings.model_validate({"data_directory": folder, "scorer": scorer_settings, **options})

        def build(settings: Settings, on_lost: Callable[[], None]) -> Parts:
            parts, scorer = fake_service(settings), build_scorer(settings)
            selector = Selector(parts.retriever, scorer, cache, trips=trips or trips_to(settings.scorer, scorer))
            return replace(parts, scorer=scorer, selector=selector)

        async with serving(settings, build) as client:
            server.asked.clear()
            yield client, server


@pytest.mark.parametrize(("budget", "trips"), [(20, 2), (50, 3), (100, 3)])
@pytest.mark.parametrize("wire", [Ours(), Tei(most=128)])
async def test_a_scorer_elsewhere_is_asked_two_or_three_times(
    tmp_path: Path, wire: Wire, budget: int, trips: int
) -> None:
    async with gateway(wire, tmp_path) as (client, server):
        usage = (await select(client, query="q", pool=POOL, budget=budget))["usage"]
        assert (usage["trips"], usage["rounds"], usage["cross_encoder_calls"]) == (trips, trips, budget)
        assert len(server.batches) == trips
        assert sum(server.batches) == budget


@pytest.mark.parametrize("budget", [50, 130])
async def test_one_that_charges_for_requests_is_asked_twice(tmp_path: Path, budget: int) -> None:
    async with gateway(Cohere(), tmp_path) as (client, server):
        usage = (await select(client, query="q", pool=POOL, budget=budget))["usage"]
        assert (usage["trips"], len(server.batches)) == (2, 2)
        assert not {"billed_units", "cost"} & usage.keys()
        assert "boundarymorph_scorer_trips_total " in (await client.get("/metrics")).text


class TestFullPasses:
    @pytest.mark.parametrize("wire", [SystemOne(), Decisions()])
    @pytest.mark.parametrize(
        ("budget", "trips", "batches"), [(20, 1, [20]), (50, 2, [30, 20]), (100, 3, [30, 30, 30, 10])]
    )
    async def test_of_a_decision_model(
        self, tmp_path: Path, wire: Wire, budget: int, trips: int, batches: list[int]
    ) -> None:
        async with gateway(wire, tmp_path) as (client, server):
            usage = (await select(client, query="q", pool=POOL, budget=budget))["usage"]
            assert (usage["trips"], usage["cross_encoder_calls"]) == (trips, budget)
            assert server.batches == batches


@pytest.mark.parametrize("rounds", [1, 3])
async def test_the_same_rounds_give_the_same_answer(tmp_path: Path, rounds: int) -> None:
    """To the last bit, whatever has been learned of the time of a trip in between."""
    clock = Clock()
    async with gateway(Ours(), tmp_path, trips=Trips("dear", clock=clock)) as (client, server):
        request = {"query": "q", "pool": POOL, "budget": 40, "k": 10, "rounds": rounds, "reuse": False}
        one = await select(client, **request)
        for size in range(1, 2 * LATEST):
            clock.took(size, 9.0 * size, f"http://127.0.0.1:{server.port}")
        other = await select(client, **request)
        assert one["documents"] == other["documents"]
        assert one["expected_loss"] == other["expected_loss"]
        assert one["usage"] == other["usage"]
        assert len(server.batches) == 2 * rounds


class TestRerankRoutes:
    """A list whose first documents are scored in one request upstream, and the others inferred."""

    TEXTS = tuple(document["text"] for document in POOL[:60])

    async def test_by_the_fields_of_the_request(self, tmp_path: Path) -> None:
        async with gateway(Ours(), tmp_path) as (client, server):
            asked = {"model": "any", "query": "q", "documents": self.TEXTS, "budget": 25, "rounds": 1}
            body = answer(await client.post("/v2/rerank", json=asked))
            assert server.batches == [25] and server.asked[0]["texts"] == list(self.TEXTS[:25])
        assert sorted(result["index"] for result in body["results"]) == list(range(60))
        scores = [result["relevance_score"] for result in body["results"]]
        assert scores == sorted(scores, reverse=True)
        ours = body["boundarymorph"]
        assert ours["inferred"] == list(range(25, 60))
        assert (ours["trips"], ours["cross_encoder_calls"]) == (1, 25)
