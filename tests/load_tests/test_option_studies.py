"""The study of a session's options, on a table small enough to check by hand or by another way."""

from dataclasses import replace

import numpy as np
import pytest

from boundarymorph.evaluation.metrics import normalised_gain
from boundarymorph.evaluation.problem import fused_order, reordered
from boundarymorph.evaluation.tables import ScoreTable
from boundarymorph.selection import SelectionSession, TokenCapacity
from boundarymorph.selection.methods import DEFAULT, METHODS
from load_tests import evaluation_options
from load_tests import option_studies as options
from load_tests.studies import Row, without_words
from tests.selection.pools import clustered, play


@pytest.fixture(scope="module")
def table() -> ScoreTable:
    pools = [clustered(160, 8, seed, np.float32) for seed in range(3)]
    embeddings = np.concatenate([pool.embeddings for pool, _ in pools])
    return ScoreTable(
        "made-up",
        {
            "doc_emb": embeddings,
            "query_emb": np.array([pool.query for pool, _ in pools]),
            "pool": np.arange(480).reshape(3, 160),
            "score": np.array([scores for _, scores in pools]),
            "bm25": np.maximum(0, np.random.default_rng(3).standard_normal((3, 160))),
            "terms": np.random.default_rng(4).integers(16, size=(3, 160), dtype=np.uint64),
        },
    )


@pytest.fixture(scope="module")
def trajectories(table: ScoreTable) -> list[Row]:
    return [{"table": table.name, **row} for row in options.trajectories(table, 1, lambda: None)]


@pytest.mark.parametrize("threshold", [0.2, 0.05])
def test_a_trajectory_says_where_a_session_with_that_threshold_stops(
    table: ScoreTable, trajectories: list[Row], threshold: float
) -> None:
    stopped = {(row["query"], row["k"]): row for row in options.settled(trajectories, threshold)}
    assert len(stopped) == 2 * len(table)
    for number, question in enumerate(table.questions()):
        session = SelectionSession(question.pool, budget=options.CAP, k=50, config=METHODS[DEFAULT], settle=threshold)
        play(session, question.scores, options.CAP_ROUND)
        assert stopped[number, 50]["calls"] == session.spent
        assert stopped[number, 50]["ce_ncg"] == normalised_gain(session.selection().documents, question.scores)
    assert all(row["ce_ncg"] > 0.98 for row in options.at_fixed_budget(trajectories, 160))


def test_the_linear_optimum_takes_part_of_the_last_document() -> None:
    capacity = TokenCapacity(np.array([10.0, 20.0, 10.0]), 25.0)
    assert options._linear_optimum(np.array([0.5, 0.8, 0.1]), capacity) == pytest.approx(0.5 + 0.8 * 15 / 20)
    assert options._packed(np.array([1, 0, 2]), capacity).tolist() == [1]


def test_every_study_runs_and_names_its_queries(table: ScoreTable, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, fewer in (("BUDGETS", (5, 10)), ("KS", (50,)), ("ROUNDS", (1, 5)), ("CAP", 30), ("WIDTHS", (2,))):
        monkeypatch.setattr(options, name, fewer)
    seen = []
    for study in options.STUDIES.values():
        rows = study(table, 2, lambda: seen.append(1))
        assert {row["query"] for row in rows} == {0, 2}
    assert len(seen) == 2 * len(options.STUDIES)
    for row in options.tokens(table, 3, lambda: None):
        assert 0 < row["share"] <= 1 + 1e-9


def test_hybrid_orders_the_same_pool_by_both(table: ScoreTable) -> None:
    question = table.question(0)
    order, scores = fused_order(question.pool)
    assert sorted(order.tolist()) == list(range(160))
    assert (np.diff(scores) <= 0).all()
    words = question.pool.features["bm25"]
    best = int(order[0])
    ranks = [1 + best, 1 + int((words > words[best]).sum())]
    assert scores[0] == pytest.approx(sum(1 / (60 + rank) for rank in ranks))
    silent = replace(question.pool, features={"bm25": np.zeros(160)})
    assert fused_order(silent)[0].tolist() == list(range(160))
    rows = options.hybrid(table, 3, lambda: None)
    unspent = {row["prior"] for row in rows if (row["budget"], row["k"]) == (0, 50)}
    assert unspent >= {"similarity", "fused"}


def test_a_pace_is_a_session_in_such_rounds(table: ScoreTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "PACED_KS", (10,))
    rows = options.paces(table, 3, lambda: None)
    found = {(row["bm25"], row["pace"]): row["ce_ncg"] for row in rows if row["budget"] == 25}
    assert len(found) == 10
    question = table.question(0)
    for bm25, pool in ((True, question.pool), (False, replace(question.pool, features={}, terms=None))):
        session = SelectionSession(pool, budget=25, k=10, config=METHODS[DEFAULT])
        play(session, question.scores, 5)
        assert found[bm25, "rounds of 5"] == normalised_gain(session.selection().documents, question.scores)
        first = np.sort(question.scores[:25])[::-1][:10]
        best = np.sort(question.scores)[::-1][:10]
        assert found[bm25, options.FIRST_B] == pytest.approx(first.sum() / best.sum())
    assert len(set(found.values())) > 4


def test_ablations_take_the_words_of_the_query_away_alone_and_with_bm25(
    table: ScoreTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "KS", (50,))
    rows = {row["variant"]: row["ce_ncg"] for row in options.ablations(table, 3, lambda: None) if row["budget"] == 25}
    question = table.question(0)
    pools = {
        "default": question.pool,
        "default, without the query's words": replace(question.pool, terms=None),
        "default, without BM25": replace(question.pool, features={}, terms=None),
    }
    for variant, pool in pools.items():
        session = play(SelectionSession(pool, budget=25, k=50, config=METHODS[DEFAULT]), question.scores)
        assert rows[variant] == normalised_gain(session.selection().documents, question.scores)
    assert len({rows[variant] for variant in pools}) == 3


def test_without_words_the_similarity_of_a_fused_pool_is_kept(table: ScoreTable) -> None:
    whole = table.question(0).pool
    pool = reordered(whole, *fused_order(whole))
    bare = without_words(pool)
    assert pool.terms is not None and bare.terms is None
    assert set(pool.features) == {"bm25", "similarity"} and set(bare.features) == {"similarity"}


def test_tables_without_labels_have_no_ncg_of_ablations(table: ScoreTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "KS", (50,))
    unlabelled = {key: values for key, values in table.arrays.items() if key not in ("grade", "n_relevant")}
    rows = [{"table": "t", **row} for row in options.ablations(ScoreTable("t", unlabelled), 3, lambda: None)]
    lines = evaluation_options._ablations(rows)
    assert {line["variant"] for line in lines} == set(options.VARIANTS)
    assert all("nCG" not in line and "nCG change" not in line and line["CE-nCG change"] for line in lines)
