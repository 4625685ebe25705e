"""What `make load`, `make load-open` and `make capacity` rest on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import httpx
import orjson
import pytest

from boundarymorph.scoring.batching import BatchingScorer
from load_tests import bench_ray
from load_tests.capacity import broken, cores, planned
from load_tests.costs import STAGES, Costs, Point, fitted
from load_tests.open_loop import at_rate
from load_tests.simulation import Plan, simulated
from load_tests.workload import MIX, SLOW_PIECES, Sizes, Workload, outcome
from tests.patience import PATIENCE

TEXTS = [f"text {number} of the violin and of the tram" for number in range(80)]
POINT = Point(1_000, 20, 384)
STAGE_COSTS = {"gateway": [0.01, 1e-6, 0, 1e-3, 0, 0], "retriever": [2e-3, 0, 0, 1e-4, 0, 0], "redis": [1e-5] + [0] * 5}
COSTS = Costs(STAGE_COSTS, token=1e-4, tokens_a_pair=100)


class TestWorkload:
    def test_each_kind_by_its_share(self) -> None:
        workload = Workload(TEXTS)
        drawn = Counter(workload.draw().kind for _ in range(4_000))
        for kind, share in MIX.items():
            assert abs(drawn[kind] / 4_000 - share) < 0.05

    def test_what_comes_again(self) -> None:
        workload = Workload(TEXTS, sizes=Sizes(depth=100, budget=4, k=10))
        first = workload.of("index")
        assert workload.of("repeat").body == first.body
        deeper = workload.of("deeper")
        assert deeper.body == first.body | {"depth": 200, "budget": 8, "k": 15}
        assert (first.documents, deeper.documents, workload.of("pool").documents) == (10, 15, 10)
        assert workload.of("index").body["query"] != first.body["query"]

    def test_a_slow_body_comes_in_pieces(self) -> None:
        workload = Workload(TEXTS)
        slow, quick = workload.of("slow"), workload.of("index")
        assert (len(slow.pieces), len(quick.pieces)) == (SLOW_PIECES, 1)
        assert orjson.loads(b"".join(slow.pieces)) == slow.body

    def test_what_an_answer_is(self) -> None:
        request = Workload(TEXTS, sizes=Sizes(k=2)).of("index")

        def of(ids: list[str], status: str = "complete") -> bytes:
            return orjson.dumps({"status": status, "documents": [{"id": id} for id in ids]})

        assert outcome(200, {}, of(["a", "b"], "partial"), request) == "partial"
        assert outcome(200, {}, of(["a", "a"]), request) == "failed: 1 documents, not 2"
        assert outcome(429, {"retry-after": "1"}, b"", request) == "refused"
        assert outcome(503, {}, b"why", request) == "failed: 503 why"


class TestOpenLoop:
    """Against an application that serves one request after another, in no less than 20 ms each."""

    @staticmethod
    def transport() -> httpx.ASGITransport:
        turn = asyncio.Lock()

        async def application(scope: object, receive: object, send: object) -> None:
            async with turn:
                await asyncio.sleep(0.02)
            body = orjson.dumps({"status": "complete", "documents": [{"id": str(n)} for n in range(5)]})
            await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
            await send({"type": "http.response.body", "body": body})  # type: ignore[operator]

        return httpx.ASGITransport(application)

    async def test_times_count_from_when_each_was_due(self) -> None:
        workload = Workload(TEXTS, sizes=Sizes(k=5), mix={"index": 1.0})
        async with httpx.AsyncClient(transport=self.transport(), base_url="http://service") as client:
            run = await at_rate(client, workload, rate=1_000, seconds=0.03)
        assert run.outcomes == {"complete": 30}
        # The last was due after 29 ms and could not be answered before 30 turns: a closed loop would say 20 ms.
        assert max(seconds for _, seconds in run.seconds) >= 30 * 0.02 - 0.03
        row = run.row(1_000, 0.03)
        assert row["longest_ms"] >= row["p99_ms"] >= row["p50_ms"] >= 20

    async def test_a_bound_on_what_is_under_way(self) -> None:
        workload = Workload(TEXTS, sizes=Sizes(k=5), mix={"index": 1.0})
        async with httpx.AsyncClient(transport=self.transport(), base_url="http://service") as client:
            run = await at_rate(client, workload, rate=2_000, seconds=0.01, outstanding=3)
        assert run.outcomes["complete"] >= 3
        assert run.outcomes["unsent"] == 20 - run.outcomes["complete"] > 0


class TestCosts:
    def test_the_fit_finds_what_costs_are_made_of(self) -> None:
        points = [Point(n, b, d) for n in (1_000, 5_000, 10_000) for b in (10, 100) for d in (384, 1_024)]
        wanted = [0.005, 1e-6, 2e-9, 1e-3, 0.0, 3e-11]
        seconds = [dict.fromkeys(STAGES, Costs({"x": wanted}, 0, 0).of("x", point)) for point in points]
        found = Costs(fitted(points, seconds), 0, 0)
        for point in (*points, Point(3_000, 50, 768)):
            assert found.of("gateway", point) == pytest.approx(Costs({"x": wanted}, 0, 0).of("x", point), rel=1e-3)
        assert min(min(terms) for terms in found.stages.values()) >= 0

    def test_cores_for_a_rate(self) -> None:
        rows = {row["stage"]: row for row in cores(COSTS, POINT, 100, 0.5, 10_000)}
        assert rows["gateway"]["cores"] == 7  # 31 ms, at most half of each core
        assert rows["retriever"]["cores"] == 1
        assert rows["scorer, on CPUs"]["cores"] == 40
        assert rows["or on GPUs"]["gpus"] == 40
        plan = planned(COSTS, POINT, 100, 0.5, 10_000, replica_cores=4)
        assert (plan.gateways, plan.retrievers, plan.scorers, plan.rounds, plan.round_tokens) == (2, 1, 40, 4, 500)
        assert plan.search_seconds + plan.texts_seconds == pytest.approx(COSTS.of("retriever", POINT))


class TestSimulation:
    PLAN = Plan(
        gateways=4, gateway_cores=4, retrievers=2, retriever_cores=4, scorers=4, redis_shards=2, gateway_seconds=0.01,
        search_seconds=0.004, texts_seconds=0.002, redis_seconds=1e-4, rounds=4, round_tokens=500,
        scorer_tokens_per_second=100_000,
    )  # fmt: skip

    def test_a_request_alone_takes_what_its_parts_take(self) -> None:
        outcome = simulated(self.PLAN, 0.5, 40, warm=0)
        scored = 4 * (0.005 + 500 / 100_000)
        network = 2 * 0.0005 * (1 + 1 + 4 + 4)  # the lookup, the search, the texts and the scores of each round
        assert min(outcome.seconds) == pytest.approx(0.01 + 0.006 + 1e-4 / 5 + scored + network)
        assert sum(outcome.waits.values()) < 1e-3

    @pytest.mark.parametrize(
        ("stage", "few"),
        [
            ("gateway", {"gateways": 1, "gateway_cores": 1}),
            ("retriever", {"retrievers": 1, "retriever_cores": 1}),
            ("scorer", {"scorers": 1, "scorer_tokens_per_second": 150_000.0}),
            ("redis", {"redis_shards": 1, "redis_seconds": 0.02}),
        ],
    )
    def test_the_stage_that_breaks_is_named(self, stage: str, few: dict[str, float]) -> None:
        enough, plan = simulated(self.PLAN, 40, 2), replace(self.PLAN, **few)  # type: ignore[arg-type]
        outcome = simulated(plan, 200, 2)
        assert outcome.bottleneck == stage
        assert outcome.busy[stage] > 0.9
        assert outcome.quantile(0.5) > enough.quantile(0.5)
        assert max(enough.busy.values()) < 0.5

    def test_work_is_conserved(self) -> None:
        outcome = simulated(self.PLAN, 120, 5)
        assert len(outcome.seconds) == pytest.approx(600, rel=0.15)
        assert outcome.busy["gateway"] == pytest.approx(len(outcome.seconds) * 0.01 / (5 * 16), rel=0.05)

    def test_the_first_rate_that_is_not_kept_up_with(self) -> None:
        rows = [
            {"rate": rate, "answers_per_second": min(rate, 130), "p99_ms": p99, "longest_wait_at": "scorer"}
            for rate, p99 in ((50, 10), (100, 15), (130, 25), (160, 90))
        ]
        assert broken(rows) == {"breaks_at_rate": 130}
        assert broken([rows[0], rows[3] | {"p99_ms": 11}]) == {"breaks_at_rate": 160}
        assert broken(rows[:2])["breaks_at_rate"] != broken(rows[:2])["breaks_at_rate"]  # NaN


async def test_a_request_to_the_scorer_that_waits_is_one_batch() -> None:
    model = bench_ray.Waiting(0.0)
    scorer = BatchingScorer(model)
    assert len((await scorer.score("q", bench_ray.TEXTS)).values) == len(bench_ray.TEXTS)
    assert model.batches == [bench_ray.TEXTS]
    await scorer.close()


def test_locust_finds_its_callers() -> None:
    command = [sys.executable, "-m", "locust", "-f", "load_tests/locustfile.py", "--list"]
    repository = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True, cwd=repository)
    assert {"Agent", "Application", "Leaver", "SlowClient"} <= set(done.stdout.split() + done.stderr.split())
