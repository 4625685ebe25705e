"""Define tasks: the instructions for a selection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from boundarymorph.calibration.calibration import Calibration
from boundarymorph.inference.concurrency import NEVER, Deadline
from boundarymorph.retrieval.boosts import Boosts
from boundarymorph.retrieval.candidates import Source
from boundarymorph.selection.methods import DEFAULT
from boundarymorph.selection.pool import Trust
from boundarymorph.selector.documents import UNLIMITED, Grouping, MemoryLimits

Goal = Literal["set", "order", "ranking", "scores"]
Acceptance = Literal["complete", "scored", "anything"]
Rounds = int | Literal["auto"]


@dataclass(frozen=True, slots=True)
class Target:
    """Find a share of the relevant documents.

    Attributes:
        share: The share, above 0 and at most 1.
        probability: The probability with which the share is found, above 0.
    """

    share: float
    probability: float


@dataclass(frozen=True, slots=True)
class Aim:
    """The definition of the set.

    Attributes:
        k: The most documents; None for as many as fit into `max_tokens`.
        max_tokens: The most tokens of all returned documents together.
        min_relevance: Only documents that are more likely than not to score at least this are returned.
        distinct: A limit on the documents of a group.
        negligible: As in `selection.boundary.BestBoundary`.
        diversity: As in `selection.diversity.DiverseFinish`; 0 for none.
        target: The share to find of all documents that have `min_relevance`.
        excluded_ids: The ids of candidates that are not selected and not scored. Their known scores are evidence, and
            replace no call.
    """

    k: int | None
    max_tokens: int | None = None
    min_relevance: float | None = None
    distinct: Grouping | None = None
    negligible: float = 0.0
    diversity: float = 0.0
    target: Target | None = None
    excluded_ids: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Spending:
    """How many calls are made, and for which purpose.

    Attributes:
        budget: The most calls.
        explicit: Whether the request names the budget.
        goal: The purpose of the calls: the set; its order, if every document fits; the ranking of all candidates; or
            the scores of all.
        rounds: The most rounds, or "auto": three rounds of a fixed budget.
        tolerance: The selection stops when the expected loss is at most this share of the set's relevance.
        reuse: Whether scores of earlier tasks are evidence that replaces calls.
        known: Scores by id that cost no call; ids outside the pool are ignored.
    """

    budget: int
    explicit: bool = True
    goal: Goal = "order"
    rounds: Rounds = "auto"
    tolerance: float | None = None
    reuse: bool = True
    known: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Relevance:
    """The definition of relevance.

    Attributes:
        method: A name in `methods.METHODS`.
        human: Whether it is the relevance that people are expected to find, instead of the score (`selection.trend`).
        trust: The trust in the scorer, in place of the declared or measured trust.
        calibration: The calibration that makes it a probability.
        shipped: Whether the map that ships makes it a probability if there is no calibration.
        instruction: The instruction for the scorer, if it takes one.
        boosts: The factors of relevance. Documents then compete by the product, and are ordered by it.
    """

    method: str = DEFAULT
    human: bool = False
    trust: Trust | None = None
    calibration: Calibration | None = None
    shipped: bool = False
    instruction: str | None = None
    boosts: Boosts | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The parts of the result beside the set.

    Attributes:
        return_documents: Whether it has the texts.
        explain_pool: Whether it has `Explanation`.
        explain_depth: The approximate number of first candidates to explain; None for all.
        proposals: With a target, the most documents to read next that it names.
        optional_texts: Whether texts that exceed the size of an answer are left out; else they are refused.
    """

    return_documents: bool = False
    explain_pool: bool = False
    explain_depth: int | None = None
    proposals: int = 0
    optional_texts: bool = False


@dataclass(frozen=True, slots=True)
class Context:
    """The caller, and the limits of the work.

    Attributes:
        caller: The caller of the work, by which callers take turns; "" is the service itself.
        tenant: The tenant whose known scores are used.
        deadline: The time when the current set becomes the result.
        accepts: The result that is accepted after the deadline or a failure of scorer or retriever: only a complete
            one, or else their error; an incomplete one, but Overloaded if nothing was scored for lack of capacity; or
            any.
        memory: The limits on the memory of the task.
    """

    caller: str = ""
    tenant: str = ""
    deadline: Deadline = NEVER
    accepts: Acceptance = "anything"
    memory: MemoryLimits = UNLIMITED


@dataclass(frozen=True, slots=True)
class WeightedSource:
    """One of several queries with its candidates.

    Attributes:
        source: The query and its candidates.
        weight: The weight, above 0 and at most 1.
    """

    source: Source
    weight: float


@dataclass(frozen=True, slots=True)
class SelectionTask:
    """Find the best documents for a query, or for any of several queries.

    Attributes:
        source: The query and its candidates; the first of several queries.
        aim: The definition of the set.
        spending: How many calls are made, and for which purpose.
        relevance: The definition of relevance.
        report: The parts of the result beside the set.
        context: The caller, and the limits of the work.
        queries: All queries, if there are several.
    """

    source: Source
    aim: Aim
    spending: Spending
    relevance: Relevance = Relevance()
    report: Report = Report()
    context: Context = Context()
    queries: Sequence[WeightedSource] = ()

    @property
    def query(self) -> str:
        """The query, or the lines of several."""
        return "\n".join(one.source.query for one in self.queries) or self.source.query

    @property
    def ranks_all(self) -> bool:
        """Whether the result has all candidates instead of k."""
        return self.spending.goal in ("ranking", "scores")
