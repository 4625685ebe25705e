"""A task: what a selection is asked to do."""

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
from boundarymorph.selector.documents import FREE, Grouping, Room

Goal = Literal["set", "order", "ranking", "scores"]
Accepted = Literal["complete", "scored", "anything"]
Rounds = int | Literal["auto"]


@dataclass(frozen=True, slots=True)
class Target:
    """Find this share of the relevant documents with this probability, both above 0; the share is at most 1."""

    share: float
    probability: float


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the set is.

    Attributes:
        k: Documents to return; None for as many as fit into `max_tokens`.
        max_tokens: Of all returned documents together.
        min_relevance: Only documents that are more likely than not to score at least this are returned.
        distinct: A limit on the documents of a group.
        negligible: As in `selection.boundary.Best`.
        diversity: As in `selection.diversity.Diverse`; 0 for none.
        target: Find this much of all that has `min_relevance`.
        excluded: Ids of candidates that are not selected and not scored. Their known scores are evidence, and replace
            no call.
    """

    k: int | None
    max_tokens: int | None = None
    min_relevance: float | None = None
    distinct: Grouping | None = None
    negligible: float = 0.0
    diversity: float = 0.0
    target: Target | None = None
    excluded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Spending:
    """How many calls are made, and on what.

    Attributes:
        budget: The most calls.
        explicit: Whether the request names the budget.
        goal: On what calls are spent: the set; its order, if every document fits; the ranking of all candidates; or the
            scores of all.
        rounds: In which calls go out at most, or "auto": three of a fixed budget.
        settle: Stop when the expected loss is at most this share of the set's relevance.
        reuse: Whether scores known from earlier tasks are evidence that replaces calls.
        known: Scores by id that cost no call; ids outside the pool are ignored.
    """

    budget: int
    explicit: bool = True
    goal: Goal = "order"
    rounds: Rounds = "auto"
    settle: float | None = None
    reuse: bool = True
    known: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Relevance:
    """What relevance is.

    Attributes:
        method: A name in `methods.METHODS`.
        human: Whether it is what people are expected to find, instead of the score (`selection.trend`).
        trust: In the scorer, in place of the declared or measured trust.
        calibration: Makes it a probability.
        shipped: Whether the map that ships does so without a calibration.
        instruction: For the scorer, if it takes one.
        boosts: What it is multiplied by. Documents then compete by the product, and are ordered by it.
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
    """What the result has beside the set.

    Attributes:
        return_documents: Whether it has the texts.
        optional_texts: Whether texts that take more bytes than an answer may have are left out; else they are refused.
        explain_pool: Whether it has `Explained`.
        explain_depth: About how many of the first candidates; None for all.
        proposals: With a target, how many documents to read next it names at most.
    """

    return_documents: bool = False
    explain_pool: bool = False
    explain_depth: int | None = None
    proposals: int = 0
    optional_texts: bool = False


@dataclass(frozen=True, slots=True)
class Context:
    """Who asks, and what the work may take.

    Attributes:
        caller: On whose behalf the work is done, by which callers take turns; "" is the service itself.
        tenant: Whose known scores are used.
        deadline: When the current set becomes the result.
        accepts: The result after the deadline or a failure of scorer or retriever: only a complete one, or else their
            error; or an incomplete one, but Overloaded if nothing was scored for lack of capacity; or any.
        room: Where the bytes of the work are counted.
    """

    caller: str = ""
    tenant: str = ""
    deadline: Deadline = NEVER
    accepts: Accepted = "anything"
    room: Room = FREE


@dataclass(frozen=True, slots=True)
class WeightedSource:
    """One of several queries with its candidates. weight: above 0 and up to 1."""

    source: Source
    weight: float


@dataclass(frozen=True, slots=True)
class SelectionTask:
    """Find the best documents for a query, or for any of several.

    Attributes:
        source: The query and its candidates; of several, the first.
        wanted: What the set is.
        spending: How many calls are made, and on what.
        relevance: What relevance is.
        report: What the result has beside the set.
        context: Who asks, and what the work may take.
        several: If there are several queries, all of them.
    """

    source: Source
    wanted: Wanted
    spending: Spending
    relevance: Relevance = Relevance()
    report: Report = Report()
    context: Context = Context()
    several: Sequence[WeightedSource] = ()

    @property
    def query(self) -> str:
        """The query, or the lines of several."""
        return "\n".join(one.source.query for one in self.several) or self.source.query

    @property
    def ranks_all(self) -> bool:
        """Whether the result has all candidates instead of k."""
        return self.spending.goal in ("ranking", "scores")
