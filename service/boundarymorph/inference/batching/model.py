"""The interface between the batcher and a model that runs sequences of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import BoundaryMorphError
from boundarymorph.telemetry.metrics import BatchFamily


class OutOfMemory(Exception):
    """The device has too little memory for this batch; a smaller one may fit."""


class DeviceLost(Exception):
    """The device or its context is lost for good; only a new process may help."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenSequence:
    """A text or a pair of texts as a model reads it: tokenized and truncated to fit.

    ids: (n,) token ids, special ones included; truncated: whether anything was cut off; type_ids: (n,) segments, if the
    model distinguishes them.
    """

    ids: NDArray[np.int64]
    truncated: bool
    type_ids: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class ModelRole:
    """What a model is used for, in the words of messages and metrics.

    name: scorer or encoder; item, result: its input and output, in the singular; done: the participle for an item;
    shape, dtype: of one result; unavailable, failed: errors raised if it cannot work now, or not at all.
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
    """values: (n, ...) in the order of the items; truncated: how many of them were truncated."""

    values: NDArray[Any]
    truncated: int


Item = TypeVar("Item", bound=TokenSequence)
Contra = TypeVar("Contra", bound=TokenSequence, contravariant=True)


class Model(Protocol[Contra]):
    """Blocking and thread-safe. The result for a sequence does not depend on its batch, up to rounding."""

    @property
    def name(self) -> str:
        """Models of the same name give the same results."""

    @property
    def backend(self) -> str:
        """The label in the metrics, such as onnx-cpu or torch-cuda."""

    @property
    def max_length(self) -> int:
        """Most tokens of a sequence, special ones included; longer ones are truncated."""

    @property
    def workers(self) -> int:
        """How many concurrent calls of `run` keep the device busy."""

    @property
    def parallel(self) -> bool:
        """Whether workers compute at the same time, as on cores, rather than in turn on one device."""

    @property
    def batch_tokens(self) -> int:
        """Most tokens of a batch, padding included; a single sequence is always allowed."""

    @property
    def pads(self) -> bool:
        """Whether every sequence of a batch costs as much as the longest of them."""

    def run(self, items: Sequence[Contra], /) -> NDArray[Any]:
        """Return (n, ...), one result per sequence, in order. Raises OutOfMemory or DeviceLost."""

    def close(self) -> None:
        """Release threads and memory. Only called when no `run` is under way."""
