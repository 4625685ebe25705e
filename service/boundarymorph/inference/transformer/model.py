"""The part of a batching `Model` that all models on PyTorch share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Generic

import numpy as np
import torch
from numpy.typing import NDArray

from boundarymorph.errors import BoundaryMorphError
from boundarymorph.inference.batching.model import Item
from boundarymorph.inference.transformer.device import Placement, on_device, release
from boundarymorph.inference.transformer.forward import Forward


class DeviceModel(Generic[Item]):
    """One model on one device. On a GPU, the next batch is made while one computes.

    failed: the error of what is asked of it once it is closed.
    """

    failed: ClassVar[type[BoundaryMorphError]]

    def __init__(self, name: str, forward: Forward[Item], placement: Placement, max_length: int) -> None:
        self.name = name
        self.max_length = max_length
        self.batch_tokens = placement.batch_tokens
        self.workers = placement.workers
        self.backend = f"torch-{placement.device.type}"
        self.parallel = placement.device.type == "cpu"
        self.pads = True
        self._forward: Forward[Item] | None = forward
        self._placement = placement

    def compute(self, items: Sequence[Item]) -> NDArray[np.float32]:
        """Return what `forward` gives for a batch. Raises OutOfMemory, DeviceLost, or `failed` after `close`."""
        return on_device(lambda: self._compute(items))

    @torch.inference_mode()
    def _compute(self, items: Sequence[Item]) -> NDArray[np.float32]:
        if self._forward is None:
            raise self.failed(f"{self.name} is closed")
        results: NDArray[np.float32] = self._forward(items).cpu().numpy()
        return results

    def close(self) -> None:
        """Release the memory."""
        self._forward = None
        release(self._placement.device)
