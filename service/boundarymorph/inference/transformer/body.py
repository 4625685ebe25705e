"""The body of a transformer on a device: turns batches of sequences into pooled states."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import AutoModel

from boundarymorph.inference.batching.model import TokenSequence
from boundarymorph.inference.transformer.architecture import (
    caches,
    first_position,
    make_bidirectional,
    padding_token,
    prepare_packing,
)
from boundarymorph.inference.transformer.dense import open_dense
from boundarymorph.inference.transformer.device import Placement, on_device, release, weight_type
from boundarymorph.inference.transformer.forward import PackedBody, PaddedBody, Pooling
from boundarymorph.inference.transformer.int8 import quantize
from boundarymorph.inference.transformer.repository import Repository


class Body:
    """width: of its output; packed: whether batches are run without padding."""

    def __init__(
        self, forward: PackedBody | PaddedBody, dense: nn.Sequential, device: torch.device, width: int
    ) -> None:
        self.width = width
        self.packed = isinstance(forward, PackedBody)
        self.device_type = device.type
        self._device = device
        self._forward: PackedBody | PaddedBody | None = forward
        self._dense = dense

    def run(self, items: Sequence[TokenSequence]) -> NDArray[np.float32]:
        """Return (n, width) pooled states, after the layers that follow the pooling.

        Raises OutOfMemory, DeviceLost, or RuntimeError after `close`.
        """
        return on_device(lambda: self._run(items))

    @torch.inference_mode()
    def _run(self, items: Sequence[TokenSequence]) -> NDArray[np.float32]:
        if self._forward is None:
            raise RuntimeError("this body is closed")
        states: NDArray[np.float32] = self._dense(self._forward(items)).cpu().numpy()
        return states

    def close(self) -> None:
        """Release the memory."""
        self._forward, self._dense = None, nn.Sequential()
        release(self._device)


def open_body(
    repository: Repository,
    *,
    pooling: Pooling,
    dense: tuple[str, ...],
    placement: Placement,
    packed: bool | None,
) -> Body:
    """Load the body of a model. dense: folders of the layers after the pooling; packed: None to pack if possible.

    Raises what `Repository` raises, OutOfMemory and DeviceLost.
    """
    return on_device(lambda: _open(repository, pooling, dense, placement, packed))


def _open(
    repository: Repository,
    pooling: Pooling,
    dense: tuple[str, ...],
    placement: Placement,
    packed: bool | None,
) -> Body:
    precision, device = placement.precision, placement.device
    model = repository.open(AutoModel, dtype=weight_type(precision, device), spare=("pooler.",))
    if getattr(model, "pooler", None) is not None:
        # Its output is not used here, and would be that of a whole row.
        model.register_module("pooler", None)
    make_bidirectional(model)
    packed = prepare_packing(model, packed)
    if precision == "int8":
        quantize(model)
    model.to(device=device)  # type: ignore[call-arg]
    cached = caches(model)
    forward: PackedBody | PaddedBody
    if packed:
        forward = PackedBody(model, pooling, device, first_position(model.config), cached)
    else:
        forward = PaddedBody(model, pooling, device, padding_token(repository), cached)
    layers, width = open_dense(repository, dense, int(model.config.hidden_size))
    return Body(forward, layers.to(device), device, width)
