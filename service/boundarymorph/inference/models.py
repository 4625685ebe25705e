"""Models that run sequences of tokens: their interface, their names, and the weights of the embedded ones."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import BoundaryMorphError, ModelUnavailable
from boundarymorph.telemetry.metrics import BatchFamily

_PACKAGE = "boundarymorph_models"
_REMEDY = (
    "install the embedded models with: pip install --force-reinstall --no-deps --find-links dist boundarymorph-models "
    "(make model-wheels leaves their wheel in dist/)"
)


@dataclass(frozen=True, slots=True)
class Weights:
    """An ONNX model and its tokenizer on disk.

    model: its public name; directory: contains model.onnx and tokenizer.json; sha256: of model.onnx;
    positions: the most tokens that the model reads.
    """

    model: str
    precision: str
    directory: Path
    sha256: str
    positions: int = 512

    @property
    def name(self) -> str:
        """Model, revision and precision, which distinguish these weights from others in caches and indexes."""
        return f"{self.model}@{self.sha256[:12]}/{self.precision}"

    @property
    def onnx(self) -> Path:
        return self.directory / "model.onnx"

    @property
    def tokenizer(self) -> Path:
        return self.directory / "tokenizer.json"

    def verify(self) -> None:
        """Raise ModelUnavailable unless both files exist and model.onnx is the expected one."""
        for path in (self.onnx, self.tokenizer):
            if not path.is_file():
                raise ModelUnavailable(f"{path}, part of {self.model}, is missing; {_REMEDY}")
        status = self.onnx.stat()
        found = _sha256(self.onnx, status.st_size, status.st_mtime_ns)
        if found != self.sha256:
            raise ModelUnavailable(f"{self.onnx} has sha256 {found}, but {self.model} needs {self.sha256}; {_REMEDY}")


def embedded_encoder() -> Weights:
    """Return BAAI/bge-small-en-v1.5 in int8: 384 dimensions, MIT."""
    return _embedded(
        "BAAI/bge-small-en-v1.5",
        "bge-small-en-v1.5",
        "68807e3ff2abb83cdd708d8243fd398246e397bfee2ba611c2bad728e27df743",
    )


def embedded_cross_encoder() -> Weights:
    """Return cross-encoder/ms-marco-MiniLM-L-12-v2 in int8: one logit per pair, Apache-2.0."""
    return _embedded(
        "cross-encoder/ms-marco-MiniLM-L-12-v2",
        "ms-marco-MiniLM-L-12-v2",
        "1225ccd6afd0f1b43a1b08bf67cd1cb68c05aafb443e9d8450015b8b3837ffd1",
    )


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _embedded(model: str, folder: str, sha256: str) -> Weights:
    package = find_spec(_PACKAGE)  # which does not run it
    if package is None or not package.submodule_search_locations:
        raise ModelUnavailable(f"{model} is not installed; {_REMEDY}")
    return Weights(model, "int8", Path(package.submodule_search_locations[0]) / folder, sha256)


@lru_cache(maxsize=32)
def _sha256(path: Path, size: int, modified_ns: int) -> str:
    """Return the hash of a file; size and modification time are part of the key of the cache."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Named(Protocol):
    """A model, or a client of one. It also has an `identity` if its name is not known from the start, or may change."""

    @property
    def name(self) -> str: ...


def identity_of(model: Named) -> str | None:
    """Return the full name of a model, under which its results may be kept; None while that is unknown."""
    identity: str | None = model.identity if hasattr(model, "identity") else model.name
    return identity


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
