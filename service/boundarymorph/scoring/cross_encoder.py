"""A cross-encoder: the model alone, which a `BatchingScorer` feeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from boundarymorph.inference.batching.model import Model


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


class CrossEncoder(Model[Pair], Protocol):
    """A `Model` whose results are relevances: two of the same name, prompt included, give the same."""

    def tokenize(self, query: str, texts: Sequence[str]) -> list[Pair]:
        """The pairs of n texts with one query."""

    def run(self, pairs: Sequence[Pair], /) -> NDArray[np.float64]:
        """(n,) relevances in [0, 1] of a batch. Raises OutOfMemory or DeviceLost."""


def sigmoid(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Relevances of logits. Neither tail overflows, and a relevance near 0 keeps all its digits."""
    relevances: NDArray[np.float64] = np.exp(-np.logaddexp(0.0, -logits))
    return relevances
