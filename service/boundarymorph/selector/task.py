"""The task of a selection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from boundarymorph.inference.deadline import NEVER, Deadline
from boundarymorph.retrieval.candidates import Candidates
from boundarymorph.retrieval.retriever import Retriever
from boundarymorph.selection.methods import DEFAULT


@dataclass(frozen=True, slots=True)
class SelectionTask:
    """Find the best documents for a query with at most `budget` calls.

    candidates: made by the retriever. k: documents to return, or None for as many as fit into max_tokens.
    min_relevance: of these, only those that are more likely than not to score at least this. batch_size: the most calls
    per round; growing: whether rounds begin small and grow (`selection.rounds`). settle: stop when the
    expected loss is at most this share of the set's relevance. method: a name in `methods.METHODS`. order: whether
    calls go to the order of the set if every document fits into it. deadline: when the current set becomes the result.
    degrade: whether an incomplete result is accepted after the deadline or a failure of scorer or retriever. unscored:
    whether it is accepted even if nothing was scored for lack of capacity, instead of Overloaded. reuse: whether scores
    known from earlier tasks are evidence that replaces calls. rank_all: whether the result has all candidates in order
    instead of k. exhaustive: whether all candidates are scored. caller: the name of the key that pays if scores cost
    money. pool: whether progress and result contain the belief about all candidates.
    """

    query: str
    candidates: Callable[[Retriever], Candidates]
    budget: int
    k: int | None
    max_tokens: int | None = None
    min_relevance: float | None = None
    batch_size: int = 1
    growing: bool = False
    settle: float | None = None
    method: str = DEFAULT
    order: bool = True
    return_documents: bool = False
    deadline: Deadline = NEVER
    degrade: bool = True
    unscored: bool = True
    reuse: bool = True
    rank_all: bool = False
    exhaustive: bool = False
    caller: str = ""
    pool: bool = False
