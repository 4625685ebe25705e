"""A selection for several queries in progress: a run of each, and the session that shares the calls among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from boundarymorph.inference.executors import BoundedExecutor
from boundarymorph.remote.together import together
from boundarymorph.retrieval.fusion import fuse
from boundarymorph.scoring.bill import Bill
from boundarymorph.selection import (
    JointSelection,
    JointSession,
    Observation,
    Outlook,
    Pool,
    SelectionSession,
    StopReason,
)
from boundarymorph.selection.rounds import growing
from boundarymorph.selector.observer import Observer
from boundarymorph.selector.order import CallOrder
from boundarymorph.selector.remarks import no_call, remarks
from boundarymorph.selector.result import INTERRUPTING, Answered, Interruption, Progress, SelectionResult, Status
from boundarymorph.selector.run import EMPTY, NOTHING, SelectionRun
from boundarymorph.selector.task import SelectionTask


class JointRun(CallOrder):
    """A task of several queries in progress, called like a `SelectionRun`. Its pool has the candidates of all, by
    reciprocal rank, without vectors."""

    pool: Pool
    batch: NDArray[np.intp] = NOTHING

    def __init__(
        self, task: SelectionTask, runs: Sequence[SelectionRun], observer: Observer, executor: BoundedExecutor
    ) -> None:
        """runs: of `task.parts()`."""
        self._task, self._runs, self._observer = task, runs, observer
        self._in_thread = executor.run
        self._joint: JointSession | None = None
        self._history: list[Observation] = []
        self._asked: list[int] = []
        self._rounds = 0
        for run in runs:
            run.led = True

    async def retrieve(self) -> None:
        """Get the pools. Raises as `SelectionRun.retrieve` does."""
        self.enter("retrieve")
        with self._observer.stage("retrieve"):
            await together([run.retrieve() for run in self._runs])
            found = fuse([run.pool.ids for run in self._runs])
            self.pool = Pool.listed(found.ids, found.scores) if found.ids else self._runs[0].pool

    async def recall(self) -> None:
        """Reuse scores of earlier tasks, and choose the first batch. Raises as `SelectionRun.recall` does."""
        self.enter("recall")
        with self._observer.stage("fetch"):
            await together([run.recall() for run in self._runs])
        sessions = [run.session for run in self._runs if isinstance(run.session, SelectionSession)]
        if len(sessions) < len(self._runs):  # without candidates, or only in an order
            return
        budget, k = self._task.budget, self._task.k
        assert k is not None
        known = sum(budget - session.budget for session in sessions)
        weights = [query.weight for query in self._task.queries]
        order = self._task.goal == "order"
        self._joint = JointSession(
            sessions, self.pool.ids, budget=max(0, budget - known), k=k, weights=weights, order=order
        )
        with self._observer.stage("select"):
            await self._in_thread(self._ask, self._joint)

    async def score(self) -> None:
        """Have the batches scored side by side and choose the next ones. Raises as `SelectionRun.score` does."""
        self.enter("score")
        joint = self._joint
        assert joint is not None
        with self._observer.stage("score"):
            await together([run.score() for run in self._runs if run.batch.size])
        self._rounds += 1
        for number, (session, places) in enumerate(zip(joint.sessions, joint.places, strict=True)):
            told = self._runs[number].telling.history(session.history[self._asked.count(number) :])
            self._asked += [number] * len(told)
            for one in told:
                rival = None if one.rival is None else int(places[one.rival])
                seen = replace(one, document=int(places[one.document]), rival=rival, round=self._rounds)
                self._history.append(seen)
        with self._observer.stage("select"):
            await self._in_thread(self._ask, joint)

    async def progress(self) -> Progress:
        """Return the current state."""
        self.enter("progress")
        assert self._joint is not None
        chosen, outlook = await self._in_thread(_believed, self._joint)
        last = [seen for seen in self._history if seen.round == self._rounds]
        return Progress(
            rounds=self._rounds,
            calls=sum(run.scores.calls for run in self._runs),
            cached=sum(run.scores.cached for run in self._runs),
            budget=self._task.budget,
            reused=sum(len(run.scores.reused) for run in self._runs),
            outlook=outlook,
            pool=self.pool,
            selected=chosen.selection.documents,
            history=last,
            believed=None,
            bill=self._bill,
            asked=self._asked[len(self._asked) - len(last) :],
        )

    async def result(self) -> SelectionResult:
        """Return the current selection, with its texts if the task asks for them. Raises as `score` does."""
        self.enter("result")
        runs, joint = self._runs, self._joint
        none = np.full((len(runs), 0), np.nan)
        chosen, outlook = JointSelection(EMPTY, NOTHING, none), Outlook(0.0, {})
        if joint is not None:
            chosen, outlook = await self._selection(joint)
        elif self._interruption is not None:
            chosen, outlook = await self._as_fused(), Outlook(1.0, {})
        status = Status.COMPLETE
        if self._interruption is not None:
            scored = joint is not None and any(session.belief.scored.any() for session in joint.sessions)
            status = Status.PARTIAL if scored else Status.RETRIEVAL_ONLY
        stop_reason = None if joint is None else joint.stop_reason
        reused = sum(len(run.scores.reused) for run in runs)
        scores = [score for run in runs for score in run.telling.scores.values()]
        truncated = sum(run.scores.truncated for run in runs)
        warnings = [said for run in runs for said in run.warnings]
        warnings += remarks(self._deleted, scores, sum(run.ungraded for run in runs), truncated)
        if self._interruption is None and self._task.budget and not (self._history or reused):
            warnings.append(no_call(stop_reason, len(chosen.selection.documents)))
        warnings += [said for run in runs for said in run.unfamiliar()]
        result = SelectionResult(
            pool=self.pool,
            selection=chosen.selection,
            history=self._history,
            rounds=self._rounds,
            status=status,
            stop_reason=self._interruption or stop_reason or StopReason.NOTHING_TO_DECIDE,
            outlook=outlook,
            calls=sum(run.scores.calls for run in runs),
            cached=sum(run.scores.cached for run in runs),
            reused=reused,
            documents={id: document for run in runs for id, document in run.documents.by_id.items()},
            truncated=truncated,
            seconds=self._observer.seconds(),
            warnings=list(dict.fromkeys(warnings)),
            vectors=runs[0].vectors,
            believed=None,
            places=None,
            bill=self._bill,
            calibration=runs[0].telling.name,
            scores=self._scores_of(chosen),
            answered=Answered(chosen.leading, chosen.relevance, self._asked),
        )
        self._observer.finished(result, self._task, runs[0].scores.model)
        return result

    def _ask(self, joint: JointSession) -> None:
        """Give each run its batch: none once one of them was interrupted."""
        left = joint.budget - joint.spent
        most = self._task.batch_size
        if left >= sum(len(session.open) for session in joint.sessions):
            most = max(1, left)
        elif self._task.growing:
            known = sum(session.known for session in joint.sessions)
            most = min(most, max(1, growing(known, left, joint.budget)))
        asked = [NOTHING] * len(self._runs) if self._interruption else joint.ask(most)
        for run, documents in zip(self._runs, asked, strict=True):
            run.batch = documents
        self.batch = np.concatenate(asked)

    async def _selection(self, joint: JointSession) -> tuple[JointSelection, Outlook]:
        """Return the selection and its outlook. Documents that turn out to be deleted make room for others."""
        while True:
            with self._observer.stage("select"):
                chosen, outlook = await self._in_thread(_believed, joint)
            changed = False
            for number, run in enumerate(self._runs if self._task.return_documents else ()):
                ids = [self.pool.ids[place] for place in chosen.selection.documents[chosen.leading == number]]
                wanted = np.flatnonzero(np.isin(run.pool.ids, ids))
                assert run.session is not None
                try:
                    with self._observer.stage("fetch"):
                        async with self._task.deadline.of_texts.enforced():
                            changed |= await run.read_for(run.session, wanted, answer=True)
                except INTERRUPTING as error:
                    run.interrupt("not all texts could be read", error)
                    return chosen, outlook
            if not changed:
                return chosen, outlook

    async def _as_fused(self) -> JointSelection:
        """Return the first documents of the fused order, none of which has a score."""
        left = [place for place, id in enumerate(self.pool.ids) if id not in self._task.excluded]
        documents = np.array(left, dtype=np.intp)[: self._task.k]
        if self._task.return_documents:
            ids = [self.pool.ids[place] for place in documents]
            first = self._runs[0]
            await first.documents.read(np.flatnonzero(np.isin(first.pool.ids, ids)), answer=True)
        unknown = np.full(len(documents), 0.5)
        selection = replace(EMPTY, documents=documents, relevance=unknown, std=unknown, scored=unknown < 0)
        relevance = np.full((len(self._runs), len(documents)), np.nan)
        return JointSelection(selection, np.zeros(len(documents), dtype=np.intp), relevance)

    def _scores_of(self, chosen: JointSelection) -> dict[int, float]:
        """The scorer's own scores of the set's scored documents, each for the query that it answers best."""
        found = {}
        own = [run.telling.scores_of(run.documents.texts) for run in self._runs]
        selected = zip(
            chosen.selection.documents.tolist(), chosen.leading.tolist(), chosen.selection.scored, strict=True
        )
        for column, (place, number, scored) in enumerate(selected):
            if scored:
                position = self._runs[number].pool.ids.index(self.pool.ids[place])
                found[place] = own[number].get(position, float(chosen.relevance[number, column]))
        return found

    @property
    def _interruption(self) -> Interruption | None:
        return next((run.interruption for run in self._runs if run.interruption is not None), None)

    @property
    def _deleted(self) -> int:
        given_up = [
            set(run.pool.ids) - {run.pool.ids[p] for p in run.session.left} for run in self._runs if run.session
        ]
        return len(set().union(*given_up) - self._task.excluded)

    @property
    def _bill(self) -> Bill | None:
        bills = [run.scores.bill for run in self._runs if run.scores.bill is not None]
        if not bills:
            return None
        whole = Bill(self._task.caller)
        for bill in bills:
            whole.usage, whole.spent = whole.usage.plus(bill.usage), whole.spent.plus(bill.spent)
        return whole


def _believed(joint: JointSession) -> tuple[JointSelection, Outlook]:
    return joint.selection(), joint.outlook()
