"""The task of a selection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from boundarymorph.calibration.calibration import Calibration
from boundarymorph.inference.deadline import NEVER, Deadline
from boundarymorph.retrieval.candidates import Candidates
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.retriever import Retriever
from boundarymorph.selection.methods import DEFAULT
from boundarymorph.selector.documents import Grouping
from boundarymorph.selector.room import FREE, Room

Goal = Literal["set", "order", "ranking", "scores"]
Accepted = Literal["complete", "scored", "anything"]


@dataclass(frozen=True, slots=True)
class WeightedQuery:
    """One of several queries, with its candidates. weight: above 0 and up to 1."""

    query: str
    weight: float
    candidates: Callable[[Retriever], Candidates]


@dataclass(frozen=True, slots=True)
class SelectionTask:
    """Find the best documents for a query with at most `budget` calls.

    candidates: made by the retriever. k: documents to return, or None for as many as fit into max_tokens.
    min_relevance: of these, only those that are more likely than not to score at least this. distinct: at most so
    many documents of a group. negligible, diversity: as in `SelectionSession`. goal: what calls are spent
    on: the set; or, if every document fits into it, its order; or the ranking of all candidates; or the scores of all.
    batch_size: the most calls per round; growing: whether rounds begin small and grow (`selection.rounds`). settle:
    stop when the expected loss is at most this share of the set's relevance. call_cost: as in
    `SelectionSession`. method: a name in `methods.METHODS`.
    deadline: when the current set becomes the result. accepts: the result after the deadline or a failure of scorer or
    retriever: only a complete one, or else their error; or an incomplete one, but Overloaded if nothing was scored for
    lack of capacity; or any. reuse: whether scores known from earlier tasks are evidence that replaces calls. caller:
    the name of the key that pays if scores cost money. tenant: whose known scores are used. return_documents:
    whether the result has their texts. explain_pool: whether progress and result contain the belief about all
    candidates. calibration: makes relevance a probability. instruction: for the scorer, if it takes one.
    excluded: ids of candidates that are not selected and not scored; what is known of their scores is evidence, and
    replaces no call. queries: instead of the query and its candidates, for one set of what answers any of them.
    whole: the document of each passage, by the id of the passage. room: where its memory is counted.
    """

    query: str
    candidates: Callable[[Retriever], Candidates]
    budget: int
    k: int | None
    max_tokens: int | None = None
    min_relevance: float | None = None
    distinct: Grouping | None = None
    negligible: float = 0.0
    diversity: float = 0.0
    goal: Goal = "order"
    batch_size: int = 1
    growing: bool = False
    settle: float | None = None
    call_cost: float | None = None
    method: str = DEFAULT
    deadline: Deadline = NEVER
    accepts: Accepted = "anything"
    reuse: bool = True
    caller: str = ""
    tenant: str = ""
    return_documents: bool = False
    explain_pool: bool = False
    calibration: Calibration | None = None
    instruction: str | None = None
    excluded: frozenset[str] = frozenset()
    queries: Sequence[WeightedQuery] = ()
    whole: Mapping[str, Document] = field(default_factory=dict)
    room: Room = FREE

    def parts(self) -> list[SelectionTask]:
        """A task for each of the queries, with the whole budget."""
        common = {"queries": (), "goal": "order", "return_documents": False}
        return [replace(self, query=of.query, candidates=of.candidates, **common) for of in self.queries]  # type: ignore[arg-type]

    @property
    def ranks_all(self) -> bool:
        """Whether the result has all candidates instead of k."""
        return self.goal in ("ranking", "scores")
