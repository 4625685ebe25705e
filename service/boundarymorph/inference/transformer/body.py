"""The body of a transformer on a device: turns batches of sequences into pooled states."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import AutoModel

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.inference.batching.model import TokenSequence
from boundarymorph.inference.transformer.architecture import (
    caches,
    first_position,
    make_bidirectional,
    padding_token,
    prepare_packing,
)
from boundarymorph.inference.transformer.device import Placement, on_device, release, weight_type
from boundarymorph.inference.transformer.forward import PackedBody, PaddedBody, Pooling
from boundarymorph.inference.transformer.int8 import quantize
from boundarymorph.inference.transformer.repository import Repository
from boundarymorph.inference.transformer.transfers import Transfers

_ACTIVATIONS: dict[str, type[nn.Module]] = {kind.__name__: kind for kind in (nn.Identity, nn.Tanh, nn.ReLU, nn.GELU)}
_INPUT = "sentence_embedding"


def open_dense(repository: Repository, folders: tuple[str, ...], width: int) -> tuple[nn.Sequential, int]:
    """Load the layers of these folders in sequence, in float32, for (n, width) states; returns their output width too.

    Raises ModelUnavailable if files are missing, InvalidConfiguration for an unsupported layer.
    """
    layers = nn.Sequential()
    for folder in folders:
        linear, activation = _layer(repository, folder)
        if linear.in_features != width:
            raise InvalidConfiguration(
                f"{folder} of {repository.location} reads {linear.in_features} dimensions, but gets {width}"
            )
        layers.extend([linear, activation])
        width = linear.out_features
    return layers.eval(), width


def _layer(repository: Repository, folder: str) -> tuple[nn.Linear, nn.Module]:
    config = repository.read_json(f"{folder}/config.json") or {}
    activation = str(config.get("activation_function")).rpartition(".")[2]
    elsewhere = {config.get(name) or _INPUT for name in ("module_input_name", "module_output_name")} != {_INPUT}
    if activation not in _ACTIVATIONS or elsewhere or config.get("use_residual"):
        raise InvalidConfiguration(f"{folder} of {repository.location} is a layer of an unsupported kind")
    weights = repository.weights(f"{folder}/model.safetensors")
    weight, bias = weights.get("linear.weight"), weights.get("linear.bias")
    if weight is None or (bias is None) == bool(config.get("bias", True)):
        raise InvalidConfiguration(f"the weights in {folder} of {repository.location} do not match its layer")
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    linear.weight = nn.Parameter(weight.float(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.float(), requires_grad=False)
    return linear, _ACTIVATIONS[activation]()


class Body:
    """width: of its output; packed: whether batches are run without padding."""

    def __init__(
        self, forward: PackedBody | PaddedBody, dense: nn.Sequential, transfers: Transfers, width: int
    ) -> None:
        self.width = width
        self.packed = isinstance(forward, PackedBody)
        self.device_type = transfers.device.type
        self._transfers = transfers
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
        states, dense = self._forward.prepare(items), self._dense
        return self._transfers.run(lambda: dense(states()))

    def close(self) -> None:
        """Release the memory."""
        self._forward, self._dense = None, nn.Sequential()
        release(self._transfers.device)


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
    transfers = Transfers(device)
    forward: PackedBody | PaddedBody
    if packed:
        forward = PackedBody(model, pooling, transfers, first_position(model.config), cached)
    else:
        forward = PaddedBody(model, pooling, transfers, padding_token(repository), cached)
    layers, width = open_dense(repository, dense, int(model.config.hidden_size))
    return Body(forward, layers.to(device), transfers, width)
