"""Every benchmark, soak and study runs, small, and its figures are possible."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch

from load_tests import bench_gpu, bench_stores, mutants, registered, report, soak, studies
from tests.evaluation.tables import synthetic
from tests.patience import PATIENCE

REPOSITORY = Path(__file__).parents[2]


def run(name: str, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run a program here, and return its report."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))  # of processes of its own
    monkeypatch.setattr(sys, "argv", [name, *options.split()])
    import_module(f"load_tests.{name}").main()
    (written,) = report.RESULTS.glob("*.json")
    results: dict[str, Any] = orjson.loads(written.read_bytes())
    assert results["complete"]
    return results


def test_sessions_of_the_algorithm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = "--pools 200 --dimensions 8 --rounds 0 2 --budgets 10 --literal-budgets 10 --repeats 1 --k 5"
    *sessions, literal = run("bench_selection", f"{options} --beside {REPOSITORY}", tmp_path, monkeypatch)["rows"]
    assert [(row["method"], row["rounds"], row["B"]) for row in sessions] == [
        ("trend", "growing", 10), ("trend", 2, 10), ("boundarymorph", "growing", 10), ("boundarymorph", 2, 10)
    ]  # fmt: skip
    for row in sessions:
        assert row["sessions_a_second_and_core"] == pytest.approx(1e3 / row["cpu_ms"])
        assert row["before_cpu_ms"] > 0
    assert literal["same_picks"] and literal["literal_seconds"] > 0


@pytest.mark.usefixtures("tiny_weights")
def test_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = run("bench_request", "--sizes 200,10,16 --requests 2", tmp_path, monkeypatch)["rows"]
    assert [(row["part"], row["processes"]) for row in rows] == [("index", "three"), ("index", "one"), ("pool", "one")]
    for row in rows:
        assert 0 < row["select_ms"] + row["score_ms"] < row["p99_ms"]


@pytest.mark.usefixtures("tiny_weights")
def test_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = "--shape smoke --seconds .5 --pairs 12 --sessions 2 --documents 10 --clients 1 --repetitions 1 --alone"
    rows = {row["what"]: row for row in run("bench_models", options, tmp_path, monkeypatch)["rows"]}
    assert set(rows) == {"bare", "ours", "rerank, ours", "rerank, a fifth"}
    assert rows["ours"]["of_bare"] == pytest.approx(rows["ours"]["pairs_per_second"] / rows["bare"]["pairs_per_second"])


@pytest.mark.usefixtures("tiny_weights")
def test_pools_of_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = "--documents 600 --dimension 16 --depth 100 --queries 2 --kinds flat"
    rows = run("bench_retrieval", options, tmp_path, monkeypatch)["rows"]
    found = {row["search"]: row for row in rows}
    assert found["vectors"]["recall"] == 1 and found["vectors"]["faiss_p50_ms"] > 0
    assert found["hybrid"]["found"] == 100 and found["filter: a url"]["found"] == 1
    assert 0 < found["filter: a year"]["found"] < found["filter: from a year on"]["found"] <= 100


def test_pools_of_stores() -> None:
    for store in ("local", "lancedb"):
        assert bench_stores.measure(store, 300, 50, words=True)["recall"] == 1


@pytest.mark.usefixtures("tiny_weights")
def test_failover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = run("bench_failover", "--sessions 2 --seconds .4", tmp_path, monkeypatch)
    assert [row["scorers"] for row in results["rows"]][2:5] == ["one killed", "one", "one, other starts"]
    assert results["ratios"]["failed_rounds"] == 0
    assert sum(row["rounds"] for row in results["rows"]) > 0


@pytest.mark.usefixtures("tiny_weights")
@pytest.mark.parametrize("options", ["--capacity-seconds 1", "--rates 16 --mix"])
def test_overload(options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options += " --seconds 2 --spans 1 --clients 20 --documents 60 --budget 5"
    results = run("bench_overload", options, tmp_path, monkeypatch)
    (row,) = results["rows"]
    assert row["complete"] + row["partial"] + row["retrieval_only"] > 0 == results["ratios"]["failed"]
    assert row["p50_ms"] <= row["p99_ms"] <= row["p100_ms"]


@pytest.mark.usefixtures("tiny_weights")
def test_a_soak_of_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = "--minutes .06 --row 1 --readers 5 --writers 2 --documents 200 --kills 4"
    results = run("soak", options, tmp_path, monkeypatch)
    assert results["ratios"]["wrong_answers"] == 0 and "memory_growth_MiB_a_minute" not in results["ratios"]
    assert all(sum(row[kind] for row in results["rows"]) for kind in ("reads", "upserted", "deleted"))


def test_the_ledger_of_a_soak_notices() -> None:
    ledger = soak.Ledger()
    ledger.begin(["a"])
    ledger.acknowledge(["a"])
    ledger.check("a", 1, 1)
    ledger.begin(["a"])
    ledger.check("a", 1, 1)
    ledger.check("a", 1, 2)
    ledger.acknowledge(["a"])
    ledger.begin(["a"], deletion=True)
    ledger.check("a", 2, 2)
    ledger.check("a", 2, None)
    assert ledger.wrong == []
    ledger.check("a", 2, 1)
    ledger.acknowledge(["a"])
    ledger.check("a", 3, 2)
    ledger.begin(["a"])
    ledger.acknowledge(["a"])
    ledger.check("a", 4, None)
    ledger.check("a", 4, -1)
    assert len(ledger.wrong) == 4


@pytest.mark.usefixtures("tiny_weights")
def test_on_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = "--device cpu --models smoke --pairs 6 --batch-tokens 512 --precisions bf16 --repeats 1"
    rows = run("bench_gpu", options, tmp_path, monkeypatch)["rows"]
    assert [row["from_float32"] < 0.05 for row in rows if row["what"] == "scores"] == [True, True]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["bench_gpu"])
    with pytest.raises(SystemExit, match="no GPU here"):
        bench_gpu.main()


def test_a_benchmark_that_is_stopped_has_told_what_it_has(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "load_tests.bench_selection", "--pools", "200", "--dimensions", "8"]
    command += ["--repeats", "1", "--k", "5", "--budgets", *["5"] * 10_000]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # which what runs the tests may ignore
    ) as running:
        assert running.stdout is not None
        first = running.stdout.readline()
        running.send_signal(signal.SIGINT)
        rest, _ = running.communicate(timeout=PATIENCE)
    assert first.startswith("N 200  d 8  method trend  rounds growing  B 5  ")
    assert running.returncode == report.STOPPED
    assert rest.splitlines()[-1] == "stopped; what was measured by then is in build/bench"
    assert orjson.loads((tmp_path / "build/bench/selection.json").read_bytes())["complete"] is False


def study(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> tuple[list[dict[str, Any]], str]:
    """Run a study, and return its rows and its report."""
    monkeypatch.setattr(sys, "argv", ["studies", *options, "--out", str(folder / "out")])
    studies.main()
    (rows,), (text,) = (folder / "out").glob("*.json"), (folder / "out").glob("*.md")
    return orjson.loads(rows.read_bytes()), text.read_text()


@pytest.mark.parametrize("name", [name for name, one in studies.STUDIES.items() if one.of == "questions"])
def test_studies(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "one.npz", **synthetic(queries=2, n=110, name="one").arrays)  # type: ignore[arg-type]
    for constant, fewer in (("KS", (50,)), ("SMALL_KS", (5, 50)), ("CAP", 30)):
        monkeypatch.setattr(studies, constant, fewer)
    monkeypatch.setattr(registered, "TRIED", [(0.5, 1.0, 0.15), (1.0, 2.0, 0.25)])
    rows, text = study(tmp_path, monkeypatch, name, "--tables", str(tmp_path))
    done = studies.STUDIES[name]
    assert {row["query"] for row in rows} == {0, 1}
    measured = [row[metric] for row in rows for metric in done.metrics if row[metric] is not None]
    assert measured and all(-1e-9 <= value <= 1 + 1e-9 for value in measured)
    assert text.startswith(f"# {done.title}\n\n| ")


def test_reviews(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a review whose relevant records have words of their own, everything is found; the seed does not count."""
    about = ["walls guard the old town" if number % 5 == 0 else f"bees make honey {number % 7}" for number in range(60)]
    records = [{"_id": f"towns-{number}", "text": f"{text} {number % 3}"} for number, text in enumerate(about)]
    (tmp_path / "corpus.jsonl").write_bytes(b"\n".join(map(orjson.dumps, records)))
    (tmp_path / "queries.jsonl").write_bytes(orjson.dumps({"_id": "towns", "text": "towns and their walls"}))
    relevant = [f"towns\ttowns-{number}\t1" for number in range(0, 60, 5)]
    (tmp_path / "qrels.tsv").write_text("\n".join(relevant))
    rows, text = study(tmp_path, monkeypatch, "reviews", "--data", str(tmp_path))
    found = {(row["how"], row["seed"]): row for row in rows}
    assert len(found) == len(rows) == 2 * (2 + 4)
    for seed in ("no", "yes"):
        assert found["find", seed]["recall@50"] == 1.0 and found["find", seed]["wss@95"] > 0.7
        for target in ("0.8 in 0.9", "0.95 in 0.8"):
            said = found[f"find {target}", seed]
            assert said["true"] and 0.2 <= said["read"] < 1.0
    assert "| find | no | 100.0 | 100.0 |" in text


def test_means_and_changes_of_a_study_by_hand() -> None:
    """Means over the settings of a question, the questions of a table, and tables; changes are paired by question."""
    values = {("a", 0): (0.2, 0.3), ("a", 1): (0.4, 0.7), ("b", 0): (0.5, 0.5), ("b", 1): (0.5, 0.5)}
    rows = [
        {"table": table, "query": query, "how": how, "k": k, "ce_ncg": value + (k == 10) / 10}
        for (table, query), pair in values.items()
        for how, value in zip(("base", "other"), pair, strict=True)
        for k in (5, 10)
    ]
    study = studies.Study("by hand", lambda question, number: iter(()), ("how",), columns="k", base={"how": "base"})
    base, other = study.table(rows)
    assert (base["ce_ncg"], base["ce_ncg: a"], base["k = 5"], base["k = 10"]) == ("45.0", "35.0", "40.0", "50.0")
    assert base["ce_ncg, change"] == "+0.00 (0.00)"
    assert other["ce_ncg, change"] == "+10.00 (5.00)"  # of +10 and +30 in one table: 20 (10), and 0 (0) in the other


def test_mutants_are_single_changes_that_tests_can_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "def positive(x):\n    return x > 0\n"
    assert {what for _, what, _ in mutants.mutants(source)} == {"x > 0: GtE", "0 is 1"}
    (tmp_path / "module.py").write_text(source)
    (tmp_path / "test_module.py").write_text("import module\n\ndef test():\n    assert not module.positive(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["mutants", "module.py", "test_module.py"])
    mutants.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["killed", "SURVIVES"]
    assert lines[-1] == "1 of 2 mutants survive; the module has 2"
    assert (tmp_path / "module.py").read_text() == source


def test_criterion_of_methods_by_hand() -> None:
    """The mean over tables, less the largest regret against the best simple method of a table."""
    means = {"retriever": (0.5, 0.6), "fusion": (0.4, 0.7), "ours": (0.6, 0.65), "no better": (0.5, 0.7)}
    means |= dict.fromkeys(registered.SIMPLE[2:], (0.1, 0.1))
    rows = [
        {"scorer": "as it is", "table": table, "query": query, "method": method, "ncg": pair[place] + shift}
        for method, pair in means.items()
        for place, table in enumerate("ab")
        for query, shift in enumerate((-0.1, 0.1))
    ]
    found = {line["method"]: line for line in registered.lines(rows)}
    ours = found["ours"]
    assert (ours["mean"], ours["largest regret"], ours["criterion"]) == ("62.5", "5.0", "57.50")
    assert (ours["a"], ours["b"]) == ("60.0 (+10.0 to +10.0)", "65.0 (-5.0 to -5.0)")
    assert found["no better"]["criterion"] == "60.00"
    one, other, best, *_ = registered.left_out(rows)
    assert (one["scorer"], one["method"], other["method"]) == ("a left out", "fusion", "ours")
    assert best["method"] == "no better"
