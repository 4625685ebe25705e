"""Run the product's own selectors as the service does, and the paper's ablations of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from boundarymorph.retrieval.candidates import scores_by_rank
from boundarymorph.selection import (
    Belief,
    BoundaryGap,
    Config,
    Pool,
    SelectionConfig,
    Session,
    UpperConfidenceBound,
)
from boundarymorph.selection.capacity import top_k
from boundarymorph.selection.methods import DEFAULT, HUMAN, HUMAN_CONFIG, METHODS, PAPER
from boundarymorph.selection.posterior import percentile_prior
from boundarymorph_evaluation.methods.method import Contestant, ScoringMethod
from boundarymorph_evaluation.problem import Question, Ranking, SelectionProblem

BETAS = (0.0, 0.5, 1.0, 2.0)
OURS = "a configuration of this product; see selection/methods.py"
KERNEL = "the paper's method with another covariance"
_PAPER = SelectionConfig()
Order: TypeAlias = Literal["scores", "ranked", "bm25"]
PRODUCT: dict[str, Config] = {HUMAN: HUMAN_CONFIG, **METHODS}
ROUND = 5  # documents per round of lexical methods
ROUNDS = 3  # rounds of the default, as in the service


def run_session(session: Session, problem: SelectionProblem, batch: int | None = 1, rounds: int | None = None) -> None:
    """Run a session to its end, in rounds of `batch` calls.

    Without a batch, there are `rounds` rounds, or growing ones.
    """
    while (asked := session.ask(batch) if batch else session.ask_round(rounds)).size:
        session.tell(asked, problem.score(asked))


@dataclass(frozen=True)
class Morph(ScoringMethod):
    """A Session.

    Attributes:
        config: As in the service.
        batch: Documents per round.
        rounds: Number of rounds without a batch; None for rounds that grow.
    """

    config: Config = field(default_factory=SelectionConfig)
    batch: int | None = 1
    rounds: int | None = None

    uses_k = True

    def rank(self, problem: SelectionProblem) -> Ranking:
        config = problem.question.configured(self.config)
        session = Session.create(problem.pool, budget=problem.budget, k=problem.k, method=config)
        run_session(session, problem, self.batch, self.rounds)
        return _ranking(session)


SERVED = Morph(HUMAN_CONFIG, batch=None, rounds=ROUNDS)  # the method of `POST /select` with a budget


@dataclass(frozen=True)
class Extend(ScoringMethod):
    """`extend` of the clients: the first B of the retriever are scored, and the others inferred.

    A session that knows these scores makes no call of its own. `config` is as in the service.
    """

    config: Config = HUMAN_CONFIG

    uses_k = True

    def rank(self, problem: SelectionProblem) -> Ranking:
        head = np.arange(problem.left)
        known = dict(enumerate(problem.score(head).tolist()))
        config = problem.question.configured(self.config)
        return _ranking(Session.create(problem.pool, budget=0, k=problem.k, method=config, known=known))


def _ranking(session: Session) -> Ranking:
    """Return the chosen set, best first, and then the other documents by the mean of the belief."""
    chosen = session.selection().documents
    rest = np.ones(len(session.pool), dtype=np.bool_)
    rest[chosen] = False
    outside = np.flatnonzero(rest)
    return np.concatenate([chosen, outside[np.argsort(-session.belief.mean[outside], kind="stable")]])


@dataclass(frozen=True)
class MaximumSeeking(ScoringMethod):
    """The paper's "without acquisition": UCB, which does not depend on k.

    It replaces the boundary. `beta0` is as in BAGEL.
    """

    beta0: float

    def rank(self, problem: SelectionProblem) -> Ranking:
        return Morph(replace(_PAPER, acquisition=UpperConfidenceBound(self.beta0))).rank(problem)


@dataclass(frozen=True)
class Independent(ScoringMethod):
    """The paper's boundary rule without a field: LUCB on independent arms.

    The rule (Kalyanakrishnan et al. 2012; sec. 3.3) has the percentile prior and one common uncertainty. It is the idea
    of AcuRank, whose listwise beliefs a table of pointwise scores cannot replay. The common level of the residuals is
    learnt; documents share nothing else.
    """

    uses_k = True

    def rank(self, problem: SelectionProblem) -> Ranking:
        prior = percentile_prior(problem.pool)
        mean, acquisition = prior.copy(), BoundaryGap()
        seen: list[int] = []
        scores: list[float] = []
        while problem.left and problem.k < len(prior):
            belief = Belief(mean, np.where(problem.scored, 0.0, 1.0), problem.scored.copy())
            document = acquisition.choose(belief, top_k(mean, problem.k), len(seen)).document
            seen.append(document)
            scores.append(float(problem.score([document])[0]))
            # The query, observed at 1 where its percentile is 1, counts as one residual of 0.
            mean = prior + (np.array(scores) - prior[seen]).sum() / (len(seen) + 1)
            mean[seen] = scores
        return np.argsort(-mean, kind="stable")


def _product() -> tuple[Contestant, ...]:
    titles = {HUMAN: f"{HUMAN} (default)", PAPER: "MORPH (paper)"}
    abouts = {
        HUMAN: f"as `{DEFAULT}`, in three rounds; the scorer is one signal of several of what people find relevant",
        DEFAULT: "the paper's idea on log-odds; learns level and scale, and how far scores follow BM25 and each word",
        PAPER: "Gaussian process on the retriever's order, asking where membership in the k is in doubt",
    }
    return tuple(
        Contestant(
            name,
            titles.get(name, name),
            (SERVED if name == HUMAN else Morph(config),),
            abouts.get(name, OURS),
            ours=True,
        )
        for name, config in PRODUCT.items()
    )


def in_rounds(contestant: Contestant, batch: int | None) -> Contestant:
    """Return the same product method with rounds of several documents, or growing ones."""
    settings = [
        replace(method, batch=batch, rounds=None) for method in contestant.settings if isinstance(method, Morph)
    ]
    return Contestant(
        f"{contestant.name}@{batch or 'auto'}",
        f"{contestant.title}, {f'rounds of {batch}' if batch else 'growing rounds'}",
        settings,
        contestant.about,
        ours=True,
    )


EXTEND = Contestant(
    "extend",
    f"{HUMAN}, scores of the first B",
    (Extend(),),
    "the scores of `ss`, told to the default, which makes no call of its own",
    ours=True,
)
CONTESTANTS = (
    *_product(),
    EXTEND,
    Contestant("independent", "Independent", (Independent(),), "the paper's boundary rule, each document on its own"),
    Contestant(
        "no-acquisition",
        "w/o acquisition",
        tuple(MaximumSeeking(beta0) for beta0 in BETAS),
        "the paper's method, seeking the highest scores instead of the boundary",
    ),
    Contestant(
        "no-prior", "w/o prior", (Morph(replace(_PAPER, prior="zero")),), "the paper's method, with a zero prior"
    ),
    Contestant("boundarymorph-rbf", "MORPH, RBF", (Morph(replace(_PAPER, kernel="rbf")),), KERNEL),
    Contestant("boundarymorph-matern52", "MORPH, Matern-5/2", (Morph(replace(_PAPER, kernel="matern52")),), KERNEL),
)


@dataclass(frozen=True)
class Lexical(ScoringMethod):
    """A selection by lexical vectors.

    `order` is the known part of a retriever's ranking: its scores, its order alone, or nothing, in which case BM25
    ranks.
    """

    order: Order

    uses_k = True
    requires = frozenset({"bm25", "texts"})

    def rank(self, problem: SelectionProblem) -> Ranking:
        question = problem.question
        pool = self._pool(question)
        place = {id: position for position, id in enumerate(question.pool.ids)}
        original = np.array([place[id] for id in pool.ids])
        reordered = SelectionProblem(Question(question.id, pool, question.scores[original]), problem.budget, problem.k)
        ranking = Morph(METHODS[DEFAULT], ROUND).rank(reordered)
        problem.score(original[reordered.calls])
        return original[ranking]

    def _pool(self, question: Question) -> Pool:
        """Return the pool as `retrieval.document` makes it."""
        given, vectors = question.pool, question.lexical_vectors
        scores, features = given.scores, dict(given.features)
        if self.order == "ranked":
            scores = scores_by_rank(len(given))
        elif self.order == "bm25":
            scores = features["bm25"]
            features["similarity"] = (vectors.documents @ vectors.query).astype(np.float64)
        return Pool.from_embeddings(given.ids, vectors.documents, vectors.query, scores, features, given.terms)


def _contestant(order: Order, title: str, about: str) -> Contestant:
    about = f"rounds of {ROUND} and vectors of the words, with {about}"
    return Contestant(f"lexical-{order}", f"{DEFAULT}, lexical vectors, {title}", (Lexical(order),), about, ours=True)


LEXICAL = (
    _contestant("scores", "scores", "the retriever's scores"),
    _contestant("ranked", "order alone", "the retriever's order and no scores"),
    _contestant("bm25", "BM25's order", "nothing of a retriever"),
)
