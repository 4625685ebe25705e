"""Requests to a scorer: how long they take, and in how many rounds a budget is therefore spent."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

LATEST, ENOUGH = 32, 8  # trips to a server that are remembered, and that are needed to tell their parts
FADES, FRESH = 600.0, 1.0  # seconds for which a trip is remembered, and after which trips are looked at again
CHEAP = 0.5  # documents that a trip may cost, besides its own, where rounds may be many
CHOOSING = 0.005  # seconds that a round takes besides its trip, at least
FEW, FEWER, MORE = 24, 2, 3  # calls up to which two rounds are enough, and the rounds of fewer and of more calls
IN_TIME = 0.8  # of the time until a deadline, which trips are planned to take
LONGEST, SHORTEST = 86_400.0, 1e-6  # seconds of a trip, and of a document in it, that are counted with
# cheap: the scorer runs here on a CPU, where a request costs next to nothing besides its documents. dear: on a GPU or
# another machine. billed: a service that charges for requests, whatever number of documents they have.
Kind = Literal["cheap", "dear", "billed"]


class _Trip(NamedTuple):
    documents: int
    seconds: float
    at: float  # when it ended


class Clock:
    """Learns the time of a trip, as a fixed part and one for each document, of each server from its latest ones.

    Both are medians, so that a few slow trips change little: that of the slopes between any two trips (Theil 1950, Sen
    1968), and that of what is left. Of several servers the one in the middle counts, and the faster of two, so that a
    slow one among them changes no plan. Old trips are forgotten.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """now: in seconds."""
        self._now = now
        self._trips: dict[str | None, deque[_Trip]] = {}
        self._parts: tuple[float, float] | None = None
        self._until = -math.inf  # until when they are known

    def took(self, documents: int, seconds: float, server: str | None = None) -> None:
        """Learn from a trip. server: the one that it went to, None if there is no name for it or it went to several."""
        self._trips.setdefault(server, deque(maxlen=LATEST)).append(_Trip(documents, seconds, self._now()))
        if self._parts is None:
            self._until = -math.inf

    def parts(self) -> tuple[float, float] | None:
        """Return the seconds of a trip and of each document; None while the trips to most servers are too few or too
        much alike."""
        if (now := self._now()) >= self._until:
            self._parts, self._until = self._learned(now - FADES), now + FRESH
        return self._parts

    def _learned(self, since: float) -> tuple[float, float] | None:
        remembered = [[trip for trip in list(trips) if trip.at >= since] for trips in list(self._trips.values())]
        each_server = [trips for trips in remembered if trips]
        known = [parts for trips in each_server if (parts := _parts(trips)) is not None]
        if 2 * len(known) <= len(each_server):
            return None
        documents = float(np.median([trip.documents for trips in each_server for trip in trips]))
        known.sort(key=lambda parts: parts[0] + parts[1] * documents)
        return known[(len(known) - 1) // 2]


def _parts(trips: Sequence[_Trip]) -> tuple[float, float] | None:
    """Return what `Clock.parts` does, for trips to one server."""
    if len(trips) < ENOUGH:
        return None
    documents, seconds, _ = np.array(trips).T
    one, other = np.triu_indices(len(documents), 1)
    between = documents[other] - documents[one]
    apart = between != 0
    if np.count_nonzero(apart) < ENOUGH:
        return None
    each = max(0.0, float(np.median((seconds[other] - seconds[one])[apart] / between[apart])))
    return max(0.0, float(np.median(seconds - each * documents))), each


@dataclass(slots=True)
class Trips:
    """The requests to one scorer: their kind and time. full: documents that the scorer reads in one pass."""

    kind: Kind = "cheap"
    clock: Clock = field(default_factory=Clock)
    full: int = 1

    def rounds(self, budget: int, seconds: float = math.inf, *, settles: bool = False) -> int | None:
        """Return in how many rounds to spend a budget, or None for many that grow (`selection.acquisition.growing`).

        seconds: until the deadline, in which all must fit. settles: whether the selection stops by itself, which takes
        many looks: one after each pass of a scorer that reads many documents in one. What is known of the time counts
        only where trips are dear, so that elsewhere the same request has the same rounds.
        """
        one_by_one = self.kind == "dear" and self.full == 1
        if self.kind == "cheap" or (settles and one_by_one):
            return None
        parts = self.clock.parts()
        if one_by_one and parts is not None and parts[0] + CHOOSING <= CHEAP * parts[1]:
            return None
        rounds = FEWER if self.kind == "billed" or budget <= FEW else MORE
        if self.full > 1:
            passes = -(-budget // self.full)
            rounds = passes if settles else min(rounds, passes)
        if parts is None or parts[0] == 0.0 or math.isinf(seconds):
            return rounds
        fixed, each = parts
        return max(1, min(rounds, int((IN_TIME * seconds - each * budget) / fixed)))

    def fitting(self, seconds: float) -> int:
        """Return how many documents one trip brings within so many seconds; 0 where trips are cheap or their time is
        not known."""
        parts = None if self.kind == "cheap" else self.clock.parts()
        if parts is None:
            return 0
        left = min(IN_TIME * seconds, LONGEST) - parts[0]
        return int(max(0.0, left) / max(parts[1], SHORTEST))
