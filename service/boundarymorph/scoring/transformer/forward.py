"""How a batch of pairs goes through a model, with padding and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from boundarymorph.scoring.cross_encoder import Pair
from boundarymorph.scoring.transformer.heads import Head, Pooling, label_logits
from boundarymorph.scoring.transformer.packing import Layout, pack


class Forward(Protocol):
    def __call__(self, pairs: Sequence[Pair]) -> torch.Tensor:
        """(n,) logits of a batch, on the device."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedForward:
    """All pairs in one row. first_position: where the model begins to count; head: from pooled states to logits."""

    body: PreTrainedModel
    pooling: Pooling
    head: Head
    device: torch.device
    first_position: int
    share_prefix: bool

    def __call__(self, pairs: Sequence[Pair]) -> torch.Tensor:
        row = pack(pairs, share_prefix=self.share_prefix)
        layout = Layout.of(row, self.device)
        features = {
            "input_ids": self._tokens(row.ids),
            "position_ids": self._tokens(row.positions + self.first_position),
        }
        if row.type_ids is not None:
            features["token_type_ids"] = self._tokens(row.type_ids)
        if self.pooling == "last":
            features["use_cache"] = False
        states = self.body(**features, layout=layout).last_hidden_state[0]
        return self.head(self._pooled(states, row.borders, row.sequences))

    def _tokens(self, values: NDArray[np.int64]) -> Any:
        return torch.from_numpy(values)[None].to(self.device, non_blocking=True)

    def _pooled(self, states: torch.Tensor, borders: list[int], sequences: list[int]) -> torch.Tensor:
        if self.pooling == "mean":
            means = [states[borders[i] : borders[i + 1]].float().mean(dim=0) for i in sequences]
            return torch.stack(means)
        tokens = [borders[i] if self.pooling == "first" else borders[i + 1] - 1 for i in sequences]
        return states[torch.tensor(tokens).to(self.device, non_blocking=True)].float()


@dataclass(frozen=True, slots=True, eq=False)
class PaddedLabels:
    """A sequence classification model as it is, padded on the right."""

    model: PreTrainedModel
    device: torch.device
    padding: int

    def __call__(self, pairs: Sequence[Pair]) -> torch.Tensor:
        features = padded(pairs, self.padding, left=False)
        inputs: dict[str, Any] = {name: tensor.to(self.device) for name, tensor in features.items()}
        return label_logits(self.model(**inputs).logits.float())


@dataclass(frozen=True, slots=True, eq=False)
class PaddedAnswers:
    """The body of a causal model padded on the left, and the head that weighs its answers."""

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


def padded(pairs: Sequence[Pair], padding: int, *, left: bool) -> dict[str, torch.Tensor]:
    """The (n, longest) features of a batch: ids, mask, and type ids where the pairs have them."""
    shape = len(pairs), max(map(len, pairs))
    ids = np.full(shape, padding, dtype=np.int64)
    mask, types = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for i, pair in enumerate(pairs):
        tokens = slice(shape[1] - len(pair), None) if left else slice(len(pair))
        ids[i, tokens], mask[i, tokens] = pair.ids, 1
        if pair.type_ids is not None:
            types[i, tokens] = pair.type_ids
    features = {"input_ids": ids, "attention_mask": mask}
    if any(pair.type_ids is not None for pair in pairs):
        features["token_type_ids"] = types
    return {name: torch.from_numpy(values) for name, values in features.items()}
