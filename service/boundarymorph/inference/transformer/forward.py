"""Running a batch through the body of a model, with and without padding."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from boundarymorph.inference.batching.model import TokenSequence
from boundarymorph.inference.transformer.packing import Layout, pack

Pooling = Literal["first", "last", "mean"]


@dataclass(frozen=True, slots=True, eq=False)
class PackedBody:
    """Runs all items of a batch in one row. first_position: the model's first position."""

    body: PreTrainedModel
    pooling: Pooling
    device: torch.device
    first_position: int
    cached: bool = False  # whether the model keeps its keys and values by default

    def __call__(self, items: Sequence[TokenSequence], groups: Sequence[Hashable] | None = None) -> torch.Tensor:
        """Return (n, d) pooled states in float32, on the device. groups: see `pack`."""
        row = pack(items, groups)
        layout = Layout.of(row, self.device)
        features: dict[str, Any] = {
            "input_ids": self._tokens(row.ids),
            "position_ids": self._tokens(row.positions + self.first_position),
        }
        if row.type_ids is not None:
            features["token_type_ids"] = self._tokens(row.type_ids)
        if self.cached:
            features["use_cache"] = False
        states = self.body(**features, layout=layout).last_hidden_state[0]
        return self._pooled(states, row.borders, row.sequences)

    def _tokens(self, values: NDArray[np.int64]) -> Any:
        return torch.from_numpy(values)[None].to(self.device, non_blocking=True)

    def _pooled(self, states: torch.Tensor, borders: list[int], sequences: list[int]) -> torch.Tensor:
        if self.pooling == "mean":
            means = [states[borders[i] : borders[i + 1]].float().mean(dim=0) for i in sequences]
            return torch.stack(means)
        tokens = [borders[i] if self.pooling == "first" else borders[i + 1] - 1 for i in sequences]
        return states[torch.tensor(tokens).to(self.device, non_blocking=True)].float()


@dataclass(frozen=True, slots=True, eq=False)
class PaddedBody:
    """Runs items with right padding, for models that cannot pack. cached: see `PackedBody`."""

    body: PreTrainedModel
    pooling: Pooling
    device: torch.device
    padding: int
    cached: bool = False

    def __call__(self, items: Sequence[TokenSequence]) -> torch.Tensor:
        """Return (n, d) pooled states in float32, on the device."""
        features: dict[str, Any] = {
            name: tensor.to(self.device) for name, tensor in padded(items, self.padding, left=False).items()
        }
        if self.cached:
            features["use_cache"] = False
        mask = features["attention_mask"]
        states = self.body(**features).last_hidden_state
        if self.pooling == "mean":
            weights = (mask / mask.sum(dim=1, keepdim=True))[:, None]
            means: torch.Tensor = (weights @ states.float())[:, 0]
            return means
        tokens = mask.sum(dim=1) - 1 if self.pooling == "last" else torch.zeros_like(mask[:, 0])
        pooled: torch.Tensor = states[torch.arange(len(items), device=self.device), tokens].float()
        return pooled


def padded(items: Sequence[TokenSequence], padding: int, *, left: bool) -> dict[str, torch.Tensor]:
    """Return the (n, longest) features of a batch: ids, mask, and type ids if the items have them."""
    shape = len(items), max(map(len, items))
    ids = np.full(shape, padding, dtype=np.int64)
    mask, types = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for i, item in enumerate(items):
        tokens = slice(shape[1] - len(item), None) if left else slice(len(item))
        ids[i, tokens], mask[i, tokens] = item.ids, 1
        if item.type_ids is not None:
            types[i, tokens] = item.type_ids
    features = {"input_ids": ids, "attention_mask": mask}
    if any(item.type_ids is not None for item in items):
        features["token_type_ids"] = types
    return {name: torch.from_numpy(values) for name, values in features.items()}
