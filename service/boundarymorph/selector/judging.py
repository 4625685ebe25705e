"""Which documents of a task's pool are worth judging, and what is known of those that were judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from boundarymorph.calibration.judgments import JudgedQuery, worth_judging
from boundarymorph.inference.concurrency import NEVER
from boundarymorph.inference.models import identity_of
from boundarymorph.retrieval.document import Document, Retriever, VectorSource, in_awaited_pieces
from boundarymorph.scoring.scorer import Scorer, by_witnesses, of_content
from boundarymorph.selector.selector import Selector
from boundarymorph.selector.task import SelectionTask


@dataclass(frozen=True, slots=True)
class Judged:
    """A judged query. ids: the judged documents in its pool, in the order of `query`; missing: how many judged
    documents are not in it, or have no score; vectors: the source of the pool's."""

    query: JudgedQuery
    ids: Sequence[str]
    missing: int
    vectors: VectorSource


class Judging:
    """Tasks without calibration: their budget is spent on finding the best by the scorer."""

    def __init__(self, selector: Selector, retriever: Retriever, scorer: Scorer) -> None:
        self._selector, self._retriever, self._scorer = selector, retriever, scorer

    async def suggest(self, task: SelectionTask, count: int, seed: int) -> Sequence[Document]:
        """At most `count` documents, shuffled, so that their order says nothing. Raises what a selection does."""
        wanted = replace(
            task, k=count, goal="set", accepts="complete", deadline=NEVER, calibration=None, to_people=False
        )
        result = await self._selector.select(wanted)
        positions = worth_judging(result.selection.documents, len(result.pool), seed, count=count)
        ids = [result.pool.ids[position] for position in np.random.default_rng(seed).permutation(positions)]
        documents = await self._read(task, ids)
        return [documents[id] for id in ids if id in documents]

    async def judged(self, task: SelectionTask, grades: Mapping[str, float]) -> Judged:
        """Score the documents with these ids that are in the pool. Raises what a selection does."""
        wanted = replace(task, budget=0, k=1, accepts="complete", deadline=NEVER, calibration=None)
        pooled = await self._selector.select(wanted)
        pool = pooled.pool
        positions = [position for position, id in enumerate(pool.ids) if id in grades]
        documents = await self._read(task, [pool.ids[position] for position in positions])
        there = np.array([position for position in positions if pool.ids[position] in documents], dtype=np.intp)
        texts = [documents[pool.ids[position]].content for position in there]
        found = await of_content(texts, lambda texts: self._scorer.score(task.query, texts))
        if found.failure is not None:
            raise found.failure
        known = ~np.isnan(found.values)
        there, scores = there[known], found.values[known]
        given = np.array([grades[pool.ids[position]] for position in there], dtype=np.float64)
        added = by_witnesses(identity_of(self._scorer), texts)
        query = JudgedQuery.of(pool, there, scores, given, added)
        ids = [pool.ids[position] for position in there]
        return Judged(query, ids, len(grades) - len(there), pooled.vectors)

    async def _read(self, task: SelectionTask, ids: Sequence[str]) -> dict[str, Document]:
        pieces = in_awaited_pieces(task.candidates(self._retriever).documents, ids)
        return {id: document async for piece in pieces for id, document in piece.items()}
