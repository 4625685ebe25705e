"""Choose the documents of a pool that are worth judging, and collect evidence about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from boundarymorph.calibration.judgments import worth_judging
from boundarymorph.calibration.learning import JudgedQuery
from boundarymorph.calibration.trust import CHOICES, Choice
from boundarymorph.retrieval.document import Document, Retriever, VectorSource, in_awaited_pieces
from boundarymorph.scoring.scorer import Scorer, score_content
from boundarymorph.selection.pool import Trust
from boundarymorph.selector.selector import Selector
from boundarymorph.selector.task import Aim, Context, SelectionTask, Spending

COMPLETE = Context(accepts="complete")  # without a deadline


@dataclass(frozen=True, slots=True)
class JudgedPool:
    """A judged query.

    Attributes:
        query: The evidence about its judged documents.
        ids: The ids of the judged documents that are in its pool and have a score, in the order of `query`.
        vectors: The source of the vectors of its pool.
    """

    query: JudgedQuery
    ids: Sequence[str]
    vectors: VectorSource


class Judge:
    """Judging for tasks without a calibration, ignoring deadlines.

    Methods raise the errors of a selection.
    """

    def __init__(self, selector: Selector, retriever: Retriever, scorer: Scorer) -> None:
        self._selector, self._retriever, self._scorer = selector, retriever, scorer

    async def suggest(self, task: SelectionTask, count: int, seed: int) -> Sequence[Document]:
        """Return at most `count` documents that are worth judging, in random order.

        The budget of the task is spent on finding the documents that the scorer ranks best.
        """
        by_score = replace(task.relevance, human=False)
        spending = replace(task.spending, goal="set")
        wanted = replace(task, aim=Aim(count), spending=spending, relevance=by_score, context=COMPLETE)
        result = await self._selector.select(wanted)
        positions = worth_judging(result.selection.documents, len(result.pool), seed, count=count)
        ids = [result.pool.ids[position] for position in np.random.default_rng(seed).permutation(positions)]
        documents = await self._read(task, ids)
        return [documents[id] for id in ids if id in documents]

    async def score_judged(self, task: SelectionTask, grades: Mapping[str, float]) -> JudgedPool:
        """Score the judged documents that are in the pool, given the grades by id."""
        people = replace(task.relevance, human=True, shipped=False)
        bare = replace(task, aim=Aim(1), spending=Spending(0, reuse=False), relevance=people, context=COMPLETE)
        pool = (await self._selector.select(bare)).pool
        documents = await self._read(task, [id for id in pool.ids if id in grades])
        texts = [document.content for document in documents.values()]
        found = await score_content(texts, lambda texts: self._scorer.score(task.query, texts))
        if found.failure is not None:
            raise found.failure
        scores = {id: score for id, score in zip(documents, found.values.tolist(), strict=True) if not np.isnan(score)}
        orders = dict[Choice, dict[str, float]]()
        for choice in CHOICES:
            trust: Trust = "weak" if choice == "none" else choice
            known = {} if choice == "none" else scores
            spending = Spending(0, goal="ranking", reuse=False, known=known)
            ranked = await self._selector.select(
                replace(bare, spending=spending, relevance=replace(people, trust=trust))
            )
            ids = [ranked.pool.ids[place] for place in ranked.selection.documents.tolist()]
            orders[choice] = dict(zip(ids, ranked.selection.relevance.tolist(), strict=True))
        ids = [id for id in pool.ids if id in scores and all(id in order for order in orders.values())]

        def column(values: Mapping[str, float]) -> NDArray[np.float64]:
            return np.array([values[id] for id in ids], dtype=np.float64)

        relevance = {choice: column(order) for choice, order in orders.items()}
        return JudgedPool(JudgedQuery(column(scores), relevance, column(grades)), ids, ranked.vectors)

    async def _read(self, task: SelectionTask, ids: Sequence[str]) -> dict[str, Document]:
        pieces = in_awaited_pieces(task.source.candidates(self._retriever).documents, ids)
        return {id: document async for piece in pieces for id, document in piece.items()}
