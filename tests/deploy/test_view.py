"""The dashboard and the alerts name metrics that the service has."""

import re
from pathlib import Path
from typing import Any

import orjson
import yaml

from tests.api.service import texts
from tests.system.service import retriever, scorer, service

DEPLOY = Path(__file__).parents[2] / "deploy"
METRIC = re.compile(r"\bboundarymorph_[a-z0-9_]+")
AFTER_A_FAULT = {  # and, of the circuit, with a Redis
    "boundarymorph_cache_circuit_state",
    "boundarymorph_scorer_dropped_pairs_total",
    "boundarymorph_select_refused_total",
}
OF_JUDGEMENTS = {
    "boundarymorph_judgment_log_loss_nats_count",
    "boundarymorph_judgment_log_loss_nats_sum",
}
OF_A_LANGUAGE_MODEL = {
    "boundarymorph_cost_ceiling_refusals_total",
    "boundarymorph_judge_answers_total",
    "boundarymorph_judge_tokens_total",
}


def expressions() -> list[str]:
    dashboard = orjson.loads((DEPLOY / "grafana/boundarymorph.json").read_bytes())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    shown += [annotation["expr"] for annotation in dashboard["annotations"]["list"]]
    groups: list[dict[str, Any]] = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())["groups"]
    return shown + [rule["expr"] for group in groups for rule in group["rules"]]


def test_every_metric_is_there_after_one_request(tmp_path: Path) -> None:
    """Of an index, through a gateway, a scorer and a retriever: samples, and not only names."""
    (tmp_path / "behind").mkdir()
    (tmp_path / "boundarymorph.toml").write_text('[rate_limits]\ndefault = "1000/minute"')
    with scorer(tmp_path / "behind/scorer.log") as scores, retriever(tmp_path / "behind/data") as pools:
        options = ("--scorer-url", scores.url, "--retriever-url", pools.url)
        with service(tmp_path / "data", *options) as gateway:
            assert gateway.client.put("/indexes/few").is_success
            assert gateway.client.post("/indexes/few/documents", json=texts(9)).is_success
            answered = gateway.client.post("/select", json={"query": "q", "index": "few", "k": 2, "budget": 3})
            assert answered.json()["status"] == "complete"
            scraped = "".join(running.client.get("/metrics").text for running in (gateway, scores, pools))
    there = set(re.findall(r"^(boundarymorph_\w+)", scraped, re.MULTILINE))
    named = {name for expression in expressions() for name in METRIC.findall(expression)}
    assert len(named) > 30
    assert named - there == AFTER_A_FAULT | OF_A_LANGUAGE_MODEL | OF_JUDGEMENTS


def test_what_an_operator_sees_first() -> None:
    """Five figures; every panel says what it shows; it can be narrowed down, and changes are marked."""
    dashboard = orjson.loads((DEPLOY / "grafana/boundarymorph.json").read_bytes())
    panels = dashboard["panels"]
    assert [panel["type"] for panel in panels[:7]] == ["row", *["stat"] * 5, "row"]
    for panel in panels:
        assert panel["type"] == "row" or panel["description"].endswith("."), panel["title"]
    variables = {variable["name"]: variable["query"] for variable in dashboard["templating"]["list"]}
    assert list(variables) == ["datasource", "role", "instance", "key"]
    assert {name for text in expressions() for name in re.findall(r"\$([a-z]+)\b", text)} == {*variables} - {
        "datasource"
    }
    assert [annotation["name"] for annotation in dashboard["annotations"]["list"]] == ["Starts", "Index changes"]


def test_panels_do_not_overlap() -> None:
    panels = orjson.loads((DEPLOY / "grafana/boundarymorph.json").read_bytes())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)
