"""The interface of a cross-encoder: the model alone, which a `BatchingScorer` calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from boundarymorph.inference.batching.model import Model, TokenSequence


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pair(TokenSequence):
    """A query and a document. query: unchanged, since pairs of one query may share work."""

    query: str


class CrossEncoder(Model[Pair], Protocol):
    """A `Model` that returns relevances: two with the same name, which includes the prompt, return the same."""

    def tokenize(self, query: str, texts: Sequence[str]) -> list[Pair]:
        """Tokenize the pairs of n texts with one query."""

    def run(self, pairs: Sequence[Pair], /) -> NDArray[np.float64]:
        """Return the (n,) relevances in [0, 1] of a batch. Raises OutOfMemory or DeviceLost."""


@runtime_checkable
class InstructedCrossEncoder(CrossEncoder, Protocol):
    """A `CrossEncoder` that may read an instruction with each pair."""

    @property
    def takes_instruction(self) -> bool:
        """Whether its prompt has a place for one."""

    def tokenize(self, query: str, texts: Sequence[str], instruction: str | None = None) -> list[Pair]:
        """See `CrossEncoder.tokenize`. Raises InvalidInput for an instruction that fills the prompt."""


def sigmoid(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the relevances of logits. Neither tail overflows, and a relevance near 0 keeps all its digits."""
    relevances: NDArray[np.float64] = np.exp(-np.logaddexp(0.0, -logits))
    return relevances
