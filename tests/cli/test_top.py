"""`boundarymorph top`: what it makes of /metrics, of a real service too."""

from __future__ import annotations

import io
import math
from collections import deque
from collections.abc import Iterator

import httpx
import pytest
from typer.testing import CliRunner

from boundarymorph.cli import top
from boundarymorph.cli.common import new_console
from boundarymorph.cli.main import app
from boundarymorph.cli.top import Samples, Span
from tests.faults import stand_in
from tests.scoring.judge.scripted import MODEL, Chat
from tests.scoring.remote.servers import answer
from tests.system.service import Service, service

HISTOGRAM = """
lap_seconds_bucket{lane="a",le="0.1"} %d
lap_seconds_bucket{lane="a",le="0.2"} %d
lap_seconds_bucket{lane="a",le="+Inf"} %d
lap_seconds_sum{lane="a"} 3
lap_seconds_count{lane="a"} %d
"""


def span(before: str, now: str, seconds: float = 10.0) -> Span:
    return Span(Samples.parsed(before, 100.0), Samples.parsed(now, 100.0 + seconds))


def test_rates_are_of_the_span() -> None:
    found = span('runs_total{x="1"} 5\nruns_total{x="2"} 1\n', 'runs_total{x="1"} 25\nruns_total{x="2"} 1\n')
    assert found.rate("runs_total") == 2.0
    assert found.by("x", "runs_total") == {"1": 20.0}


def test_a_counter_that_fell_began_anew() -> None:
    assert span("runs_total 100\n", "runs_total 7\n").count("runs_total") == 7


def test_what_is_new_counts_whole() -> None:
    assert span("", "runs_total 7\n").count("runs_total") == 7


def test_quantiles_are_those_of_prometheus() -> None:
    found = span(HISTOGRAM % (0, 0, 0, 0), HISTOGRAM % (10, 30, 30, 30))
    assert found.quantile(0.5, "lap_seconds") == pytest.approx(0.1 + 0.1 * 5 / 20)
    assert found.quantile(0.2, "lap_seconds", lane="a") == pytest.approx(0.06)
    assert found.mean("lap_seconds") == 0.0
    beyond = span(HISTOGRAM % (0, 0, 0, 0), HISTOGRAM % (10, 10, 30, 30))
    assert beyond.quantile(0.95, "lap_seconds") == 0.2, "the last bound that there is"
    assert math.isnan(beyond.quantile(0.5, "lap_seconds", lane="b"))


def shown(frame: object) -> str:
    console = new_console(width=180, file=io.StringIO(), record=True)
    console.print(frame)
    return console.export_text()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose scorer is a language model, which has answered three requests, the last one partly."""
    with stand_in.running(Chat()) as model:
        folder = tmp_path_factory.mktemp("top")
        url = f"openai+http://127.0.0.1:{model.port}/v1?model={MODEL}"
        with service(folder / "data", "--scorer-url", url) as found:
            pool = [{"id": f"d{number}", "text": f"Text {number} of music."} for number in range(20)]
            for query in ("one", "two", "two"):
                body = {"query": query, "pool": pool, "budget": 8, "k": 5}
                assert found.client.post("/select", json=body).json()["status"] == "complete"
            assert found.client.post("/select", json={"query": "x"}).status_code == 422
            model.behaviour = answer({"error": {"message": "broken"}}, 500)
            body = {"query": "three", "pool": pool, "budget": 8, "k": 5}
            assert found.client.post("/select", json=body).json()["status"] == "retrieval_only"
            yield found


def test_one_frame_of_a_real_service(running: Service) -> None:
    result = CliRunner().invoke(app, ["top", "--once", "--url", running.url], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    lines = {" ".join(line.split()) for line in result.output.replace("│", "\n").splitlines()}
    assert "selections" in result.output and running.url in result.output
    assert any(line.startswith("answers") and "complete 3, retrieval_only 1" in line for line in lines)
    assert any(line.startswith("degraded 25.0 %") and "scorer_unavailable 1" in line for line in lines)
    assert any(line.startswith("latency p50 ") and "p99" in line for line in lines)
    assert any(line.startswith("refused or failed 422 1") for line in lines)
    assert any(line.startswith("calls") and "a selection in" in line for line in lines)
    assert any(line.startswith("cache: scores") and line.endswith("% hits") for line in lines)
    assert any(line.startswith("selections 0 running 0 waiting") for line in lines)
    assert any(line.startswith("scorer http://127.0.0.1") for line in lines)
    assert any(line.startswith("answers graded 16") for line in lines)


def test_no_rates_are_made_up_for_several_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their metrics do not say when they started."""
    counted = 'boundarymorph_http_request_duration_seconds_count{method="GET",route="/x",status="500"} 7\n'
    monkeypatch.setattr(top, "scrape", lambda client: Samples.parsed(counted, 100.0))
    once = CliRunner().invoke(app, ["top", "--once"], env={"COLUMNS": "160"})
    assert once.exit_code == 0, once.output
    lines = {" ".join(line.split()) for line in once.output.replace("│", "\n").splitlines()}
    assert {"all -", "refused or failed 500 7"} <= lines
    assert "since the start" in once.output

    live = top.beginning(Samples.parsed(counted, 100.0))
    live.append(Samples.parsed(counted, 102.0))
    frame = shown(top.frame(Span(live[0], live[-1]), "url"))
    assert "the last 2 s" in frame and "0.0 /s" in frame


def test_a_service_that_is_away_is_unreachable() -> None:
    result = CliRunner().invoke(app, ["top", "--once", "--url", "http://127.0.0.1:9"])
    assert isinstance(result.exception, top.Unreachable)


def test_no_exposition_is_said_so(running: Service) -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text="<html>Welcome to nginx!</html>"))
    with httpx.Client(base_url=running.url, transport=transport) as client, pytest.raises(top.Unreachable):
        top.scrape(client)


def test_the_frames_go_on(running: Service) -> None:
    """Of the last seconds; and over a service that is away for a while."""
    with httpx.Client(base_url=running.url) as client:
        first = top.scrape(client)
        kept = deque([Samples(first.at - 100), first])
        for _ in range(3):
            frame = top._next(client, kept, window=0.0, url=running.url)
        assert len(kept) == 2 and "requests" in shown(frame)
    with httpx.Client(base_url="http://127.0.0.1:9") as nobody:
        assert "cannot be read" in shown(top._next(nobody, kept, 1.0, "url")) and len(kept) == 2
