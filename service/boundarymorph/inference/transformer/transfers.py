"""Arrays to a device and results back, so that a GPU computes while batches are made and results are read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

Launch: TypeAlias = Callable[[], torch.Tensor]
Integers: TypeAlias = NDArray[np.integer[Any]] | Sequence[int]


class Transfers:
    """What one model exchanges with its device. All of a batch goes there in one copy.

    On a GPU the copy starts from pinned memory, so that nobody waits for it. Threads launch their batches in turn, and
    each waits only for the event that follows its own results: the next batch is launched meanwhile.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pinned = device.type == "cuda"
        self._turn = threading.Lock() if self._pinned else nullcontext()

    def send(self, arrays: Sequence[Integers], dtype: torch.dtype = torch.int32) -> list[torch.Tensor]:
        """Return arrays as tensors of the device, in the same shapes."""
        host = empty(sum(map(np.size, arrays)), dtype, pinned=self._pinned)
        np.concatenate([np.ravel(array) for array in arrays], out=host.numpy(), casting="same_kind")
        sent = torch.split(host.to(self.device, non_blocking=True), [np.size(array) for array in arrays])
        return [part.view(np.shape(array)) for part, array in zip(sent, arrays, strict=True)]

    def run(self, launch: Launch) -> NDArray[np.float32]:
        """Return the results of what `launch` starts on the device, which must not wait for anything there."""
        if not self._pinned:
            return read(launch())
        with self._turn:
            results = launch()
            host = empty(results.shape, results.dtype, pinned=True)
            host.copy_(results, non_blocking=True)
            copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            copied.record(torch.cuda.current_stream(self.device))
        copied.synchronize()
        return read(host)


def empty(shape: int | Sequence[int], dtype: torch.dtype, *, pinned: bool) -> torch.Tensor:
    """Return memory of the host. PyTorch keeps pinned memory for later, once the copies from and to it are done."""
    return torch.empty(shape, dtype=dtype, pin_memory=pinned)


def read(results: torch.Tensor) -> NDArray[np.float32]:
    """Return results that are on the host."""
    found: NDArray[np.float32] = results.numpy()
    return found
