"""The queue of sequences that wait for a model, and the choice of the next batch. It has no threads and no clock."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from operator import attrgetter, itemgetter
from typing import Generic, TypeVar

from boundarymorph.inference.batching.model import Item

Owner = TypeVar("Owner")

LOOK_AHEAD = 8  # how many batches' worth of sequences are searched for one of similar lengths
_due = attrgetter("due")


@dataclass(frozen=True, slots=True, eq=False)
class Entry(Generic[Item, Owner]):
    """A waiting sequence, the `position`-th of its owner's request. The earlier it is `due`, the more urgent.

    caller: on whose behalf it is.
    """

    item: Item
    owner: Owner
    position: int
    due: float
    caller: str = ""


@dataclass(slots=True)
class TokenQueue(Generic[Item, Owner]):
    """Waiting sequences, most urgent first; equally urgent ones in order of arrival. Callers share each batch evenly.

    callers: tokens that wait, by caller.
    """

    callers: Counter[str] = field(default_factory=Counter)
    _led: dict[str, int] = field(default_factory=dict)
    _waiting: list[Entry[Item, Owner]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, entries: Iterable[Entry[Item, Owner]]) -> None:
        """Add sequences to the queue."""
        for entry in entries:
            insort(self._waiting, entry, key=_due)
            self.callers[entry.caller] += len(entry.item)

    def discard(self, owners: Collection[Owner]) -> int:
        """Remove the sequences of these owners; return how many there were."""
        dropped = [entry for entry in self._waiting if entry.owner in owners]
        self._remove(dropped)
        return len(dropped)

    def owners(self) -> set[Owner]:
        """Return the owners of the waiting sequences."""
        return {entry.owner for entry in self._waiting}

    @property
    def tokens(self) -> int:
        """Total of all tokens that wait."""
        return self.callers.total()

    def tokens_due(self, moment: float, caller: str = "", tokens: int = 0) -> int:
        """Return the number of tokens that go before so many of a caller, due at this time: its own that are due by
        then, and of each other caller at most as many as it has itself then."""
        due: Counter[str] = Counter()
        for entry in self._waiting[: bisect_right(self._waiting, moment, key=_due)]:
            due[entry.caller] += len(entry.item)
        own = due.pop(caller, 0)
        return own + sum(min(count, own + tokens) for count in due.values())

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
        else:
            batch = self._front(batch_tokens)
        self._remove(batch)
        return batch

    def _remove(self, entries: Sequence[Entry[Item, Owner]]) -> None:
        gone = set(map(id, entries))
        self._waiting = [entry for entry in self._waiting if id(entry) not in gone]
        for entry in entries:
            self.callers[entry.caller] -= len(entry.item)
        self.callers = +self.callers

    def _front(self, tokens: int) -> list[Entry[Item, Owner]]:
        """Return the most urgent sequences with at most this many tokens in total, but at least one; of several callers
        about as many tokens each."""
        entries = self._waiting if len(self.callers) <= 1 else self._by_turns()
        sums = accumulate(len(entry.item) for entry in entries)
        return entries[: max(1, sum(1 for _ in takewhile(lambda total: total <= tokens, sums)))]

    def _by_turns(self) -> list[Entry[Item, Owner]]:
        """Return all that wait in the order of callers that take turns: each entry after as many tokens of every other
        caller as of its own, and first one of the caller that was first the longest ago."""
        before: Counter[str] = Counter()
        places, led = [], []
        for entry in self._waiting:
            places.append(before[entry.caller])
            before[entry.caller] += len(entry.item)
            led.append(self._led.get(entry.caller, 0))
        order = sorted(zip(places, led, self._waiting, strict=True), key=itemgetter(0, 1))
        self._led = {caller: self._led.get(caller, 0) for caller in before}
        self._led[order[0][2].caller] = max(led) + 1
        return [entry for *_, entry in order]


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
