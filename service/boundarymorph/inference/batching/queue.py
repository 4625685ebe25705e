"""The queue of sequences that wait for a model, and the choice of the next batch. It has no threads and no clock."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from operator import attrgetter
from typing import Generic, TypeVar

from boundarymorph.inference.batching.model import Item

Owner = TypeVar("Owner")

LOOK_AHEAD = 8  # how many batches' worth of sequences are searched for one of similar lengths
_due = attrgetter("due")


@dataclass(frozen=True, slots=True, eq=False)
class Entry(Generic[Item, Owner]):
    """A waiting sequence, the `position`-th of its owner's request. The earlier it is `due`, the more urgent."""

    item: Item
    owner: Owner
    position: int
    due: float


@dataclass(slots=True)
class TokenQueue(Generic[Item, Owner]):
    """Waiting sequences, most urgent first; equally urgent ones in order of arrival.

    tokens: total of all that wait.
    """

    tokens: int = 0
    _waiting: list[Entry[Item, Owner]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, entries: Iterable[Entry[Item, Owner]]) -> None:
        """Add sequences to the queue."""
        for entry in entries:
            insort(self._waiting, entry, key=_due)
            self.tokens += len(entry.item)

    def discard(self, owners: Collection[Owner]) -> int:
        """Remove the sequences of these owners; return how many there were."""
        kept = [entry for entry in self._waiting if entry.owner not in owners]
        dropped = len(self._waiting) - len(kept)
        self._waiting = kept
        self.tokens = sum(len(entry.item) for entry in kept)
        return dropped

    def owners(self) -> set[Owner]:
        """Return the owners of the waiting sequences."""
        return {entry.owner for entry in self._waiting}

    def tokens_due(self, moment: float) -> int:
        """Return the number of tokens due at this time or before."""
        return sum(len(entry.item) for entry in self._waiting[: bisect_right(self._waiting, moment, key=_due)])

    def take(self, batch_tokens: int, *, pads: bool) -> list[Entry[Item, Owner]]:
        """Remove and return the next batch, which contains the most urgent sequence; empty if nothing waits.

        batch_tokens: largest cost of a batch of more than one sequence. pads: each sequence costs as much as the
        longest; the batch then has similar lengths, chosen from the most urgent `LOOK_AHEAD` times batch_tokens.
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
        """Return the most urgent sequences with at most this many tokens in total, but at least one."""
        sums = accumulate(len(entry.item) for entry in self._waiting)
        return self._waiting[: max(1, sum(1 for _ in takewhile(lambda total: total <= tokens, sums)))]


def padding(lengths: Sequence[int], *, pads: bool) -> float:
    """Return the fraction of a batch's cost that is padding, in [0, 1)."""
    return 1 - sum(lengths) / (max(lengths) * len(lengths)) if pads else 0.0


def _like_lengths(entries: list[Entry[Item, Owner]], batch_tokens: int) -> list[Entry[Item, Owner]]:
    """Return the batch with the most tokens among all runs of neighbours by length that contain the first entry."""
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
