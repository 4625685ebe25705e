"""Test the start of the service, failures at the start, and metrics."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from boundarymorph.access import callers
from boundarymorph.access.callers import Scope
from boundarymorph.api.lifecycle import Parts
from boundarymorph.errors import ModelUnavailable
from boundarymorph.settings import RateLimitSettings, Settings
from tests import metrics
from tests.fakes.service import answer, fake_service, problem, serving, starting, texts
from tests.patience import PATIENCE
from tests.retrieval.fakes import SeededEncoder


async def until(client: httpx.AsyncClient, status: str) -> httpx.Response:
    async with asyncio.timeout(PATIENCE):
        while True:
            response = await client.get("/readyz")
            if response.json()["status"] == status:
                return response
            await asyncio.sleep(0.005)


class TestStarting:
    async def test_routes_without_a_model_are_served_before_readiness(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The encoder has not answered yet."""
        asked, may_go_on = asyncio.Event(), asyncio.Event()

        async def away(encoder: SeededEncoder) -> None:
            asked.set()
            await may_go_on.wait()

        monkeypatch.setattr(SeededEncoder, "check", away)
        async with starting(settings, fake_service) as client:
            await asked.wait()
            assert (await client.get("/readyz")).status_code == 503
            assert (await client.put("/indexes/new", json={"dimension": 4})).status_code == 201
            assert [index["name"] for index in answer(await client.get("/indexes"))["indexes"]] == ["new"]
            assert answer(await client.get("/info"))["model_id"] == "seeded"
            pool = {"query": "q", "pool": texts(3), "k": 2}
            assert len(answer(await client.post("/select", json=pool | {"budget": 0}))["documents"]) == 2
            for more in ({"budget": 1}, {"budget": 0, "vectors": "encoder"}):
                problem(await client.post("/select", json=pool | more), 503, "not-ready")
            problem(await client.post("/select", json={"query": "q", "index": "new", "budget": 0}), 503, "not-ready")
            may_go_on.set()
            await until(client, "ok")
            answer(await client.post("/select", json=pool | {"budget": 1}))

    @pytest.mark.parametrize(
        ("error", "why"),
        [(ModelUnavailable("the weights are gone"), "the weights are gone"), (AssertionError(), "AssertionError()")],
    )
    async def test_failed_start_is_explained_by_readyz(self, settings: Settings, error: Exception, why: str) -> None:
        def build(settings: Settings, on_lost: Callable[[], None]) -> Parts:
            raise error

        async with starting(settings, build) as client:
            failed = await until(client, "failed")
            assert failed.status_code == 503
            assert failed.json()["detail"] == why
            for path in ("/livez", "/metrics"):
                assert (await client.get(path)).is_success
            for method, path in (("POST", "/select"), ("GET", "/indexes"), ("DELETE", "/indexes/x/documents")):
                refused = await client.request(method, path)
                assert problem(refused, 503, "not-ready").endswith("its log says why")
                assert int(refused.headers["retry-after"]) >= 1


class TestMetrics:
    async def test_metrics_show_key_names_only_to_privileged_scopes(self, tmp_path: Path) -> None:
        scopes = {"acme": Scope.SELECT, "globex": Scope.SELECT, "prometheus": Scope.METRICS, "ops": Scope.ADMIN}
        made = {name: callers.make_key(name, [scope]) for name, scope in scopes.items()}
        settings = Settings(
            data_directory=tmp_path,
            keys=tuple(str(key) for _, key in made.values()),
            rate_limits=RateLimitSettings(default="100/minute"),
        )

        def header(name: str) -> dict[str, str]:
            return {"authorization": f"Bearer {made[name][0]}"}

        async with serving(settings) as client:
            for name, times in (("acme", 2), ("globex", 3)):
                for _ in range(times):
                    answer(await client.get("/indexes", headers=header(name)))
            problem(await client.get("/indexes", headers=header("prometheus")), 403, "forbidden")
            sample = 'boundarymorph_rate_limited_requests_total{key="acme",outcome="admitted"}'
            for reader in ("prometheus", "ops"):
                assert f"{sample} 2.0" in (await client.get("/metrics", headers=header(reader))).text
            for headers in ({}, header("acme"), {"authorization": "Bearer nonsense"}):
                text = (await client.get("/metrics", headers=headers)).text
                assert "acme" not in text and "globex" not in text
                (total,) = re.findall(
                    r'^boundarymorph_rate_limited_requests_total{key="all",outcome="admitted"} (\S+)$',
                    text,
                    re.MULTILINE,
                )
                assert float(total) >= 5
                assert "boundarymorph_http_request_duration_seconds_bucket" in text

    async def test_select_request_increments_each_metric(self, client: httpx.AsyncClient) -> None:
        def now() -> dict[str, float]:
            return {str(sample): metrics.counted(f"boundarymorph_{sample[0]}", **sample[1]) for sample, _ in grown}

        route = {"method": "POST", "route": "/select", "status": "200"}
        grown: list[tuple[tuple[str, dict[str, str]], int]] = [
            (("http_request_duration_seconds_count", route), 1),
            *((("select_stage_duration_seconds_count", {"stage": stage}), 1)
              for stage in ("retrieve", "select", "fetch", "score", "total")),
            (("selections_total", {"status": "complete", "stop_reason": "budget"}), 1),
            (("cross_encoder_calls_total", {}), 3),
            (("select_calls_sum", {}), 3),
            (("select_rounds_sum", {}), 3),
            *((("ingested_documents_total", {"outcome": outcome}), count)
              for outcome, count in (("added", 1), ("updated", 2), ("skipped", 1), ("unchanged", 0))),
        ]  # fmt: skip
        before, long = now(), "long " * 40
        request = {"query": "q", "pool": [{"text": f"{long} {n}"} for n in range(9)], "k": 2, "budget": 3, "rounds": 3}
        answer(await client.post("/select", json=request))
        answer(await client.post("/indexes/texts/documents", json=[*texts(2), {"id": "new", "text": "t"}, {}]))
        response = await client.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain")
        assert {name: value - before[name] for name, value in now().items()} == {
            str(sample): count for sample, count in grown
        }

    async def test_metric_labels_never_contain_values_from_callers(self, client: httpx.AsyncClient) -> None:
        for path in ("/made-up", "/indexes/made-up", "/indexes/made-up/documents/made-up", "/select?made-up=1"):
            for method in ("GET", "POST", "MADE-UP"):
                await client.request(method, path, json={"made-up": 1})
        await client.post("/select", json={"query": "made-up", "index": "made-up"})
        exposed = (await client.get("/metrics")).text
        assert "made-up" not in exposed.lower()
        assert 'method="other",route="/select",status="405"' in exposed
        assert 'route="/indexes/{name}",' in exposed
