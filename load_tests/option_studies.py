"""What the parts and the options of a session bring and cost, from ablations to speculation.

Each function measures one option on one table and returns flat rows, one a query and setting, to be averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.evaluation.methods.morph import Morph
from boundarymorph.evaluation.metrics import normalised_gain
from boundarymorph.evaluation.problem import Question, fused_order, reordered
from boundarymorph.evaluation.run import run_once
from boundarymorph.evaluation.tables import ScoreTable
from boundarymorph.selection import (
    Capacity,
    Config,
    DocumentCapacity,
    Explore,
    Pool,
    Selection,
    SelectionConfig,
    SelectionSession,
    TokenCapacity,
    TrendConfig,
)
from boundarymorph.selection.features import standardised
from boundarymorph.selection.methods import DEFAULT, METHODS, PAPER
from boundarymorph.selection.session import LOOKS_TO_SETTLE
from load_tests.speculation import SpeculativeSession
from load_tests.studies import Row, by_score, without_terms, without_words
from tests.selection.pools import play

Watch = Callable[[], None]  # called once a query

BUDGETS, KS = (25, 50), (50, 100, 200)
ROUNDS = (1, 2, 5, 10, 25)
ONE_BY_ONE, PAPERS, FIRST_B = "one by one", "the paper's, one by one", "the first B, reranked"
PACES = {
    ONE_BY_ONE: Morph(METHODS[DEFAULT]),
    "growing rounds": Morph(METHODS[DEFAULT], None),
    "rounds of 5": Morph(METHODS[DEFAULT], 5),
    PAPERS: Morph(METHODS[PAPER]),
}
PACED_BUDGETS, SMALL_KS, PACED_KS = (10, 25, 50), (5, 10, 20), (5, 10, 20, 50, 100, 200)
CAP, CAP_ROUND, SETTLED_KS = 200, 5, (50, 100)
THRESHOLDS = (0.2, 0.1, 0.05, 0.03, 0.02, 0.01, 0.005)
SPREADS, LIMITS, MEAN_LENGTH = (0.65, 0.25), (50, 100), 100
WIDTHS = (2, 4, 8)
VARIANTS: Mapping[str, Config] = {
    "default": TrendConfig(),
    "default, without BM25": TrendConfig(),
    "default, without the query's words": TrendConfig(),
    "default, without a trend": TrendConfig(weight=0.0),
    "default, boundary gap throughout": TrendConfig(acquisition=Explore(gap_calls=1_000_000)),
    "default, value at the cutoff throughout": TrendConfig(acquisition=Explore(gap_calls=0)),
    "default, without the retrieval bonus": TrendConfig(bonus=0.0),
    "paper": SelectionConfig(),
    "paper, told log-odds": SelectionConfig(),
}
CHANGED: Mapping[str, Callable[[Pool], Pool]] = {  # pools of variants
    "default, without BM25": without_words,
    "default, without the query's words": without_terms,
}
SIGNALS = ("none", "1 noise", "4 noise", "16 noise", "useful", "useful, half missing", "useful and 15 noise")
USEFUL = 0.5  # correlation of a useful signal with the log-odds of the scores
LOG_ODDS = 11.5  # of the widest score that common cross-encoders give


def questions(table: ScoreTable, every: int, watch: Watch) -> Iterator[tuple[int, Question]]:
    """Row and question of every so many queries."""
    for row in range(0, len(table), every):
        yield row, table.question(row)
        watch()


def rounds(table: ScoreTable, every: int, watch: Watch) -> list[Row]:
    """CE-nCG in rounds of n; n = 1 is the sequential session."""
    found: list[Row] = []
    for row, question in questions(table, every, watch):
        for name, config in METHODS.items():
            for size in ROUNDS:
                for budget in BUDGETS:
                    for k in (k for k in KS if k < len(question.pool)):
                        _, ranking = run_once(Morph(config, size), question, budget, k)
                        quality = normalised_gain(ranking[:k], question.scores)
                        setting = {"query": row, "method": name, "round": size, "budget": budget, "k": k}
                        found.append({**setting, "ce_ncg": quality})
    return found


def paces(table: ScoreTable, every: int, watch: Watch) -> list[Row]:
    """CE-nCG at each pace, of the paper's method and of reranking the first B, with and without BM25, down to k = 5."""
    found: list[Row] = []
    for row, question in questions(table, every, watch):
        without = replace(question, pool=without_words(question.pool))
        for budget in PACED_BUDGETS:
            for k in (k for k in PACED_KS if k < len(question.pool)):
                setting = {"query": row, "budget": budget, "k": k}
                first = by_score(question.scores, budget)[:k]
                quality = normalised_gain(first, question.scores)
                found += [{**setting, "bm25": bm25, "pace": FIRST_B, "ce_ncg": quality} for bm25 in (True, False)]
                for pace, method in PACES.items():
                    for bm25, asked in ((True, question), (False, without)):
                        _, ranking = run_once(method, asked, budget, k)
                        quality = normalised_gain(ranking[:k], question.scores)
                        found.append({**setting, "bm25": bm25, "pace": pace, "ce_ncg": quality})
    return found


def ablations(table: ScoreTable, every: int, watch: Watch) -> list[Row]:
    """CE-nCG and nCG of the default with one thing about it taken away, and of the paper's method told log-odds.

    Those are the log-odds of the scores on a linear scale that puts +-11.5 at 0 and 1.
    """
    found: list[Row] = []
    for row, question in questions(table, every, watch):
        with np.errstate(divide="ignore"):
            odds = np.log(question.scores) - np.log1p(-question.scores)
        linear = np.clip(0.5 + odds / (2 * LOG_ODDS), 0.0, 1.0)
        relevant = None if question.grades is None else (question.grades > 0).astype(np.float64)
        for name, config in VARIANTS.items():
            pool = CHANGED[name](question.pool) if name in CHANGED else question.pool
            told = linear if "log-odds" in name else question.scores
            for k in (k for k in KS if k < len(pool)):
                session = SelectionSession(pool, budget=max(BUDGETS), k=k, config=config)
                for budget in _at_budgets(session, told, BUDGETS):
                    chosen = session.selection().documents
                    ncg = normalised_gain(chosen, relevant) if relevant is not None else float("nan")
                    setting = {"query": row, "variant": name, "budget": budget, "k": k}
                    found.append({**setting, "ce_ncg": normalised_gain(chosen, question.scores), "ncg": ncg})
    return found


def trajectories(table: ScoreTable, every: int, watch: Watch) -> list[Row]:
    """Expected loss, the same with caution, and quality after every round of 5, up to 200 calls.

    A session does not look at its budget to choose a document, so that one long run says both where each threshold
    would have stopped and what each fixed budget would have brought.
    """
    found: list[Row] = []
    for row, question in questions(table, every, watch):
        for k in (k for k in SETTLED_KS if k < len(question.pool)):
            session = SelectionSession(question.pool, budget=CAP, k=k, config=METHODS[DEFAULT])
            while True:
                loss, cautious = session.expected_loss(), session.cautious_loss()
                chosen = session.selection().documents
                quality = normalised_gain(chosen, question.scores)
                setting = {"query": row, "k": k, "calls": session.spent, "informed": session.enough_scores}
                found.append({**setting, "loss": loss, "cautious_loss": cautious, "ce_ncg": quality})
                if not (asked := session.ask(CAP_ROUND)).size:
                    break
                session.tell(asked, question.scores[asked])
    return found


def tokens(table: ScoreTable, every: int, watch: Watch) -> list[Row]:
    """Relevance within a token limit, as a share of the linear relaxation's optimum, which knows every score.

    count: asked about k = limit / mean length documents, and packed by relevance; count+density: the same calls, packed
    by relevance per token; tokens: asked and packed under the limit itself, as the product does; count+root:
    packed by relevance over the root of the length, between the two. Lengths are drawn, seeded, log-normal, and know
    nothing of relevance.
    """
    found: list[Row] = []
    for row, question in questions(table, every, watch):
        everything = DocumentCapacity(len(question.pool))
        for limit in (limit for limit in LIMITS if limit < len(question.pool)):
            limited = {
                spread: TokenCapacity(_lengths(len(question.pool), spread, row), float(limit * MEAN_LENGTH))
                for spread in SPREADS
            }
            counted = SelectionSession(question.pool, budget=max(BUDGETS), k=limit, config=METHODS[DEFAULT])
            sets: list[tuple[float, int, str, NDArray[np.intp]]] = []
            for budget in _at_budgets(counted, question.scores, BUDGETS):
                for spread, capacity in limited.items():
                    ranked = _returned(counted, everything)
                    sets += [
                        (spread, budget, "count", _packed(ranked.documents, capacity)),
                        (spread, budget, "count+root", _packed(_by_root(ranked, capacity), capacity)),
                        (spread, budget, "count+density", _returned(counted, capacity).documents),
                    ]
            for spread, capacity in limited.items():
                session = SelectionSession(question.pool, budget=max(BUDGETS), k=capacity, config=METHODS[DEFAULT])
                for budget in _at_budgets(session, question.scores, BUDGETS):
                    sets.append((spread, budget, "tokens", session.selection().documents))
            for spread, budget, how, chosen in sets:
                optimum = _linear_optimum(question.scores, limited[spread])
                share = float(question.scores[chosen].sum()) / optimum if optimum > 0 else float("nan")
                setting = {"query": row, "spread": spread, "limit": limit, "budget": budget, "how": how}
                found.append({**setting, "share": share})
    return found


def known(table: ScoreTable, every: int, watch: Watch) -> list[Row]:
    """A first request asked 25 documents at k = 50; what are its scores worth to a second request at another k?"""
    found: list[Row] = []
    first, second = BUDGETS
    for row, question in questions(table, every, watch):
        before = SelectionSession(question.pool, budget=first, k=KS[0], config=METHODS[DEFAULT])
        scores = {seen.document: seen.score for seen in play(before, question.scores).history}
        for k in (k for k in KS if k < len(question.pool)):
            runs: tuple[tuple[str, dict[int, float], tuple[int, int]], ...] = (
                ("from scratch", {}, (second, first + second)),
                ("knowing 25", scores, (first, second)),
            )
            for how, given, budgets in runs:
                session = SelectionSession(
                    question.pool, budget=max(budgets), k=k, config=METHODS[DEFAULT], known=given
                )
                for budget in _at_budgets(session, question.scores, budgets):
                    quality = normalised_gain(session.selection().documents, question.scores)
                    setting = {"query": row, "k": k, "how": how, "calls": budget, "scores": budget + len(given)}
                    found.append({**setting, "ce_ncg": quality})
    return found


def speculation(table: ScoreTable, every: int, watch: Watch) -> list[Row]:
    """Trips and calls that a pick takes when likely next picks travel along, at B = 50 and k = 100."""
    found: list[Row] = []
    for row, question in questions(table, every, watch):
        for name, config in METHODS.items():
            for width in WIDTHS:
                session = SelectionSession(question.pool, budget=max(BUDGETS), k=100, config=config)
                ahead = SpeculativeSession(session, width)
                while (asked := ahead.ask()).size:
                    ahead.tell(asked, question.scores[asked])
                if session.spent:
                    per_pick = {"trips": ahead.trips / session.spent, "scored": ahead.scored / session.spent}
                    found.append({"query": row, "method": name, "width": width, **per_pick})
    return found


def hybrid(table: ScoreTable, every: int, watch: Watch) -> list[Row]:
    """What the words of documents bring: as a feature that the session learns from, in the order of the pool, or both.

    "fused": the pool is ordered, and the session's prior made, by reciprocal ranks of similarity and BM25 together,
    with the similarity as a feature. It is the same pool, so what BM25 alone would have brought into it does not show.
    """
    found: list[Row] = []
    for row, question in questions(table, every, watch):
        if "bm25" not in question.pool.features:
            continue
        order, scores = fused_order(question.pool)
        fused = reordered(question.pool, order, scores)
        orders: Mapping[str, tuple[Pool, NDArray[np.float64]]] = {
            "similarity": (question.pool, question.scores),
            "fused": (fused, question.scores[order]),
        }
        for prior, (pool, told) in orders.items():
            for feature in (True, False):
                seen = pool if feature else without_words(pool)
                for k in (k for k in KS if k < len(pool)):
                    session = SelectionSession(seen, budget=max(BUDGETS), k=k, config=METHODS[DEFAULT])
                    for budget in _at_budgets(session, told, (0, *BUDGETS)):
                        chosen = session.selection().documents
                        setting = {"query": row, "prior": prior, "feature": feature, "budget": budget, "k": k}
                        found.append({**setting, "ce_ncg": normalised_gain(chosen, told)})
    return found


def signals(table: ScoreTable, every: int, watch: Watch) -> list[Row]:
    """CE-nCG of the default with signals of the caller's, beside those that the table has: noise, and a useful one."""
    found: list[Row] = []
    for row, question in questions(table, every, watch):
        rng, count = np.random.default_rng(row), len(question.pool)
        noise = {f"noise {number:02}": rng.standard_normal(count) for number in range(16)}
        odds = np.log(np.clip(question.scores, 1e-5, 1 - 1e-5)) - np.log1p(-np.clip(question.scores, 1e-5, 1 - 1e-5))
        useful = USEFUL * standardised(odds) + np.sqrt(1 - USEFUL**2) * rng.standard_normal(count)
        missing = np.where(rng.random(count) < 0.5, np.nan, useful)
        for signal in SIGNALS:
            noisy = next((int(word) for word in signal.split() if word.isdigit()), 0)
            given: dict[str, NDArray[np.float64]] = dict(list(noise.items())[:noisy])
            if "useful" in signal:
                given["useful"] = missing if "missing" in signal else useful
            pool = replace(question.pool, features={**question.pool.features, **given})
            for k in (k for k in KS if k < count):
                session = SelectionSession(pool, budget=max(BUDGETS), k=k, config=METHODS[DEFAULT])
                for budget in _at_budgets(session, question.scores, BUDGETS):
                    quality = normalised_gain(session.selection().documents, question.scores)
                    found.append({"query": row, "signal": signal, "budget": budget, "k": k, "ce_ncg": quality})
    return found


STUDIES: Mapping[str, Callable[[ScoreTable, int, Watch], list[Row]]] = {
    "ablations": ablations,
    "rounds": rounds,
    "paces": paces,
    "settle": trajectories,
    "tokens": tokens,
    "known": known,
    "speculation": speculation,
    "hybrid": hybrid,
    "signals": signals,
}


def settled(rows: Sequence[Row], threshold: float) -> list[Row]:
    """Of trajectories, the row at which a session with this threshold would have stopped, one a query and k."""
    runs: dict[tuple[Any, ...], Row] = {}
    calm: dict[tuple[Any, ...], int] = {}  # rounds in a row in which no more was likely to be lost
    for row in rows:
        key = (row["table"], row["query"], row["k"])
        if calm.get(key, 0) < LOOKS_TO_SETTLE:
            runs[key] = row
            calm[key] = calm.get(key, 0) + 1 if row["informed"] and row["cautious_loss"] <= threshold else 0
    return list(runs.values())


def at_fixed_budget(rows: Sequence[Row], calls: float) -> list[Row]:
    """Of trajectories, the quality after the same (perhaps fractional) number of calls, one row a query and k."""
    runs: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        runs.setdefault((row["table"], row["query"], row["k"]), []).append(row)
    found: list[Row] = []
    for run in runs.values():
        quality = np.interp(calls, [row["calls"] for row in run], [row["ce_ncg"] for row in run])
        found.append({**run[0], "calls": calls, "ce_ncg": float(quality)})
    return found


def _at_budgets(session: SelectionSession, scores: NDArray[np.float64], budgets: Sequence[int]) -> Iterator[int]:
    """Play a session one call at a time, pausing at each of `budgets`."""
    for budget in budgets:
        while session.spent < budget and (asked := session.ask()).size:
            session.tell(asked, scores[asked])
        yield budget


def _returned(session: SelectionSession, capacity: Capacity) -> Selection:
    """What the session would return into another capacity, after the same calls."""
    own, session.capacity = session.capacity, capacity
    selection = session.selection()
    session.capacity = own
    return selection


def _lengths(count: int, spread: float, seed: int) -> NDArray[np.float64]:
    drawn = np.random.default_rng(seed).normal(-spread * spread / 2, spread, size=count)
    lengths: NDArray[np.float64] = np.maximum(np.round(MEAN_LENGTH * np.exp(drawn)), 1.0)
    return lengths


def _packed(ranking: NDArray[np.intp], capacity: TokenCapacity) -> NDArray[np.intp]:
    """Down the ranking, whatever still fits."""
    room, chosen = capacity.limit, []
    for document in ranking.tolist():
        if capacity.lengths[document] <= room:
            room -= capacity.lengths[document]
            chosen.append(document)
    return np.array(chosen, dtype=np.intp)


def _by_root(ranked: Selection, capacity: TokenCapacity) -> NDArray[np.intp]:
    worth = ranked.relevance / np.sqrt(capacity.lengths[ranked.documents])
    documents: NDArray[np.intp] = ranked.documents[np.argsort(-worth, kind="stable")]
    return documents


def _linear_optimum(scores: NDArray[np.float64], capacity: TokenCapacity) -> float:
    order = np.argsort(-scores / capacity.lengths, kind="stable")
    filled = np.minimum(np.cumsum(capacity.lengths[order]), capacity.limit)
    return float((np.diff(filled, prepend=0.0) * scores[order] / capacity.lengths[order]).sum())
