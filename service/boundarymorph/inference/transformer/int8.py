"""Int8 linear layers whose result for a token depends only on that token."""

from __future__ import annotations

import torch
from torch import nn

_CUDA_LEAST_ROWS = 32


class Int8Linear(nn.Module):
    """A linear layer with int8 weights, one scale per output channel, and activations rounded with one scale per token.

    Products are summed exactly, in int32, so neither the batch nor its order changes a token's result.
    """

    weight: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight, scale = _rounded(linear.weight.detach().float())
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale.T.contiguous())
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().float())

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """states: (..., in). Returns (..., out) in the type of the states."""
        rows, scale = _rounded(states.reshape(-1, states.shape[-1]).float())
        missing = max(_CUDA_LEAST_ROWS - len(rows), 0) if rows.is_cuda else 0
        if missing:
            rows = nn.functional.pad(rows, (0, 0, 0, missing))
        products = torch._int_mm(rows, self.weight.T)[: len(scale)]
        result = products.float().mul_(scale).mul_(self.scale)
        if self.bias is not None:
            result += self.bias
        return result.to(states.dtype).reshape(*states.shape[:-1], -1)


def quantize(module: nn.Module) -> None:
    """Replace the linear layers of a model in place, except those whose shape the int8 kernels do not support."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            if child.in_features % 8 == 0 and child.out_features % 8 == 0:
                setattr(module, name, Int8Linear(child))
        else:
            quantize(child)


def _rounded(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (n, d) int8 values and the (n, 1) scales that restore the originals."""
    scale = values.abs().amax(dim=-1, keepdim=True).clamp_(min=1e-12) / 127
    return (values / scale).round_().to(torch.int8), scale
