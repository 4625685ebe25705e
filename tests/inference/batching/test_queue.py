"""Test which pairs make the next batch: urgency, token limit, and similar lengths."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundarymorph.inference.batching import LOOK_AHEAD, QueueEntry, TokenQueue
from boundarymorph.inference.models import TokenSequence

waiting = st.lists(st.tuples(st.integers(1, 30), st.floats(0, 10)), max_size=40)
budgets = st.integers(1, 100)


def queue_of(pairs: Sequence[tuple[int, float]], owner: str = "all") -> TokenQueue[str]:
    queue: TokenQueue[str] = TokenQueue()
    queue.add(
        QueueEntry(TokenSequence(np.arange(length), False), owner, position, due)
        for position, (length, due) in enumerate(pairs)
    )
    return queue


def lengths(batch: Sequence[QueueEntry[str]]) -> list[int]:
    return [len(entry.item) for entry in batch]


@pytest.mark.parametrize("pads", [True, False])
@given(pairs=waiting, batch_tokens=budgets)
def test_queue_takes_each_pair_once_within_the_token_budget(
    pads: bool, pairs: list[tuple[int, float]], batch_tokens: int
) -> None:
    queue, seen = queue_of(pairs), []
    while queue:
        assert queue.tokens == sum(length for position, (length, _) in enumerate(pairs) if position not in seen)
        most_urgent = min(due for position, (_, due) in enumerate(pairs) if position not in seen)
        batch = queue.take(batch_tokens, pads=pads)
        assert most_urgent in [entry.due for entry in batch]
        cost = max(lengths(batch)) * len(batch) if pads else sum(lengths(batch))
        assert cost <= batch_tokens or len(batch) == 1
        seen += [entry.position for entry in batch]
    assert sorted(seen) == list(range(len(pairs)))
    assert queue.tokens == 0
    assert queue.take(batch_tokens, pads=pads) == []


@given(pairs=waiting, batch_tokens=budgets)
def test_unpadded_batch_takes_the_most_urgent_pairs_that_fit(pairs: list[tuple[int, float]], batch_tokens: int) -> None:
    queue = queue_of(pairs)
    order = sorted(range(len(pairs)), key=lambda position: pairs[position][1])  # stable: first come, first served
    batch = queue.take(batch_tokens, pads=False)
    assert [entry.position for entry in batch] == order[: len(batch)]
    if len(batch) < len(pairs):
        assert sum(lengths(batch)) + pairs[order[len(batch)]][0] > batch_tokens


def test_padded_batch_groups_pairs_of_similar_length() -> None:
    queue = queue_of([(10, 0), (30, 1), (11, 2), (29, 3), (9, 4), (31, 5)])
    assert sorted(lengths(queue.take(40, pads=True))) == [9, 10, 11]
    assert sorted(lengths(queue.take(90, pads=True))) == [30, 31]
    assert lengths(queue.take(90, pads=True)) == [29]


def test_padded_batch_looks_for_similar_lengths_among_urgent_pairs() -> None:
    pairs = [(10, 0.0), *[(20, 1.0)] * LOOK_AHEAD, *[(10, 2.0)] * 9]
    assert lengths(queue_of(pairs).take(20, pads=True)) == [10]


def test_queue_discards_the_pairs_of_an_owner() -> None:
    queue = queue_of([(3, 0), (4, 1)], "gone")
    queue.add([QueueEntry(TokenSequence(np.arange(5), False), "here", 0, 0.5)])
    assert queue.owners() == {"gone", "here"}
    assert queue.discard({"gone", "never here"}) == 2
    assert (len(queue), queue.tokens) == (1, 5)
    assert [entry.owner for entry in queue.take(100, pads=False)] == ["here"]


class TestCallers:
    def callers_queue(self, *requests: tuple[str, int, float]) -> TokenQueue[str]:
        """Return a queue of requests: caller, number of pairs of ten tokens, and due time."""
        queue: TokenQueue[str] = TokenQueue()
        for caller, count, due in requests:
            queue.add(
                QueueEntry(TokenSequence(np.arange(10), False), caller, place, due, caller) for place in range(count)
            )
        return queue

    @pytest.mark.parametrize("pads", [True, False])
    def test_callers_have_equal_parts_of_a_batch(self, pads: bool) -> None:
        queue = self.callers_queue(("greedy", 100, 0.0), ("modest", 3, 9.0))
        assert queue.callers == {"greedy": 1_000, "modest": 30}
        batch = queue.take(40, pads=pads)
        assert sorted(entry.caller for entry in batch) == ["greedy", "greedy", "modest", "modest"]
        assert [entry.caller for entry in queue.take(40, pads=pads)].count("modest") == 1
        assert queue.callers == {"greedy": 950}

    def test_callers_take_turns_in_single_pair_batches(self) -> None:
        queue = self.callers_queue(("a", 6, 0.0), ("b", 2, 1.0), ("c", 2, 2.0))
        order = "".join(queue.take(1, pads=True)[0].caller for _ in range(10))
        assert order == "abcabcaaaa"

    @pytest.mark.parametrize(("tokens", "before"), [(10, 10), (30, 30), (1_000, 100)])
    def test_tokens_due_counts_at_most_an_equal_part_of_other_callers(self, tokens: int, before: int) -> None:
        queue = self.callers_queue(("greedy", 10, 0.0))
        assert queue.tokens_due(5.0, "modest", tokens) == before
        assert queue.tokens_due(5.0, "greedy", tokens) == 100
        assert queue.tokens_due(-1.0, "modest", tokens) == 0
