"""The queue of a batcher against a sorted list."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from boundarymorph.inference.batching.queue import LOOK_AHEAD, Entry, TokenQueue
from boundarymorph.scoring.scorer import Pair
from tests.stateful.profile import draws

OWNERS = st.integers(0, 3)


class Waiting(NamedTuple):
    """An entry of the model, which is sorted by `due` and then by `came`."""

    due: float
    came: int
    owner: int
    length: int


class TokenQueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue: TokenQueue[Pair, int] = TokenQueue()
        self.model: list[Waiting] = []
        self.came = 0

    @rule(owner=OWNERS, items=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), max_size=4))
    def add(self, owner: int, items: list[tuple[int, int]]) -> None:
        entries = []
        for length, due in items:
            entries.append(Entry(Pair(np.arange(length), False, query="q"), owner, self.came, float(due)))
            self.model.append(Waiting(due, self.came, owner, length))
            self.came += 1
        self.model.sort()
        self.queue.add(entries)

    @rule(owners=st.sets(OWNERS))
    def discard(self, owners: set[int]) -> None:
        kept = [one for one in self.model if one.owner not in owners]
        assert self.queue.discard(owners) == len(self.model) - len(kept)
        self.model = kept

    @rule(tokens=st.integers(1, 20), pads=st.booleans())
    def take(self, tokens: int, pads: bool) -> None:
        batch = self.queue.take(tokens, pads=pads)
        taken = [one for one in self.model if one.came in {entry.position for entry in batch}]
        assert len(taken) == len(batch)
        if not self.model:
            assert not taken
            return
        assert taken[0] == self.model[0]
        lengths = [one.length for one in taken]
        assert len(taken) == 1 or (max(lengths) * len(lengths) if pads else sum(lengths)) <= tokens
        looked_at = LOOK_AHEAD * tokens if pads else tokens
        front, total = [self.model[0]], self.model[0].length
        for one in self.model[1:]:
            total += one.length
            if total > looked_at:
                break
            front.append(one)
        assert taken == front or (pads and set(taken) <= set(front))
        self.model = [one for one in self.model if one not in taken]

    @invariant()
    def same(self) -> None:
        assert len(self.queue) == len(self.model)
        assert self.queue.tokens == sum(one.length for one in self.model)
        assert self.queue.owners() == {one.owner for one in self.model}
        for moment in range(-1, 7):
            assert self.queue.tokens_due(moment) == sum(one.length for one in self.model if one.due <= moment)


TestTokenQueue = TokenQueueMachine.TestCase
TestTokenQueue.settings = draws(60, 25)
