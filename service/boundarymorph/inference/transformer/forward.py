"""Running a batch through a model, padded on the right to its longest sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from transformers import PreTrainedModel

from boundarymorph.inference.batching.model import Contra, TokenSequence

Pooling = Literal["first", "last", "mean"]
Head = Callable[[torch.Tensor], torch.Tensor]


class Forward(Protocol[Contra]):
    """Computes the results of a batch, (n, ...) in float32, on the model's device."""

    def __call__(self, items: Sequence[Contra], /) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True, eq=False)
class PooledBody:
    """A model without its head; its results are (n, d) pooled states. padding: a token, which is masked."""

    body: PreTrainedModel
    pooling: Pooling
    padding: int

    def __call__(self, items: Sequence[TokenSequence]) -> torch.Tensor:
        features = padded(items, self.padding, self.body.device)
        mask = features["attention_mask"]
        # Nothing follows these tokens, so keys and values need not be kept.
        options = {"use_cache": False} if hasattr(self.body.config, "use_cache") else {}
        states = self.body(**features, **options).last_hidden_state
        if self.pooling == "mean":
            weights = (mask / mask.sum(dim=1, keepdim=True))[:, None]
            means: torch.Tensor = (weights @ states.float())[:, 0]
            return means
        tokens = mask.sum(dim=1) - 1 if self.pooling == "last" else torch.zeros_like(mask[:, 0])
        pooled: torch.Tensor = states[torch.arange(len(mask), device=mask.device), tokens].float()
        return pooled


@dataclass(frozen=True, slots=True, eq=False)
class Headed:
    """A body, and the head that makes results of its pooled states."""

    body: PooledBody
    head: Head

    def __call__(self, items: Sequence[TokenSequence]) -> torch.Tensor:
        return self.head(self.body(items))


def padded(items: Sequence[TokenSequence], padding: int, device: torch.device) -> dict[str, Any]:
    """Return the (n, longest) features of a batch: ids, mask, and type ids if the items have them.

    They are int64, as a model with code of its own may insist on it.
    """
    shape = len(items), max(map(len, items))
    ids = np.full(shape, padding, dtype=np.int64)
    mask, types = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for i, item in enumerate(items):
        ids[i, : len(item)], mask[i, : len(item)] = item.ids, 1
        if item.type_ids is not None:
            types[i, : len(item)] = item.type_ids
    features = {"input_ids": ids, "attention_mask": mask}
    if any(item.type_ids is not None for item in items):
        features["token_type_ids"] = types
    return {name: torch.from_numpy(values).to(device) for name, values in features.items()}
