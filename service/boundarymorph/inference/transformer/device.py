"""Where a model runs, in which precision, with which batch size, and what PyTorch's errors there mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias, TypedDict, TypeVar

import torch

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.inference.batching.model import DeviceLost, OutOfMemory
from boundarymorph.inference.models import available_cores
from boundarymorph.settings import ModelSettings

Precision: TypeAlias = Literal["auto", "fp32", "bf16", "fp16"]
_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_BATCH_TOKENS = {"cpu": 512, "cuda": 16384}
_WORKERS_OF_A_GPU = 2
Result = TypeVar("Result")
_FULL = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
_LOST = ("CUDA error", "CUBLAS_STATUS", "CUDNN_STATUS")


class LoadOptions(TypedDict, total=False):
    """Options for loading any model.

    revision: a commit, branch or tag on the hub, by default its main branch; a folder has none. precision: auto is bf16
    on a GPU and fp32 elsewhere. device: auto is a GPU if there is one. batch_tokens: per batch, by default depending on
    the device. trust_remote_code: whether to run code that comes with the repository. threads: how many batches a CPU
    computes concurrently, one thread each, by default one per core; that is faster than splitting each batch, and does
    not slow down when the cores are shared; PyTorch is limited to one thread per operation in the whole process.
    """

    revision: str | None
    precision: Precision
    device: str
    batch_tokens: int | None
    trust_remote_code: bool
    threads: int | None


def load_options(chosen: ModelSettings, threads: int | None) -> LoadOptions:
    """Convert the settings."""
    return {
        "revision": chosen.revision,
        "precision": chosen.precision,
        "device": chosen.device,
        "batch_tokens": chosen.batch_tokens,
        "trust_remote_code": chosen.trust_remote_code,
        "threads": threads,
    }


class Placement(NamedTuple):
    """Where and how a model runs. batch_tokens: per batch, padding included; workers: concurrent batches."""

    device: torch.device
    precision: Precision
    batch_tokens: int
    workers: int

    @property
    def weight_type(self) -> torch.dtype:
        """The type of the weights."""
        return _TYPES[self.precision]

    @classmethod
    def of(cls, options: LoadOptions) -> Placement:
        """Raises InvalidConfiguration for a device that does not exist."""
        device = _chosen_device(options.get("device", "auto"))
        precision = options.get("precision", "auto")
        if precision == "auto":
            precision = "bf16" if device.type == "cuda" else "fp32"
        batch_tokens = options.get("batch_tokens") or _BATCH_TOKENS.get(device.type, _BATCH_TOKENS["cpu"])
        return cls(device, precision, batch_tokens, _workers(options.get("threads"), device))


def _chosen_device(device: str) -> torch.device:
    """Return the device; auto is a GPU if there is one. Raises InvalidConfiguration if it does not exist."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise InvalidConfiguration(f"there is no device {device}: use auto, cpu, cuda or cuda:0") from error
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise InvalidConfiguration(f"PyTorch finds no {device} here: use auto or cpu, or install PyTorch for CUDA")
    return found


def _workers(threads: int | None, device: torch.device) -> int:
    """Return how many batches are computed at a time: on a CPU one per thread, by default one thread per core.

    On a GPU the second batch is made while the first computes.
    """
    if device.type != "cpu":
        return _WORKERS_OF_A_GPU
    torch.set_num_threads(1)
    return threads or available_cores()


def release(device: torch.device) -> None:
    """Release unused memory of the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def on_device(work: Callable[[], Result]) -> Result:
    """Return the result of the work. Raises OutOfMemory, after releasing the device's unused memory, or DeviceLost."""
    failure: OutOfMemory | DeviceLost
    try:
        return work()
    except RuntimeError as error:
        translated = _translated(error)
        if translated is None:
            raise
        failure = translated
    # Not in the except clause, whose traceback still references the tensors of the batch.
    if isinstance(failure, OutOfMemory) and torch.cuda.is_available():
        torch.cuda.empty_cache()
    raise failure


def _translated(error: RuntimeError) -> OutOfMemory | DeviceLost | None:
    message = str(error)
    if isinstance(error, torch.OutOfMemoryError) or any(sign in message for sign in _FULL):
        return OutOfMemory(message)
    if isinstance(error, torch.AcceleratorError) or any(sign in message for sign in _LOST):
        return DeviceLost(message)
    return None
