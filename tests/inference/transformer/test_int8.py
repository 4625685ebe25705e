"""Int8 layers against the arithmetic they stand for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from boundarymorph.inference.transformer.int8 import Int8Linear, quantize


def layer(inputs: int = 64, outputs: int = 24, *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(inputs, outputs, bias=bias)


@pytest.mark.parametrize("bias", [False, True])
@torch.inference_mode()
def test_it_is_the_product_of_rounded_factors(bias: bool) -> None:
    linear = layer(bias=bias)
    states = torch.randn(2, 5, 64) * torch.logspace(-3, 3, 5)[:, None]
    steps = states.abs().amax(dim=-1, keepdim=True) / 127
    weight_steps = linear.weight.abs().amax(dim=-1, keepdim=True) / 127
    rounded = (states / steps).round().double() * steps
    weight = (linear.weight / weight_steps).round().double() * weight_steps
    expected = rounded @ weight.T + (0 if linear.bias is None else linear.bias)
    torch.testing.assert_close(Int8Linear(linear)(states).double(), expected, rtol=1e-5, atol=1e-5)
    relative = (Int8Linear(linear)(states) - linear(states)).norm(dim=-1) / linear(states).norm(dim=-1)
    assert relative.max() < 0.03


@torch.inference_mode()
def test_a_token_gets_the_same_bits_in_any_company() -> None:
    quantized = Int8Linear(layer())
    states = torch.randn(300, 64)
    together = quantized(states)
    assert all(torch.equal(quantized(states[i : i + 1])[0], together[i]) for i in range(0, 300, 17))
    louder = torch.cat((states[:7], 1000 * states[7:]))
    assert torch.equal(quantized(louder)[:7], together[:7])


@torch.inference_mode()
def test_zeros_stay_zeros() -> None:
    assert torch.equal(Int8Linear(layer(bias=False))(torch.zeros(3, 64)), torch.zeros(3, 24))


def test_layers_of_other_shapes_stay() -> None:
    model = nn.ModuleDict({"deep": nn.Sequential(layer(), nn.GELU()), "odd": layer(64, 3), "norm": nn.LayerNorm(64)})
    quantize(model)
    kinds = [type(module) for module in (model["deep"][0], model["odd"], model["norm"])]  # type: ignore[index]
    assert kinds == [Int8Linear, nn.Linear, nn.LayerNorm]
    assert Int8Linear(layer().half())(torch.randn(2, 64).half()).dtype == torch.float16
