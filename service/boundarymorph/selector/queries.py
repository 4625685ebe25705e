"""A selection for several queries in progress: a run of each with its share of the budget, and one set of the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from boundarymorph.inference.concurrency import Run, together
from boundarymorph.remote.wire import TokenCounts
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.ranking import fuse
from boundarymorph.selection import Observation, Outlook, Pool, Selection, StopReason
from boundarymorph.selection.capacity import best_of_each
from boundarymorph.selector.documents import numbered
from boundarymorph.selector.run import SelectionRun
from boundarymorph.selector.task import (
    INTERRUPTING,
    Answered,
    Observer,
    Progress,
    SelectionResult,
    SelectionTask,
    Status,
)


def parts_of(task: SelectionTask) -> list[SelectionTask]:
    """Return a task for each query, with an equal share of the budget; the first ones get what is left over."""
    share, more = divmod(task.budget, len(task.queries))
    return [
        replace(
            task,
            query=one.query,
            candidates=one.candidates,
            queries=(),
            budget=share + (number < more),
            return_documents=False,
        )
        for number, one in enumerate(task.queries)
    ]


class QueriesRun:
    """A task of several queries in progress, called like a `SelectionRun`. Its pool has the candidates of all, by
    reciprocal rank, without vectors. A document's relevance is the largest that it has to a query, times the weight of
    that query."""

    pool: Pool

    def __init__(self, task: SelectionTask, runs: Sequence[SelectionRun], observer: Observer, in_thread: Run) -> None:
        """runs: of `parts_of(task)`."""
        self._task, self._runs, self._observer, self._in_thread = task, runs, observer, in_thread
        self._weights = np.array([query.weight for query in task.queries])
        self._places: list[NDArray[np.intp]] = []  # of each query's candidates in the pool
        self._groups = np.empty(0, dtype=np.intp)  # (N,) of the candidates, if there is a limit on them

    @property
    def batch(self) -> NDArray[np.intp]:
        """Positions of the next documents to score, each in the pool of its query."""
        return np.concatenate([run.batch for run in self._runs])

    async def retrieve(self) -> None:
        """Get the pools. Raises as `SelectionRun.retrieve` does."""
        with self._observer.stage("retrieve"):
            await together([run.retrieve() for run in self._runs])
            found = fuse([run.pool.ids for run in self._runs])
            self.pool = Pool.listed(found.ids, found.scores) if found.ids else self._runs[0].pool
            places = {id: place for place, id in enumerate(self.pool.ids)}
            self._places = [np.array([places[id] for id in run.pool.ids], dtype=np.intp) for run in self._runs]
            grouping = next((run.grouping for run in self._runs if run.grouping is not None), None)
            self._task = replace(self._task, distinct=grouping)  # the default of the index, if it has one

    async def recall(self) -> None:
        """Reuse scores of earlier tasks, and choose the first batches: calls are spent on an equal share of the set of
        each query. Raises as `SelectionRun.recall` does."""
        assert self._task.k is not None
        k = self._task.k
        share = k if k >= len(self.pool) else -(-k // len(self._runs))
        with self._observer.stage("fetch"):
            await together([run.recall(share) for run in self._runs])
            if (grouping := self._task.distinct) is not None:
                without = [run.documents for run in self._runs if run.session is None and len(run.pool)]
                await together([documents.read_groups(grouping) for documents in without])
                read: dict[str, Document] = {}
                for run in self._runs:
                    read |= run.documents.read_so_far
                self._groups = await self._in_thread(numbered, grouping, self.pool.ids, read)

    async def score(self) -> None:
        """Have the batches scored side by side and choose the next ones. Raises as `SelectionRun.score` does."""
        with self._observer.stage("score"):
            await together([run.score() for run in self._runs if run.batch.size])

    async def progress(self) -> Progress:
        """Return the current state."""
        asked, history = self._history()
        rounds = max((seen.round for seen in history), default=0)
        last = [place for place, seen in enumerate(history) if seen.round == rounds]
        scores = [run.scores for run in self._runs]
        chosen, outlook = await self._in_thread(lambda: (self._best()[0], self._outlook()))
        return Progress(
            rounds=rounds,
            calls=sum(of.calls for of in scores),
            cached=sum(of.cached for of in scores),
            budget=self._task.budget,
            reused=sum(len(of.reused) for of in scores),
            outlook=outlook,
            pool=self.pool,
            selected=chosen.documents,
            history=[history[place] for place in last],
            tokens=_sum([of.tokens for of in scores]),
            asked=[asked[place] for place in last],
        )

    async def result(self) -> SelectionResult:
        """Return the current selection, with its texts if the task asks for them. Raises as `score` does."""
        selection, answered = await self._selection()
        outlook = await self._in_thread(self._outlook)
        parts = [await run.result() for run in self._runs]
        ended = [part for part in parts if part.status != Status.COMPLETE]
        only_retrieved = all(part.status == Status.RETRIEVAL_ONLY for part in parts)
        reasons = [part.stop_reason for part in ended or parts]
        asked, history = self._history()
        result = SelectionResult(
            task=self._task,
            pool=self.pool,
            selection=selection,
            history=history,
            rounds=max((seen.round for seen in history), default=0),
            status=Status.COMPLETE if not ended else Status.RETRIEVAL_ONLY if only_retrieved else Status.PARTIAL,
            stop_reason=StopReason.BUDGET if StopReason.BUDGET in reasons else reasons[0],
            outlook=outlook,
            calls=sum(part.calls for part in parts),
            cached=sum(part.cached for part in parts),
            reused=sum(part.reused for part in parts),
            documents={id: document for part in parts for id, document in part.documents.items()},
            truncated=sum(part.truncated for part in parts),
            seconds=self._observer.seconds(),
            warnings=list(dict.fromkeys(said for part in parts for said in part.warnings)),
            vectors=parts[0].vectors,
            tokens=_sum([part.tokens for part in parts]),
            trips=sum(part.trips for part in parts),
            calibration=parts[0].calibration,
            to_people=parts[0].to_people,
            scores=self._scores_of(selection, answered, parts),
            answered=replace(answered, asked=asked),
        )
        self._observer.finished(result, self._task, self._runs[0].scores.model)
        return result

    def _best(self) -> tuple[Selection, Answered]:
        """Return the k best documents as believed now. If nothing is believed of any, their order decides."""
        shape = len(self._runs), len(self.pool)
        relevance, deviations, scored = np.full(shape, np.nan), np.zeros(shape), np.zeros(shape, dtype=np.bool_)
        left = np.array([id not in self._task.excluded for id in self.pool.ids], dtype=np.bool_)
        for row, (run, places) in enumerate(zip(self._runs, self._places, strict=True)):
            if run.session is not None:
                ranking = run.session.ranking()
                at = places[ranking.documents]
                relevance[row, at], deviations[row, at] = ranking.relevance, ranking.std
                scored[row, at] = ranking.scored
                left[np.setdiff1d(places, at)] = False
        worth = np.nan_to_num(relevance) * self._weights[:, None]
        there = np.flatnonzero(left)
        if self._task.distinct is not None:
            limit = self._task.distinct.at_most
            there = there[best_of_each(worth.max(axis=0)[there], self._groups[there], limit)]
        chosen = there[np.argsort(-worth.max(axis=0)[there], kind="stable")[: self._task.k]]
        leading = worth[:, chosen].argmax(axis=0)
        best, spread = worth[leading, chosen], deviations[leading, chosen] * self._weights[leading]
        if np.isnan(relevance).all():
            best = spread = np.full(len(chosen), 0.5)
        return Selection(chosen, best, spread, scored[leading, chosen]), Answered(leading, relevance[:, chosen], ())

    async def _selection(self) -> tuple[Selection, Answered]:
        """Return what `_best` does, having read the texts. Documents that turn out to be deleted make room."""
        changed = True
        while changed:
            selection, answered = await self._in_thread(self._best)
            changed = False
            for number, run in enumerate(self._runs if self._task.return_documents else ()):
                ids = {self.pool.ids[place] for place in selection.documents[answered.leading == number]}
                wanted = np.flatnonzero([id in ids for id in run.pool.ids])
                try:
                    async with self._task.deadline.of_texts.enforced():
                        if run.session is None:
                            await run.documents.read(wanted, answer=True)
                        else:
                            changed |= await run.read_for(run.session, wanted, answer=True)
                except INTERRUPTING as error:
                    run.interrupt("not all texts could be read", error)
                    return selection, answered
        return selection, answered

    def _outlook(self) -> Outlook:
        """Return the mean of the queries' expected losses, by their weights, and the largest probability that one of
        them is answered."""
        found = [
            (Outlook(1.0, {}) if run.session is None else run.session.outlook(), weight)
            for run, weight in zip(self._runs, self._weights, strict=True)
            if len(run.pool)
        ]
        if not found:
            return Outlook(0.0, {}, answerable=0.0)
        outlooks, weights = zip(*found, strict=True)
        told = [outlook.answerable for outlook in outlooks if outlook.answerable is not None]
        loss = float(np.average([outlook.loss for outlook in outlooks], weights=weights))
        return Outlook(loss, {}, answerable=max(told, default=None))

    def _history(self) -> tuple[list[int], list[Observation]]:
        """Return of which query each call was, round by round, and the calls."""
        found = []
        for number, (run, places) in enumerate(zip(self._runs, self._places, strict=True)):
            for seen in run.calibrated.history(run.session.history) if run.session is not None else ():
                rival = None if seen.rival is None else int(places[seen.rival])
                found.append((number, replace(seen, document=int(places[seen.document]), rival=rival)))
        found.sort(key=lambda one: one[1].round)
        return [number for number, _ in found], [seen for _, seen in found]

    def _scores_of(
        self, selection: Selection, answered: Answered, parts: Sequence[SelectionResult]
    ) -> dict[int, float]:
        """Return the scorer's own scores of the set's scored documents, each for the query that it answers best."""
        found = {}
        for column in np.flatnonzero(selection.scored).tolist():
            place, number = int(selection.documents[column]), int(answered.leading[column])
            position = int(np.flatnonzero(self._places[number] == place)[0])
            found[place] = parts[number].scores.get(position, float(answered.relevance[number, column]))
        return found


def _sum(counts: Sequence[TokenCounts | None]) -> TokenCounts | None:
    given = [count for count in counts if count is not None]
    return reduce(TokenCounts.plus, given) if given else None
