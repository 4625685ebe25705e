"""Define the baselines: orders without calls, heads of orders, graph searches, and BAGEL.

They are those of the paper (app. D.2). RGS: Xu et al. 2025. GAR: MacAvaney, and others 2022, algorithm 1.
Quam: Rathee, MacAvaney and Anand 2025, algorithm 1. BAGEL: Kim et al. 2026.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection import Belief, SelectionConfig, Session, UpperConfidenceBound
from boundarymorph.selection.acquisition import Choice
from boundarymorph.selection.pool import combined_signals
from boundarymorph_evaluation.methods.method import Contestant, ScoringMethod
from boundarymorph_evaluation.methods.morph import BETAS, run_session
from boundarymorph_evaluation.problem import Ranking, SelectionProblem

ABOUT = "Gaussian process without a prior, searching for the highest scores"  # describes BAGEL


@dataclass(frozen=True)
class Mips(ScoringMethod):
    """The retriever's own order, without a cross-encoder."""

    uses_budget = False

    def rank(self, problem: SelectionProblem) -> Ranking:
        return np.arange(len(problem.pool))


@dataclass(frozen=True)
class Bm25(ScoringMethod):
    """BM25 over the pool, a lexical floor. Equal scores go by retrieval rank."""

    uses_budget = False
    requires = frozenset({"bm25"})

    def rank(self, problem: SelectionProblem) -> Ranking:
        return np.argsort(-problem.pool.features["bm25"], kind="stable")


@dataclass(frozen=True)
class SingleStage(ScoringMethod):
    """The cross-encoder reads the first B of the retriever."""

    def rank(self, problem: SelectionProblem) -> Ranking:
        problem.score(np.arange(problem.left))
        return problem.banded_ranking()


@dataclass(frozen=True)
class Rgs(ScoringMethod):
    """Expand the best document of a queue: its unscored neighbours are scored, nearest first.

    They are then queued. If the queue is empty before the budget is used up, the remaining calls follow the retrieval
    order; the paper does not say.

    Attributes:
        degree: R, of the graph, and so of each step.
        seed_div: B / seed_div calls are for the head of the retrieval.
        frac: The queue holds at most max(seeds, frac B) documents.
    """

    degree: int = 10
    seed_div: float = 2.0
    frac: float = 1.0

    def rank(self, problem: SelectionProblem) -> Ranking:
        graph = problem.neighbourhood.graph(self.degree)
        seeds = min(max(round(problem.budget / self.seed_div), 1), problem.left)
        room = max(seeds, round(self.frac * problem.budget))
        queue = self._queued(problem, list(range(seeds)))
        while problem.left and queue:
            _, expanded = queue.pop(0)
            neighbours = graph[expanded]
            fresh = [int(other) for other in neighbours if other >= 0 and not problem.scored[other]][: problem.left]
            queue = sorted(queue + self._queued(problem, fresh))[:room]
        problem.score(np.flatnonzero(~problem.scored)[: problem.left])
        return problem.banded_ranking()

    @staticmethod
    def _queued(problem: SelectionProblem, documents: list[int]) -> list[tuple[float, int]]:
        scores = problem.score(documents).tolist()
        return sorted((-score, document) for score, document in zip(scores, documents, strict=True))


@dataclass(frozen=True)
class Gar(ScoringMethod):
    """Score batches alternately from the retrieval order and from the frontier.

    The frontier is the unscored neighbours of scored documents. A document of the frontier is worth the best score
    among those whose neighbour it is.

    Attributes:
        neighbours: Neighbours of a document in the corpus graph (exact cosine, within the pool).
        batch: Documents scored in turn.
    """

    neighbours: int = 16
    batch: int = 16

    def rank(self, problem: SelectionProblem) -> Ranking:
        scores = np.zeros(len(problem.pool))
        from_frontier = False
        while problem.left:
            waiting = np.flatnonzero(~problem.scored)
            if from_frontier:
                worth = self._worth(problem, scores)
                waiting = waiting[worth[waiting] > -np.inf]
                waiting = waiting[np.argsort(-worth[waiting], kind="stable")]
            batch = waiting[: min(self.batch, problem.left)]
            scores[batch] = problem.score(batch)
            from_frontier = not from_frontier
        return problem.banded_ranking()

    def _worth(self, problem: SelectionProblem, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the (N,) value of each document at the frontier; -inf for others."""
        near, _ = problem.neighbourhood.nearest(self.neighbours)
        worth = np.full(len(scores), -np.inf)
        for document in problem.calls:
            worth[near[document]] = np.maximum(worth[near[document]], scores[document])
        return worth


@dataclass(frozen=True)
class Quam(Gar):
    """GAR, with the affinity of a frontier document d to a set S of the best scored documents.

    The affinity is the sum over those d' in S whose neighbour d is of f(d, d') R(d'). Here f is the cosine, and R, the
    relevance of d' within S, is its share of the scores of S: the softmax of log-probabilities, which the method's own
    rerankers answer.

    Attributes:
        leaders: s, the number of documents in S.
    """

    leaders: int = 30

    def _worth(self, problem: SelectionProblem, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        near, affinity = problem.neighbourhood.nearest(self.neighbours)
        leaders = problem.banded_ranking()[: min(self.leaders, len(problem.calls))]
        total = scores[leaders].sum()
        shares = scores[leaders] / total if total > 0 else np.full(len(leaders), 1 / len(leaders))
        worth, reached = np.zeros(len(scores)), np.zeros(len(scores), dtype=np.bool_)
        for leader, share in zip(leaders, shares, strict=True):
            worth[near[leader]] += share * affinity[leader]
            reached[near[leader]] = True
        return np.where(reached, worth, -np.inf)


@dataclass(frozen=True)
class Hybrid(ScoringMethod):
    """A method on the order of reciprocal ranks of similarity and BM25.

    That order replaces the retriever's.
    """

    method: ScoringMethod

    requires = frozenset({"bm25"})

    def rank(self, problem: SelectionProblem) -> Ranking:
        question, order = problem.question.fused
        fused = SelectionProblem(question, problem.budget, problem.k)
        ranking = self.method.rank(fused)
        problem.score(order[fused.calls])
        return order[ranking]


@dataclass(frozen=True)
class HybridOrder(Hybrid):
    """The order of reciprocal ranks of similarity and BM25 alone."""

    uses_budget = False


@dataclass(frozen=True)
class Fusion(ScoringMethod):
    """The combination of similarity and BM25 that estimates relevance to people, on its own."""

    uses_budget = False
    requires = frozenset({"bm25"})

    def rank(self, problem: SelectionProblem) -> Ranking:
        return np.argsort(-combined_signals(problem.pool), kind="stable")


@dataclass(frozen=True)
class Rocchio(ScoringMethod):
    """Relevance feedback (Rocchio 1971).

    The query's vector plus `share` of the mean of the first B, weighted by their scores, ranks all documents.
    """

    share: float = 0.75

    def rank(self, problem: SelectionProblem) -> Ranking:
        head = np.arange(problem.left)
        scores, pool = problem.score(head), problem.pool
        weights = scores / scores.sum() if scores.sum() > 0 else scores
        moved = pool.query + self.share * (weights @ pool.embeddings[head])
        return np.argsort(-(pool.embeddings @ moved), kind="stable")


@dataclass(frozen=True)
class Feedback(ScoringMethod):
    """Qdrant's relevance feedback, the strategy "naive".

    All documents are ranked by their similarity to the query plus c times a sum over at most `pairs` pairs of the best
    and the worst of the first B. A pair adds the difference of its scores to the power b, times the similarity to its
    better document less the similarity to its worse one.
    """

    b: float
    c: float
    pairs: int = 3

    def rank(self, problem: SelectionProblem) -> Ranking:
        head, vectors = np.arange(problem.left), problem.pool.embeddings
        scores = problem.score(head)
        order = np.argsort(-scores, kind="stable")
        count = min(self.pairs, len(head) // 2)
        better, worse = order[:count], order[::-1][:count]
        weights = self.c * (scores[better] - scores[worse]) ** self.b
        moved = problem.pool.query + weights @ (vectors[better] - vectors[worse])
        return np.argsort(-(vectors @ moved), kind="stable")


@dataclass(frozen=True, slots=True)
class WarmStarted:
    """An acquisition: the first `warm` documents of the retrieval, then UCB.

    Its annealing starts there.
    """

    warm: int
    then: UpperConfidenceBound

    def choose(self, belief: Belief, incumbents: NDArray[np.bool_], step: int) -> Choice:
        if step < self.warm:
            return Choice(int(np.argmin(belief.scored)), None, 0.0)
        return self.then.choose(belief, incumbents, step - self.warm)

    def shortlist(self, belief: Belief, incumbents: NDArray[np.bool_], n: int) -> list[int]:
        return self.then.shortlist(belief, incumbents, n)


@dataclass(frozen=True)
class Bagel(ScoringMethod):
    """BAGEL, with the first B/2 calls, rounded down, for the head of the retrieval.

    Pool, kernel, bandwidth, query anchor, standardisation, and conventions are BoundaryMORPH's; prior, acquisition, and
    warm start differ.

    Attributes:
        beta0: Weight of the uncertainty, annealed as beta0 / sqrt(t + 1), where t counts the acquisition steps from 0.
        kernel: The kernel.
    """

    beta0: float = 1.0
    kernel: str = "vmf"

    def rank(self, problem: SelectionProblem) -> Ranking:
        acquisition = WarmStarted(problem.budget // 2, UpperConfidenceBound(self.beta0))
        config = SelectionConfig(prior="zero", kernel=self.kernel, acquisition=acquisition)
        session = Session.create(problem.pool, budget=problem.budget, k=1, method=config)  # BAGEL does not read it
        run_session(session, problem)
        return np.argsort(-session.belief.mean, kind="stable")


def _hybrid(one: Contestant) -> Contestant:
    kind = Hybrid if one.settings[0].uses_budget else HybridOrder
    about = f"{one.about}; in the order of similarity and BM25 together"
    return Contestant(f"{one.name}-hybrid", f"{one.title}, hybrid", [kind(method) for method in one.settings], about)


MIPS = Contestant("mips", "MIPS", (Mips(),), "the retriever's order; no calls")
BM25 = Contestant("bm25", "BM25", (Bm25(),), "the pool by word overlap; no calls")
SINGLE_STAGE = Contestant("ss", "SS", (SingleStage(),), "scores the first B of the retriever, then its order")
RGS = Contestant(
    "rgs",
    "RGS",
    tuple(Rgs(*values) for values in product((10, 32, 64), (2.0, 3.0, 4.0, 5.0), (1.0, 0.5, 0.2))),
    "searches the graph of near documents, following high scores",
)
GAR = Contestant(
    "gar",
    "GAR",
    tuple(Gar(*values) for values in product((16, 8), (16, 5, 1))),
    "alternates between the retriever's order and neighbours of high scores",
)
QUAM = Contestant(
    "quam",
    "Quam",
    tuple(Quam(*values) for values in product((16, 8), (16, 5, 1), (30, 10))),
    "as GAR, with neighbours of many high scores first",
)
FUSION = Contestant("fusion", "Fusion", (Fusion(),), "similarity and BM25, 3 to 1, both standardised; no calls")
ROCCHIO = Contestant("rocchio", "Rocchio", (Rocchio(),), "moves the query to what scored well among the first B")
FEEDBACK = Contestant(
    "feedback",
    "Feedback",
    tuple(Feedback(*values) for values in product((0.5, 1.0, 2.0), (0.1, 0.3, 1.0))),
    "moves the query by pairs of the best and the worst of the first B, as Qdrant does",
)
BAGELS = (
    Contestant("bagel", "BAGEL", tuple(Bagel(beta0) for beta0 in BETAS), ABOUT),
    Contestant("bagel-rbf", "BAGEL, RBF", tuple(Bagel(beta0, "rbf") for beta0 in BETAS), ABOUT),
    Contestant("bagel-matern52", "BAGEL, Matern-5/2", tuple(Bagel(beta0, "matern52") for beta0 in BETAS), ABOUT),
)
HYBRIDS = tuple(_hybrid(one) for one in (MIPS, SINGLE_STAGE, GAR, QUAM))
CONTESTANTS = (MIPS, BM25, SINGLE_STAGE, FUSION, ROCCHIO, FEEDBACK, RGS, GAR, QUAM, *HYBRIDS, *BAGELS)
