"""Translating PyTorch's errors into those that the batcher handles."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from boundarymorph.inference.batching.model import DeviceLost, OutOfMemory

Result = TypeVar("Result")

_FULL = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
_LOST = ("CUDA error", "CUBLAS_STATUS", "CUDNN_STATUS")


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
