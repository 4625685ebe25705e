"""Test a session against the documents that were asked for, scored and given up."""

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from boundarymorph.selection import (
    Capacity,
    Config,
    DocumentCapacity,
    Pool,
    SelectionConfig,
    StopReason,
    TokenCapacity,
    TrendConfig,
)
from tests.selection import literal
from tests.sessions import Groups, session_of
from tests.stateful.profile import draws

PAPER = SelectionConfig(bandwidth_pairs=None)
CONFIGS: tuple[Config, ...] = (PAPER, TrendConfig())
SCORES = st.sampled_from([0.0, 1.0, 1e-9, 0.5]) | st.floats(0, 1)


@st.composite
def pools(draw: st.DrawFn) -> tuple[Pool, NDArray[np.float64]]:
    """Draw 5 to 30 documents, some of them equal, and their scores."""
    count, dimension, seed = draw(st.integers(5, 30)), draw(st.integers(2, 4)), draw(st.integers(0, 99))
    rng = np.random.default_rng(seed)
    embeddings = rng.normal(size=(count, dimension))[rng.integers(draw(st.integers(2, count)), size=count)]
    scores = np.array(draw(st.lists(SCORES, min_size=count, max_size=count)))
    return Pool.from_embeddings([f"d{n}" for n in range(count)], embeddings, rng.normal(size=dimension)), scores


@st.composite
def distincts(draw: st.DrawFn, count: int) -> Groups | None:
    groups = draw(st.none() | st.lists(st.integers(0, min(5, count - 1)), min_size=count, max_size=count))
    at_most, counts_groups = draw(st.integers(1, 3)), groups is not None and draw(st.booleans())
    given = None if groups is None else np.array(groups, dtype=np.intp)
    return draw(st.none() | st.just(Groups(given, at_most, counts_groups)))


class SessionMachine(RuleBasedStateMachine):
    """Ask, tell in any order, give up, and learn which texts are the same.

    The model has the scores, the calls that were made, the remaining documents, and the equal texts.
    """

    @initialize(case=pools(), config=st.sampled_from(CONFIGS), by_tokens=st.booleans(), data=st.data())
    def begin(
        self, case: tuple[Pool, NDArray[np.float64]], config: Config, by_tokens: bool, data: st.DataObject
    ) -> None:
        self.pool, self.scores = case
        count = len(self.pool)
        if by_tokens:
            self.lengths = np.array(data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count)), float)
            self.limit = float(data.draw(st.integers(int(self.lengths.min()), 60)))
            self.capacity: Capacity = TokenCapacity(self.lengths, self.limit)
        else:
            self.lengths, self.limit = np.ones(count), float(data.draw(st.integers(1, count + 1)))
            self.capacity = DocumentCapacity(int(self.limit))
        drawn = data.draw(st.just(range(count)) | st.lists(st.integers(0, 5), min_size=count, max_size=count))
        self.same = np.array([list(drawn).index(number) for number in drawn], dtype=np.intp)
        self.scores = self.scores[self.same]
        known = data.draw(st.sets(st.integers(0, count - 1), max_size=4))
        self.options: dict[str, Any] = {
            "budget": data.draw(st.integers(0, count + 3)),
            "k": self.capacity,
            "config": config,
            "known": {document: float(self.scores[document]) for document in known},
            "tolerance": data.draw(st.sampled_from([None, 0.3])),
            "order": data.draw(st.booleans()),
            "distinct": data.draw(distincts(count)),
        }
        self.session = session_of(self.pool, **self.options)
        self.told, self.paid, self.left = set(known), 0, set(range(count))
        self.tried: set[int] = set()
        self.texts = np.arange(count)
        self.asked: list[int] = []
        self.log: list[tuple[str, Any, list[int]]] = []

    def with_copies(self, documents: set[int]) -> set[int]:
        """Return these documents and their known copies."""
        return set(np.flatnonzero(np.isin(self.texts, self.texts[sorted(documents)])).tolist())

    @property
    def known(self) -> set[int]:
        return self.with_copies(self.told)

    @property
    def unanswered(self) -> set[int]:
        return self.with_copies(self.tried) - self.known

    @rule(data=st.data())
    def learn_copies(self, data: st.DataObject) -> None:
        more = data.draw(st.sets(st.sampled_from(self.same.tolist())))
        self.texts = np.where(np.isin(self.same, list(more)), self.same, self.texts)
        self.session.same_texts(self.texts.copy())
        self.log.append(("same_texts", None, self.texts.tolist()))
        asked = [document for document in self.asked if document not in self.known]
        firsts = dict(reversed([(int(self.texts[document]), document) for document in asked]))
        self.asked = [document for document in asked if document in firsts.values()]
        assert self.session.asked.tolist() == self.asked

    @rule(n=st.integers(1, 7))
    def ask(self, n: int) -> None:
        reason = self.session.stop_reason
        self.asked = self.session.ask(n).tolist()
        self.log.append(("ask", n, self.asked))
        budget = self.options["budget"]
        assert len(set(self.asked)) == len(self.asked) <= min(n, budget - self.paid)
        assert set(self.asked) <= self.left - self.known - self.unanswered
        assert bool(self.asked) == (reason is None)
        fits = self.lengths[list(self.left)]
        all_fit = fits.sum() <= self.limit and not self.crowded
        orders = self.options["order"] and self.left and all_fit
        if not orders and (all_fit or not (fits <= self.limit).any()):
            assert reason is StopReason.NOTHING_TO_DECIDE
        elif self.paid == budget:
            assert reason is StopReason.BUDGET
        elif self.left <= self.known | self.unanswered:
            assert reason is StopReason.POOL_EXHAUSTED
        else:
            assert reason in ({None} if orders or self.options["tolerance"] is None else {None, StopReason.SETTLED})
        if reason is None:
            open = len({int(self.texts[document]) for document in self.left - self.known - self.unanswered})
            most = min(n, budget - self.paid, open)
            assert len(self.asked) == most or (len(set(self.texts.tolist())) < len(self.pool) and self.asked)
        assert len({int(self.texts[document]) for document in self.asked}) == len(self.asked)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def tell(self, data: st.DataObject) -> None:
        told = data.draw(st.permutations(self.asked))
        told = told[: data.draw(st.integers(1, len(told)))]
        self.session.tell(told, self.scores[told])
        self.log.append(("tell", None, told))
        self.asked = [document for document in self.asked if document not in told]
        self.told |= set(told)
        self.paid += len(told)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def leave_unscored(self, data: st.DataObject) -> None:
        left = data.draw(st.sets(st.sampled_from(self.asked), min_size=1))
        self.session.leave_unscored(sorted(left))
        self.log.append(("leave_unscored", None, sorted(left)))
        self.asked = [document for document in self.asked if document not in left]
        self.tried |= left
        self.paid += len(left)

    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        """Give up documents in flight or, if there are none, any documents."""
        of = st.sampled_from(self.asked) if self.asked else st.integers(0, len(self.pool) - 1)
        gone = data.draw(st.lists(of, max_size=4))
        self.session.give_up(gone)
        self.log.append(("give_up", None, gone))
        self.left -= set(gone)
        self.asked = [document for document in self.asked if document not in gone]

    @invariant()
    def set_fits(self) -> None:
        selection = self.session.selection()
        chosen = selection.documents.tolist()
        assert len(set(chosen)) == len(chosen) and set(chosen) <= self.left
        self.check_fits(chosen)
        assert selection.scored.tolist() == [document in self.known for document in chosen]
        assert np.isfinite(selection.std).all() and (selection.std >= 0).all()
        assert (selection.std[selection.scored] == 0).all()
        np.testing.assert_array_equal(
            selection.relevance[selection.scored], self.scores[selection.documents[selection.scored]]
        )
        assert ((selection.relevance >= 0) & (selection.relevance <= 1)).all()
        assert (np.diff(selection.relevance) <= 0).all()
        assert np.isfinite(self.session.expected_loss()) and self.session.expected_loss() >= 0
        assert (self.session.spent, self.session.given_up) == (self.paid, len(self.pool) - len(self.left))
        assert {seen.document for seen in self.session.history} | self.options["known"].keys() == self.told

    @property
    def groups(self) -> list[int]:
        """Return the group of each document."""
        distinct = self.options["distinct"]
        if distinct is None:
            return list(range(len(self.pool)))
        groups: list[int] = (self.texts if distinct.groups is None else distinct.groups).tolist()
        return groups

    @property
    def crowded(self) -> bool:
        distinct = self.options["distinct"]
        most = 1 if distinct is None or distinct.counts_groups else distinct.at_most
        return max(Counter(self.groups[document] for document in self.left).values(), default=0) > most

    def check_fits(self, chosen: list[int]) -> None:
        distinct, room = self.options["distinct"], self.limit - self.lengths[chosen].sum()
        if distinct is None:
            assert room >= 0
            assert all(self.lengths[document] > room for document in self.left - set(chosen))
            return
        of_left, of_set = (Counter(self.groups[document] for document in of) for of in (self.left, chosen))
        assert all(count <= min(distinct.at_most, of_left[group]) for group, count in of_set.items())
        if distinct.counts_groups:
            assert all(count == min(distinct.at_most, of_left[group]) for group, count in of_set.items())
            assert isinstance(self.capacity, TokenCapacity) or len(of_set) == min(self.limit, len(of_left))
        elif isinstance(self.capacity, TokenCapacity):
            assert room >= 0
        else:
            assert len(chosen) == min(self.limit, sum(min(distinct.at_most, count) for count in of_left.values()))

    def teardown(self) -> None:
        if hasattr(self, "session"):
            self.check_replay()
            self.check_beliefs()

    def check_replay(self) -> None:
        again = session_of(self.pool, **self.options)
        for operation, n, documents in self.log:
            if operation == "ask":
                assert again.ask(n).tolist() == documents
            elif operation == "tell":
                again.tell(documents, self.scores[documents])
            elif operation == "same_texts":
                again.same_texts(np.array(documents))
            elif operation == "leave_unscored":
                again.leave_unscored(documents)
            else:
                again.give_up(documents)
        assert again.history == self.session.history
        np.testing.assert_array_equal(again.selection().documents, self.session.selection().documents)

    def check_beliefs(self) -> None:
        """The belief is independent of the order of scores, and of documents without a score."""
        belief, known = self.session.belief, sorted(self.told, reverse=True)
        at_once_told = session_of(
            self.pool, **self.options | {"budget": 0, "known": {d: float(self.scores[d]) for d in known}}
        )
        at_once_told.same_texts(self.texts)
        at_once = at_once_told.belief
        np.testing.assert_allclose(belief.mean, at_once.mean, rtol=0, atol=1e-6)
        np.testing.assert_allclose(belief.std, at_once.std, rtol=0, atol=1e-6)
        if self.options["config"] is PAPER:
            count, open = len(self.pool), ~belief.scored
            matrix, scores = literal.augmented_kernel(self.pool), [1.0, *self.scores[known].tolist()]
            mean, std = literal.posterior([count, *known], scores, literal.percentile_prior(count), matrix)
            np.testing.assert_allclose(belief.mean[open], mean[open], rtol=0, atol=1e-6)
            np.testing.assert_allclose(belief.std[open], std[open], rtol=0, atol=1e-6)


TestSession = SessionMachine.TestCase
TestSession.settings = draws(20, 15)
