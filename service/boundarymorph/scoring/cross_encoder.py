"""A cross-encoder: the model alone, which a `BatchingScorer` feeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from boundarymorph.batching.model import DeviceLost, OutOfMemory

__all__ = ["CrossEncoder", "DeviceLost", "OutOfMemory", "Pair", "sigmoid"]


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A query and a document, tokenised and cut to fit: what the model reads.

    ids: (n,) token ids, special ones included; type_ids: (n,) segments, where the model knows them; query: as it was
    given, since pairs of one query may share work; truncated: whether anything was cut.
    """

    ids: NDArray[np.int64]
    query: str
    truncated: bool
    type_ids: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.ids)


class CrossEncoder(Protocol):
    """Blocking and thread-safe. A pair's score does not depend on its batch, up to the rounding of its precision."""

    @property
    def name(self) -> str:
        """Model, revision, precision, length and prompt: two of the same name give the same scores."""

    @property
    def backend(self) -> str:
        """What runs it, such as onnx-cpu or torch-cuda: a label of the metrics."""

    @property
    def max_length(self) -> int:
        """Tokens of a pair, special ones included; longer ones are cut."""

    @property
    def lanes(self) -> int:
        """How many calls of `run` at a time keep the device busy."""

    @property
    def side_by_side(self) -> bool:
        """Whether lanes compute at the same time, as cores do, rather than in turn on one device."""

    @property
    def batch_tokens(self) -> int:
        """How many tokens, padding included, a batch should have at most; one pair always may."""

    @property
    def pads(self) -> bool:
        """Whether every pair of a batch costs as much as the longest of them."""

    def tokenize(self, query: str, texts: Sequence[str]) -> list[Pair]:
        """The pairs of n texts with one query."""

    def run(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        """(n,) relevances in [0, 1] of a batch. Raises OutOfMemory or DeviceLost."""

    def close(self) -> None:
        """Release threads and memory; no `run` is under way."""


def sigmoid(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Relevances of logits. Neither tail overflows, and a relevance near 0 keeps all its digits."""
    relevances: NDArray[np.float64] = np.exp(-np.logaddexp(0.0, -logits))
    return relevances
