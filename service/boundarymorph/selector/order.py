"""The order in which the calls of a run make sense, as a machine of four states.

    new ── retrieve ──> retrieved ── recall ──> chosen ⟲ progress, score ── result ──> done

Each call is possible in one state only; in any other it raises RuntimeError and changes nothing. In `chosen` a run has
a batch of documents to score. The batch is empty once the budget is spent, nothing is left to decide, or the deadline,
the retriever or the scorer ended the run. Then only `result` is left; it may be called before, too.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

State: TypeAlias = Literal["new", "retrieved", "chosen", "done"]
Call: TypeAlias = Literal["retrieve", "recall", "progress", "score", "result"]
CALLS: dict[Call, tuple[State, State]] = {
    "retrieve": ("new", "retrieved"),
    "recall": ("retrieved", "chosen"),
    "progress": ("chosen", "chosen"),
    "score": ("chosen", "chosen"),
    "result": ("chosen", "done"),
}


class CallOrder:
    """A run whose calls are possible in this order only."""

    batch: NDArray[np.intp]
    state: State = "new"

    def enter(self, call: Call) -> None:
        """Move to the state that a call leads to. Raises RuntimeError where the call is not possible."""
        before, after = CALLS[call]
        if self.state != before:
            raise RuntimeError(f"{call} is called in the state {before!r}; this run is in {self.state!r}")
        if call in ("progress", "score") and not self.batch.size:
            raise RuntimeError(f"{call} needs a batch, and this run has nothing left to score")
        self.state = after
