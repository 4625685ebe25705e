"""The memory that a task may take."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from boundarymorph.errors import LimitExceeded


def _ignore(amount: int) -> None:
    """Take nothing."""


@dataclass(frozen=True, slots=True)
class Room:
    """Where the memory of a task is counted. texts: takes bytes for the documents that it reads of an index; selection:
    for its mathematics. Both raise Overloaded if there are not so many left, and LimitExceeded if there never are.
    answer: most bytes of the documents in an answer."""

    texts: Callable[[int], None] = _ignore
    selection: Callable[[int], None] = _ignore
    answer: float = math.inf

    def check_answer(self, size: int) -> None:
        """Raises LimitExceeded for an answer of more bytes."""
        if size > self.answer:
            raise LimitExceeded(
                f"the answer would take more than {self.answer:,} bytes (limits.answer_bytes): ask for fewer documents "
                "or leave out their texts; the scores are kept, so that takes no new calls"
            )


FREE = Room()
