"""From a batch of pairs to its logits, with and without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from boundarymorph.inference.transformer.forward import PackedBody, padded
from boundarymorph.scoring.scorer import Pair
from boundarymorph.scoring.transformer.heads import Head, label_logits


class Forward(Protocol):
    def __call__(self, pairs: Sequence[Pair]) -> torch.Tensor:
        """Return the (n,) logits of a batch, on the device."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedForward:
    """All pairs in one row. share_prefix: whether the pairs of a query share their prefix; head: pooled states to
    logits."""

    body: PackedBody
    head: Head
    share_prefix: bool

    def __call__(self, pairs: Sequence[Pair]) -> torch.Tensor:
        return self.head(self.body(pairs, [pair.query for pair in pairs] if self.share_prefix else None))


@dataclass(frozen=True, slots=True, eq=False)
class PaddedLabels:
    """A sequence classification model, with right padding."""

    model: PreTrainedModel
    device: torch.device
    padding: int

    def __call__(self, pairs: Sequence[Pair]) -> torch.Tensor:
        features = padded(pairs, self.padding, left=False)
        inputs: dict[str, Any] = {name: tensor.to(self.device) for name, tensor in features.items()}
        return label_logits(self.model(**inputs).logits.float())


@dataclass(frozen=True, slots=True, eq=False)
class PaddedAnswers:
    """The body of a causal model with left padding, and the head that weighs its answers."""

    body: PreTrainedModel
    head: Head
    device: torch.device
    padding: int

    def __call__(self, pairs: Sequence[Pair]) -> torch.Tensor:
        features = padded(pairs, self.padding, left=True)
        features["position_ids"] = (features["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
        inputs: dict[str, Any] = {name: tensor.to(self.device) for name, tensor in features.items()}
        states = self.body(**inputs, use_cache=False).last_hidden_state[:, -1]
        return self.head(states.float())
