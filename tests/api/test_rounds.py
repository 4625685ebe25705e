"""Test how many requests to the scorer a budget is spent in."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from boundarymorph.api.lifecycle import Parts
from boundarymorph.scoring.build import build_scorer, declared_trust, full_pass
from boundarymorph.selector.selector import Selector
from boundarymorph.settings import Settings
from tests.fakes.service import fake_service, select, serving, texts
from tests.fakes.wires import Decisions, Ours, Server, SystemOne, Tei, Wire, running
from tests.scoring.chat.scripted import READ, Chat

POOL = texts(150)


@asynccontextmanager
async def gateway(wire: Wire, folder: Path, **options: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Server]]:
    """Yield a client of a service, and its scorer, a server of this kind.

    Relevance is human by default.
    """
    async with running(wire) as [server]:
        named = f"?model={wire.models[0]}" if wire.description_path is None else ""
        scorer = {"url": f"{wire.scheme}://127.0.0.1:{server.port}{named}", **options.pop("scorer", {})}
        given = {"data_directory": folder, "scorer": scorer, "relevance": "human", **options}
        settings = Settings.model_validate(given)

        def build(settings: Settings, on_lost: Callable[[], None]) -> Parts:
            parts, scorer, chosen = fake_service(settings), build_scorer(settings), settings.scorer
            selector = Selector(parts.retriever, scorer, trust=declared_trust(chosen), full=full_pass(chosen))
            return replace(parts, scorer=scorer, selector=selector)

        async with serving(settings, build) as client:
            server.asked.clear()
            yield client, server


@pytest.mark.parametrize(
    ("wire", "request_", "batches"),
    [
        pytest.param(Ours(), {"budget": 50}, [17, 17, 16], id="a fixed budget"),
        pytest.param(Tei(most=128), {"budget": 2}, [1, 1], id="two calls"),
        pytest.param(Ours(), {"budget": 10, "rounds": 1}, [10], id="one round"),
        pytest.param(Ours(), {"budget": 10, "relevance": "scorer"}, [2, 2, 2, 2, 2], id="by the score alone"),
        pytest.param(Ours(), {"budget": 10, "method": "boundarymorph"}, [2, 2, 2, 2, 2], id="the paper's method"),
        pytest.param(SystemOne(), {"budget": 20}, [20], id="less than a pass"),
        pytest.param(SystemOne(), {"budget": 50}, [30, 20], id="two full passes"),
        pytest.param(Decisions(), {"budget": 100}, [60, 30, 10], id="full passes in three rounds"),
        pytest.param(SystemOne(), {"budget": 40, "rounds": 4}, [10, 10, 10, 10], id="rounds of a request"),
    ],
)
async def test_select_spends_a_budget_in_rounds_that_fit_the_scorer(
    tmp_path: Path, wire: Wire, request_: dict[str, Any], batches: list[int]
) -> None:
    async with gateway(wire, tmp_path) as (client, server):
        usage = (await select(client, query="q", pool=POOL, **request_))["usage"]
        assert usage["rounds"] == len(batches) and usage["cross_encoder_calls"] == request_["budget"]
        assert [sum(part) for part in _by_round(server.batches, batches)] == batches


def _by_round(batches: list[int], rounds: list[int]) -> list[list[int]]:
    """Group the requests by round, since a round may be split to fit the server."""
    left, parts = list(batches), []
    for size in rounds:
        part: list[int] = []
        while sum(part) < size:
            part.append(left.pop(0))
        parts.append(part)
    assert not left
    return parts


async def test_language_model_receives_full_requests(tmp_path: Path) -> None:
    scorer = {"judge": {"documents_per_request": 20}}
    async with gateway(Chat(), tmp_path, scorer=scorer) as (client, server):
        body = await select(client, query="q", pool=POOL, budget=50)
        assert server.batches == [20, 20, 10] and body["scorer"]["trust"] == "strong"
        assert body["usage"]["language_model"]["input_tokens"] == 3 * READ


@pytest.mark.parametrize("wire", [Ours(), SystemOne()])
async def test_automatic_budget_decides_after_each_round(tmp_path: Path, wire: Wire) -> None:
    async with gateway(wire, tmp_path, auto_budget=120) as (client, server):
        await select(client, query="q", pool=POOL, budget="auto", k=20)
        assert len(server.batches) > 3 if isinstance(wire, Ours) else {*server.batches[:-1]} == {30}
