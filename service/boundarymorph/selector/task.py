"""What a selection is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from boundarymorph.inference.deadline import NEVER, Deadline
from boundarymorph.retrieval.candidates import Candidates
from boundarymorph.retrieval.retriever import Retriever
from boundarymorph.selection.methods import DEFAULT


@dataclass(frozen=True, slots=True)
class SelectionTask:
    """What is wanted: the best documents for a query at no more than `budget` calls.

    candidates: made of the retriever. k: documents to return, or None for as many as fit into max_tokens. batch_size:
    calls a round, at most; growing: whether rounds begin small and grow (`selection.rounds`). settle: stop when no more
    than this share of the set's relevance is expected to be lost by it. method: a name in `methods.METHODS`. order:
    whether calls go to the order of the set where every document fits into it. deadline: when the set is wanted as it
    is then. degrade: whether it is wanted though the deadline came, or scorer or retriever failed. unscored: whether it
    is wanted, too, if for want of room nothing was scored, in place of Overloaded. reuse: whether scores known from
    earlier tasks are evidence that takes the place of calls. rank_all: whether the result has all candidates in order,
    and not k. exhaustive: whether all of them are scored, whatever is believed. caller: the name of the key that is
    charged where scores cost money. pool: whether progress and result have what is believed of all candidates.
    """

    query: str
    candidates: Callable[[Retriever], Candidates]
    budget: int
    k: int | None
    max_tokens: int | None = None
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
