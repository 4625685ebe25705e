"""Test that every benchmark, soak, and study runs on small inputs with plausible figures."""

import sys
from dataclasses import replace
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd
import pytest

from boundarymorph.calibration.calibration import ProbabilityMap
from boundarymorph_evaluation.problem import QuestionTexts
from load_tests import boosts, lists, passages, probability, registered, report, soak, studies, tokens
from tests.evaluation.tables import synthetic

REPOSITORY = Path(__file__).parents[2]


ALONE = "--clients 1 --repetitions 1 --alone"
OVERLOAD = "--seconds 2 --spans 1 --clients 20 --documents 60 --budget 5"


def run(name: str, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run a program in this process, and return its report."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))  # for processes that it starts
    monkeypatch.setattr(sys, "argv", [name, *options.split()])
    import_module(f"load_tests.{name}").main()
    (written,) = report.RESULTS.glob("*.json")
    results: dict[str, Any] = orjson.loads(written.read_bytes())
    assert results["complete"]
    return results


@pytest.mark.usefixtures("tiny_weights")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bench_retrieval", "--documents 600 --dimension 16 --depth 100 --queries 2 --kinds flat"),
        ("bench_request", "--sizes 200,10,16 --requests 2"),
        (
            "bench_selection",
            "--pools 200 --dimensions 8 --rounds 0 2 --budgets 10 --literal-budgets 10 --repeats 1 --k 5",
        ),
        ("bench_models", f"--shape smoke --seconds .5 --pairs 12 --sessions 2 --documents 10 {ALONE}"),
        ("bench_gpu", "--device cpu --models smoke --pairs 6 --batch-tokens 512 --precisions bf16 --repeats 1"),
        ("soak", "--minutes .06 --row 1 --readers 5 --writers 2 --documents 200 --kills 4"),
        ("bench_failover", "--sessions 2 --seconds .4"),
        ("bench_overload", f"--capacity-seconds 1 {OVERLOAD}"),
        ("bench_overload", f"--rates 16 --mix {OVERLOAD}"),
    ],
)
def test_benchmark_runs_small_with_plausible_figures(
    name: str, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = run(name, options, tmp_path, monkeypatch)
    assert results["rows"]
    assert not any(results["ratios"].get(name) for name in ("failed", "failed_rounds", "wrong_answers"))


def test_soak_ledger_notices_wrong_versions() -> None:
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


def study(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> tuple[list[dict[str, Any]], str]:
    """Run a study, and return its rows and its report."""
    monkeypatch.setattr(sys, "argv", ["studies", *options, "--out", str(folder / "out")])
    studies.main()
    (rows,), (text,) = (folder / "out").glob("*.json"), (folder / "out").glob("*.md")
    return orjson.loads(rows.read_bytes()), text.read_text()


@pytest.mark.parametrize("name", [name for name, one in studies.STUDIES.items() if one.of == "questions"])
def test_study_runs_on_a_small_table(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "one.npz", **synthetic(queries=2, n=110, name="one").arrays)  # type: ignore[arg-type]
    for file, count, letter in (("corpus", 110, "d"), ("queries", 2, "q")):
        lines = [{"_id": f"{letter}{place}", "text": f"text {place % 7} of {place}"} for place in range(count)]
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / f"{file}.jsonl").write_bytes(b"\n".join(map(orjson.dumps, lines)))
    for constant, fewer in (("KS", (50,)), ("SMALL_KS", (5, 50)), ("CAP", 30)):
        monkeypatch.setattr(studies, constant, fewer)
    monkeypatch.setattr(registered, "TRIED", [(0.5, 1.0, 0.15), (1.0, 2.0, 0.25)])
    rows, text = study(tmp_path, monkeypatch, name, "--tables", str(tmp_path), "--collections", str(tmp_path))
    done = studies.STUDIES[name]
    assert {row["query"] for row in rows} == {0, 1}
    measured = [row[metric] for row in rows for metric in done.metrics if row[metric] is not None]
    assert measured and all(-1e-9 <= value <= 1 + 1e-9 for value in measured)
    assert text.startswith(f"# {done.title}\n\n| ")


def test_study_means_and_changes_equal_hand_computed_values() -> None:
    """The means are over settings, questions, and tables; changes are paired by question."""
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
    assert (
        other["ce_ncg, change"] == "+10.00 (5.00)"
    )  # the mean of +10 and +30 in one table: 20 (10), and 0 (0) in the other


def test_probability_study_recovers_the_map_behind_relevance() -> None:
    """In two of three tables, relevance has the probability of a known map.

    In the third, no document is relevant.
    """
    random, rows = np.random.default_rng(0), list[dict[str, Any]]()
    for table, query, part in product(("one", "two", "none"), range(40), ("ranking", "set")):
        relevance = random.uniform(0.01, 0.99, 30)
        happened = random.uniform(size=30) < ProbabilityMap(0.5, -1.0, 1e-7)(relevance)
        for value, relevant in zip(relevance.tolist(), (happened & (table != "none")).tolist(), strict=True):
            of = {"table": table, "query": query, "N": 9, "B": 10 * (query % 2), "part": part}
            rows.append({**of, "relevance": value, "relevant": float(relevant)})
    one, _, none, mean, worst = probability.lines(rows)
    assert float(none["slope"]) == pytest.approx(0.5, abs=0.1) and float(none["intercept"]) == pytest.approx(
        -1, abs=0.1
    )
    assert float(mean["intercept"]) < float(none["intercept"])  # the table without relevant documents counts
    assert float(none["left out"]) == pytest.approx(0.28, abs=0.05) and float(none["own map"]) < 0.01
    assert float(one["own map"]) < 0.08 < float(one["as it is"])
    assert float(one["10 judged"]) < 0.1 and none["relevant"] == "0.000"
    assert worst["left out"] == none["left out"]


def test_error_after_judging_is_that_of_other_questions() -> None:
    """All documents of one question are relevant, and none of the other."""
    of = {"part": "ranking", "relevance": np.repeat(np.linspace(0.2, 0.8, 30), 2)}
    own = pd.DataFrame({**of, "query": [1, 2] * 30, "relevant": [0.0, 1.0] * 30})
    assert probability.error_after_judging(own, own) > 0.9


def test_calibration_error_uses_bins_of_equal_mass() -> None:
    said, happened = np.repeat([0.2, 0.6], 10), np.array([1.0] * 2 + [0.0] * 8 + [1.0] * 10)
    assert probability.calibration_error(np.repeat([0.2, 0.6], 5), happened[::2]) == pytest.approx(0.36)
    assert probability.calibration_error(said, np.roll(happened, 10)) == pytest.approx(0.68)


def test_passage_study_joins_passages_by_topic_or_at_random() -> None:
    """If scores equal grades, scoring every passage is perfect, but cutting documents is not."""
    question = synthetic(queries=1, n=110).question(0)
    pool, near = question.pool, list[float]()
    for join in (passages.at_random, passages.by_topic):
        joined = join(pool, np.random.default_rng(0))
        assert joined.shape == (13, 8) and len(set(joined.ravel().tolist())) == 104
        near.append(float(np.mean([pool.embeddings[own] @ pool.embeddings[own].T for own in joined])))
    assert near[1] > near[0] + 0.1
    found = dict[tuple[str, str], list[float]]()
    for question in synthetic(queries=4, n=110).questions():
        assert question.grades is not None
        for row in passages.passages(replace(question, scores=question.grades / 2), 0):
            found.setdefault((row["joined"], row["method"]), []).append(row["ndcg_10"])
    for how in ("at random", "by topic"):
        assert found[how, passages.EVERY] == pytest.approx([1.0] * 4)
        assert np.mean(found[how, "cut at the first passage"]) < 0.95


def test_boosts_within_selection_find_more_value_than_after() -> None:
    rows = [row for question in synthetic(queries=3, n=120).questions() for row in boosts.boosts(question, 0)]
    within, after = (
        np.mean([row["found"] for row in rows if row["method"] == method]) for method in ("boosted", boosts.AFTER)
    )
    assert len(rows) == 18 and 1.0 >= within > after


def test_token_study_finds_more_than_orders_that_ignore_length() -> None:
    """Every second document is eight times as long as the others.

    Questions without texts are skipped.
    """
    texts = QuestionTexts("sea", ["t" * (3_200 if place % 2 else 400) for place in range(120)])
    rows = list[dict[str, Any]]()
    for question in synthetic(queries=3, n=120).questions():
        grades = (question.scores >= np.sort(question.scores)[-40]).astype(np.float64)
        assert not list(tokens.tokens(replace(question, grades=grades), 0))
        rows += tokens.tokens(replace(question, grades=grades, texts=texts), 0)
    assert len(rows) == 3 * 24
    assert all(0.0 <= row["found"] <= 1.0 for row in rows)
    means = {
        method: np.mean([row["found"] for row in rows if row["method"] == method and row["B"] == 50])
        for method in ("by the answer's relevance", "first B reranked", tokens.RETRIEVED)
    }
    ours, reranked, retrieved = means.values()
    assert ours > reranked > retrieved


def test_list_study_ranks_like_a_rerank_route() -> None:
    """Lists without texts are skipped. Words find documents beyond the first 25."""
    question, relevant = synthetic(queries=1, n=110).question(0), np.arange(110) // 20 == 2
    texts = QuestionTexts("sea", [f"{'sea' if of_it else 'hill'} {place}" for place, of_it in enumerate(relevant)])
    made = replace(question, grades=relevant.astype(np.float64), scores=np.where(relevant, 0.9, 0.1))
    assert not list(lists.lists(made, 0))
    found = {row["method"]: row["ndcg_10"] for row in lists.lists(replace(made, texts=texts), 0)}
    assert (found["as given"], found["the first 25 reranked"], found["all reranked"]) == (0, 0, 1)
    assert min(found["25 calls"], found["10 calls"]) > 0.5
