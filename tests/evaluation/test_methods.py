"""Test each method of selection with hand-computed and degenerate cases."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from boundarymorph.errors import InvalidInput
from boundarymorph.selection import Belief, Pool, UpperConfidenceBound
from boundarymorph.selection.methods import HUMAN_CONFIG, METHODS
from boundarymorph.selection.pool import SIGNAL_WEIGHTS, Trust
from boundarymorph_evaluation.methods import CONTESTANTS, GROUPS, find_contestants
from boundarymorph_evaluation.methods.baselines import (
    Bagel,
    Feedback,
    Fusion,
    Gar,
    Hybrid,
    Quam,
    Rgs,
    Rocchio,
    SingleStage,
    WarmStarted,
)
from boundarymorph_evaluation.methods.morph import Extend, Lexical, Morph
from boundarymorph_evaluation.metrics import quality
from boundarymorph_evaluation.problem import EMBEDDED, Question, QuestionTexts, fused_order, reorder
from boundarymorph_evaluation.run import run_once
from tests.evaluation.tables import on_a_circle, problem, synthetic
from tests.selection.pools import play
from tests.sessions import session_of

WORDS = QuestionTexts("topic3 topic4", [f"topic{number % 7} topic{number % 5} word{number}" for number in range(80)])
QUESTIONS = [replace(question, texts=WORDS) for question in synthetic(queries=3, n=80, seed=5).questions()]

# Retrieval order 0..7 by angle from the query, in two far groups: neighbours are within a group.
#                 0   1   2    3    4    5    6    7
TWO_GROUPS = on_a_circle([0, 60, 2, 62, 5, 66, 9, 71], [0.2, 0.9, 0.1, 0.8, 0.3, 0.7, 0.0, 0.6])


@pytest.mark.parametrize("name", CONTESTANTS)
def test_every_method_ranks_all_documents_once_within_its_budget(name: str) -> None:
    contestant = CONTESTANTS[name]
    for method in contestant.settings:
        for budget in (1, 7, 200):
            run, ranking = run_once(method, QUESTIONS[0], budget, 10)
            assert sorted(ranking.tolist()) == list(range(80))
            assert len(run.calls) <= min(budget, 80)
            if method.uses_budget and not method.uses_k:
                assert len(run.calls) == min(budget, 80), "a baseline spends all that it may"
            if not method.uses_budget:
                assert not run.calls


@pytest.mark.parametrize("method", [SingleStage(), Gar(4, 3), Quam(4, 3, 5)])
def test_hybrid_baseline_equals_its_base_on_the_fused_order(method: SingleStage | Gar | Quam) -> None:
    for question in QUESTIONS:
        order, scores = fused_order(question.pool)
        assert order.tolist() != list(range(80))
        by_hand = Question(question.id, reorder(question.pool, order, scores), question.scores[order])
        expected, ranking = run_once(method, by_hand, 12, 10)
        run, found = run_once(Hybrid(method), question, 12, 10)
        assert run.calls == order[expected.calls].tolist()
        assert found.tolist() == order[ranking].tolist()


def linked(question: Question, graph: list[list[int]]) -> Question:
    """Return the question with this graph of its documents."""
    question.__dict__["neighbourhood"] = SimpleNamespace(seconds=0.0, graph=lambda degree: np.array(graph))
    return question


def test_rgs_visits_neighbours_of_the_best_scored() -> None:
    # Seeds 0, 1. 1 is the best (.9): its two neighbours are 3 (2 degrees) and 5 (6). Then 3 (.8): 1, 5 known -> 7? no,
    # degree 2 gives 3 the neighbours 1 and 5. Then 5 (.7): 3 known, 7 new.
    question = on_a_circle([0, 60, 2, 62, 5, 66, 9, 71], TWO_GROUPS.scores.tolist())
    run = problem(linked(question, [[2, 4], [3, 5], [0, 4], [1, 5], [2, 0], [3, 7], [4, 2], [5, -1]]), budget=5)
    ranking = Rgs(degree=2, seed_div=2.5, frac=1.0).rank(run)
    assert run.calls == [0, 1, 3, 5, 7]
    assert ranking.tolist() == [1, 3, 5, 7, 0, 2, 4, 6]


def test_rgs_queue_drops_documents_over_its_size() -> None:
    # The seed 0 leads to 1 and 2. If both fit, 1 leads nowhere, and then 2 leads to 5.
    for frac, calls in ((1.0, [0, 1, 2, 5]), (0.5, [0, 1, 2, 5]), (0.25, [0, 1, 2, 3])):
        question = on_a_circle([0, 1, 2, 3, 4, 5], [0.5, 0.9, 0.1, 0.8, 0.2, 0.7])
        run = problem(linked(question, [[1, 2], [-1, -1], [5, -1], [-1, -1], [-1, -1], [-1, -1]]), budget=4)
        # If only one fits, 2 is dropped, and the retrieval order takes the last call.
        Rgs(degree=2, seed_div=4.0, frac=frac).rank(run)
        assert run.calls == calls


def test_gar_alternates_between_ranking_and_neighbours() -> None:
    # Batches of 2, alternating. Retrieval: 0, 1. Frontier: neighbours of 1 (.9) are 3 and 5, of 0 (.2) are 2 and 4
    # -> 3, 5. Retrieval: 2, 4 (the first unscored). Frontier: of 3 (.8): 1, 5; of 5 (.7): 3 and 7 -> 7; of 4 (.3):
    # 2 (3 degrees), 6 (4 degrees) -> 6.
    run = problem(TWO_GROUPS, budget=8)
    ranking = Gar(neighbours=2, batch=2).rank(run)
    assert run.calls == [0, 1, 3, 5, 2, 4, 7, 6]
    assert ranking.tolist() == [1, 3, 5, 7, 4, 0, 2, 6]


def test_quam_scores_the_neighbour_with_the_highest_affinity() -> None:
    # Documents at 0, 90 and between; neighbours = 2. Retrieval: 0 (.5) and 1 (.5), shares 1/2 each.
    # Affinities: 2 (40 degrees) is near 0 (cos 40) and near 1 (cos 50): (cos 40 + cos 50) / 2 = .704;
    # 3 (-20) is near 0 only: cos 20 / 2 = .470; 4 (110) near 1 only: cos 20 / 2 = .470. GAR would take 2 and 3 alike.
    # With unequal scores the better leader counts more: shares 1/4 and 3/4, so 4 (.705) beats 2 (.674).
    # With one leader, 1, its nearest, 4, is first whatever 0 says.
    for first, second, leaders, third in ((0.5, 0.5, 30, 2), (0.2, 0.6, 30, 4), (0.5, 0.6, 1, 4)):
        run = problem(on_a_circle([0, 90, 40, -20, 110], [first, second, 0.1, 0.2, 0.3]), budget=3)
        Quam(neighbours=2, batch=2, leaders=leaders).rank(run)
        assert run.calls == [0, 1, third]


def test_bagel_scores_the_head_first_and_then_anneals() -> None:
    run, _ = run_once(Bagel(beta0=2.0), QUESTIONS[0], 11, 10)
    assert run.calls[:5] == [0, 1, 2, 3, 4]
    assert len(run.calls) == 11
    scored = np.zeros(80, dtype=bool)
    belief = Belief(np.linspace(0, 1, 80), np.linspace(1, 0, 80), scored)
    rule = WarmStarted(5, UpperConfidenceBound(2.0))
    assert rule.choose(belief, scored, 3).document == 0, "the first unscored one"
    for step, beta in ((5, 2.0), (8, 1.0)):
        expected = int(np.argmax(belief.mean + beta * belief.std))
        assert rule.choose(belief, scored, step).document == expected
        assert rule.choose(belief, scored, step).value == pytest.approx((belief.mean + beta * belief.std).max())


def test_morph_makes_the_calls_and_set_of_a_session() -> None:
    for config in METHODS.values():
        run, ranking = run_once(Morph(config), QUESTIONS[1], 12, 10)
        session = session_of(QUESTIONS[1].pool, budget=12, k=10, config=config)
        play(session, QUESTIONS[1].scores, 1)
        assert ranking[:10].tolist() == session.selection().documents.tolist()
        assert run.calls == [observation.document for observation in session.history]


@pytest.mark.parametrize(
    ("scorer", "trust"), [(EMBEDDED, "weak"), ("made-up", "normal"), ("voyage:rerank-2.5", "strong")]
)
def test_morph_trusts_a_scorer_like_the_service(scorer: str, trust: Trust) -> None:
    question = replace(QUESTIONS[0], scorer=scorer)
    config = replace(HUMAN_CONFIG, signal_weight=SIGNAL_WEIGHTS[trust])
    session = play(session_of(question.pool, budget=12, k=10, config=config), question.scores, 1)
    ranking = run_once(Morph(HUMAN_CONFIG), question, 12, 10)[1]
    assert ranking[:10].tolist() == session.selection().documents.tolist()
    by_head = session_of(question.pool, budget=0, k=10, config=config, known={0: float(question.scores[0])})
    assert run_once(Extend(), question, 1, 10)[1][:10].tolist() == by_head.selection().documents.tolist()


def test_extend_scores_the_head_and_lets_a_session_choose() -> None:
    """The method scores the first B documents, and returns the best of these and others."""
    for question in QUESTIONS:
        run, ranking = run_once(Extend(), question, 12, 10)
        assert run.calls == list(range(12))
        known = dict(enumerate(question.scores[:12].tolist()))
        session = session_of(question.pool, budget=0, k=10, config=question.configured(HUMAN_CONFIG), known=known)
        assert ranking[:10].tolist() == session.selection().documents.tolist()
        blind = run_once(Extend(), replace(question, scores=np.where(np.arange(80) < 12, question.scores, 0.0)), 12, 10)
        assert blind[1].tolist() == ranking.tolist(), "scores that nobody bought decide nothing"
    gains = [
        np.mean([quality(question, run_once(method, question, 20, 20)[1], 20).ce_ncg for question in QUESTIONS])
        for method in (SingleStage(), Extend())
    ]
    assert gains[1] > gains[0], gains


def test_chosen_resolves_names_groups_and_rounds() -> None:
    assert [contestant.name for contestant in find_contestants(["baselines"])] == list(GROUPS["baselines"])
    assert [contestant.name for contestant in find_contestants(["mips", "baselines"])][:2] == ["mips", "bm25"]
    assert "extend" in [contestant.name for contestant in find_contestants(["product"])]
    (rounds,) = find_contestants(["boundarymorph@5"])
    method = rounds.settings[0]
    assert rounds.name == "boundarymorph@5" and rounds.ours and isinstance(method, Morph) and method.batch == 5


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("morphology", "no method is called 'morphology'"),
        ("boundarymorph@", "no method is called 'boundarymorph@'"),
        ("mips@5", "rounds are NAME@n or NAME@auto with a product method"),
        ("extend@5", "rounds are NAME@n"),
        ("boundarymorph@0", "rounds are NAME@n"),
        ("boundarymorph@x", "rounds are NAME@n"),
        ("boundarymorph@-1", "rounds are NAME@n"),
    ],
)
def test_chosen_refuses_unknown_method_names(name: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        find_contestants(["mips", name])


def test_lexical_methods_order_the_pool_as_their_names_say() -> None:
    """A method that knows the retrieval order keeps it; the other one orders by BM25."""
    for question in QUESTIONS:
        bm25 = np.argsort(-question.pool.features["bm25"], kind="stable")
        for method, order in (
            (Lexical("scores"), np.arange(80)),
            (Lexical("ranked"), np.arange(80)),
            (Lexical("bm25"), bm25),
        ):
            assert list(method._pool(question).ids) == [question.pool.ids[position] for position in order]


def test_lexical_methods_learn_scores_that_follow_a_word() -> None:
    """The vectors carry no information about the word."""
    scores = np.where(np.arange(80) % 7 == 2, 0.9, 0.1)
    blind, learned = 0.0, 0.0
    for question in QUESTIONS:
        known = replace(question, pool=replace(question.pool, terms=None), scores=scores)
        blind += scores[run_once(Morph(METHODS["trend"], 5), known, 20, 11)[1][:11]].sum()
        learned += scores[run_once(Lexical("ranked"), known, 20, 11)[1][:11]].sum()
    assert learned > blind + len(QUESTIONS), (learned, blind)


def test_rocchio_moves_the_query_towards_documents_that_score_well() -> None:
    question = on_a_circle([0, 20, 40, 60, 80, 100], [0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    run, ranking = run_once(Rocchio(), question, 3, 2)
    assert run.calls == [0, 1, 2]  # the vectors of 0 and 40 degrees, the second by three quarters, point to 17
    assert ranking.tolist() == [1, 0, 2, 3, 4, 5]
    assert run_once(Rocchio(), on_a_circle([0, 20, 40], [0.0, 0.0, 0.0]), 3, 2)[1].tolist() == [0, 1, 2]


def test_fusion_weighs_similarity_three_to_one_against_words() -> None:
    similarity, bm25 = np.array([4.0, 3.0, 2.0, 1.9]), np.array([0.0, 0.0, 0.0, 9.0])
    pool = Pool.from_embeddings(["a", "b", "c", "d"], np.eye(4), np.ones(4), similarity, {"bm25": bm25})
    ranking = run_once(Fusion(), Question("q", pool, np.zeros(4)), 0, 2)[1]
    roots = (np.sqrt(bm25) - np.sqrt(bm25).mean()) / np.sqrt(bm25).std()
    by_both = 0.75 * (similarity - similarity.mean()) / similarity.std() + 0.25 * roots
    assert ranking.tolist() == np.argsort(-by_both).tolist() == [0, 1, 3, 2]


def test_feedback_moves_the_query_by_pairs_of_best_and_worst() -> None:
    question = on_a_circle([0, 10, 20, 30, 40, 60], [0.1, 0.5, 0.2, 0.9, 0.0, 0.0])
    run, ranking = run_once(Feedback(b=2.0, c=0.5), question, 4, 3)
    assert run.calls == [0, 1, 2, 3]
    at = question.pool.embeddings.astype(np.float64)
    # Pairs: 30 degrees (.9) against 0 (.1), and 10 (.5) against 20 (.2); the differences squared, times a half.
    moved = question.pool.query + 0.32 * (at[3] - at[0]) + 0.045 * (at[1] - at[2])
    assert ranking.tolist() == np.argsort(-(at @ moved), kind="stable").tolist() != list(range(6))
    assert run_once(Feedback(b=1.0, c=1.0), question, 1, 3)[1].tolist() == list(range(6)), "one document makes no pair"
