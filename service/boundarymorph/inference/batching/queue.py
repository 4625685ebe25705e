"""Sequences that wait for a model, and which of them make the next batch. No threads, no clock."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from operator import attrgetter
from typing import Generic, TypeVar

from boundarymorph.inference.batching.model import Item

Owner = TypeVar("Owner")

LOOK_AHEAD = 8  # batches' worth of sequences among which one of like lengths is sought
_due = attrgetter("due")


@dataclass(frozen=True, slots=True, eq=False)
class Entry(Generic[Item, Owner]):
    """A waiting sequence: the `position`-th of its owner's request, the more urgent the earlier it is `due`."""

    item: Item
    owner: Owner
    position: int
    due: float


@dataclass(slots=True)
class TokenQueue(Generic[Item, Owner]):
    """Waiting sequences, most urgent first; of equally urgent ones the earlier comer.

    tokens: of all that wait.
    """

    tokens: int = 0
    _waiting: list[Entry[Item, Owner]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, entries: Iterable[Entry[Item, Owner]]) -> None:
        """Let these wait too."""
        for entry in entries:
            insort(self._waiting, entry, key=_due)
            self.tokens += len(entry.item)

    def discard(self, owners: Collection[Owner]) -> int:
        """Forget what these owners have waiting; how many sequences that were."""
        kept = [entry for entry in self._waiting if entry.owner not in owners]
        dropped = len(self._waiting) - len(kept)
        self._waiting = kept
        self.tokens = sum(len(entry.item) for entry in kept)
        return dropped

    def owners(self) -> set[Owner]:
        """Whose sequences wait."""
        return {entry.owner for entry in self._waiting}

    def tokens_due(self, moment: float) -> int:
        """Tokens of what is due at this moment or before."""
        return sum(len(entry.item) for entry in self._waiting[: bisect_right(self._waiting, moment, key=_due)])

    def take(self, batch_tokens: int, *, pads: bool) -> list[Entry[Item, Owner]]:
        """The next batch, the most urgent sequence always among it; none if nothing waits.

        batch_tokens: what the batch may cost, unless it is a single sequence. pads: each costs as much as the
        longest; the batch is then of like lengths, out of the most urgent `LOOK_AHEAD` times batch_tokens.
        """
        if not self._waiting:
            return []
        if pads:
            front = self._front(LOOK_AHEAD * batch_tokens)
            batch = _like_lengths(front, batch_tokens)
            taken = set(map(id, batch))
            self._waiting[: len(front)] = [entry for entry in front if id(entry) not in taken]
        else:
            batch = self._front(batch_tokens)
            del self._waiting[: len(batch)]
        self.tokens -= sum(len(entry.item) for entry in batch)
        return batch

    def _front(self, tokens: int) -> list[Entry[Item, Owner]]:
        """The most urgent sequences of no more than so many tokens together, at least one."""
        sums = accumulate(len(entry.item) for entry in self._waiting)
        return self._waiting[: max(1, sum(1 for _ in takewhile(lambda total: total <= tokens, sums)))]


def padding(lengths: Sequence[int], *, pads: bool) -> float:
    """The share of a batch's cost that is padding, in [0, 1)."""
    return 1 - sum(lengths) / (max(lengths) * len(lengths)) if pads else 0.0


def _like_lengths(entries: list[Entry[Item, Owner]], batch_tokens: int) -> list[Entry[Item, Owner]]:
    """Of all batches of neighbours by length that hold the first entry, the one with most tokens of its own."""
    by_length = sorted(entries, key=lambda entry: len(entry.item))
    sums = [0, *accumulate(len(entry.item) for entry in by_length)]
    urgent = by_length.index(entries[0])
    best, most = (urgent, urgent + 1), 0
    for end in range(urgent + 1, len(by_length) + 1):
        room = batch_tokens // len(by_length[end - 1].item)
        first = max(0, end - room)
        if first > urgent:
            break
        if sums[end] - sums[first] > most:
            best, most = (first, end), sums[end] - sums[first]
    return by_length[slice(*best)]
