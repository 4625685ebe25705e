"""What batches are made for: a model that runs sequences of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import BoundaryMorphError
from boundarymorph.telemetry.metrics import BatchFamily


class OutOfMemory(Exception):
    """The device has no room for this batch; a smaller one may fit."""


class DeviceLost(Exception):
    """The device or its context is gone for good: only a new process may help."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenSequence:
    """What a model reads: a text or a pair of texts, tokenised and cut to fit.

    ids: (n,) token ids, special ones included; truncated: whether anything was cut; type_ids: (n,) segments, where the
    model knows them.
    """

    ids: NDArray[np.int64]
    truncated: bool
    type_ids: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Role:
    """What a model is there for, in the words of messages and metrics.

    name: scorer or encoder; item, result: what it reads and gives, in the singular; done: what becomes of an item;
    shape, dtype: of one result; unavailable, failed: raised when it cannot work now, or not at all.
    """

    name: str
    item: str
    result: str
    done: str
    dtype: type[np.floating[Any]]
    unavailable: type[BoundaryMorphError]
    failed: type[BoundaryMorphError]
    metrics: BatchFamily
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """values: (n, ...) in the order of the items; truncated: how many of them were cut to fit."""

    values: NDArray[Any]
    truncated: int


Item = TypeVar("Item", bound=TokenSequence)
Contra = TypeVar("Contra", bound=TokenSequence, contravariant=True)


class Model(Protocol[Contra]):
    """Blocking and thread-safe. What it makes of a sequence does not depend on its batch, up to rounding."""

    @property
    def name(self) -> str:
        """Two of the same name give the same results."""

    @property
    def backend(self) -> str:
        """What runs it, such as onnx-cpu or torch-cuda: a label of the metrics."""

    @property
    def max_length(self) -> int:
        """Tokens of a sequence, special ones included; longer ones are cut."""

    @property
    def workers(self) -> int:
        """How many calls of `run` at a time keep the device busy."""

    @property
    def side_by_side(self) -> bool:
        """Whether workers compute at the same time, as cores do, rather than in turn on one device."""

    @property
    def batch_tokens(self) -> int:
        """How many tokens, padding included, a batch should have at most; one sequence always may."""

    @property
    def pads(self) -> bool:
        """Whether every sequence of a batch costs as much as the longest of them."""

    def run(self, items: Sequence[Contra], /) -> NDArray[Any]:
        """(n, ...) one result a sequence, in order. Raises OutOfMemory or DeviceLost."""

    def close(self) -> None:
        """Release threads and memory; no `run` is under way."""
