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
from boundarymorph.inference.transformer.packing import Layout, Row, pack
from boundarymorph.inference.transformer.transfers import Integers, Launch, Transfers

Pooling = Literal["first", "last", "mean"]
_NONE: NDArray[np.int64] = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """A row on the device. ids, positions: (1, T); pooled: (n,) tokens of the row, or sequences for their means."""

    ids: Any
    positions: Any
    type_ids: Any
    pooled: torch.Tensor
    layout: Layout


@dataclass(frozen=True, slots=True, eq=False)
class PackedBody:
    """Runs all items of a batch in one row. first_position: the model's first position."""

    body: PreTrainedModel
    pooling: Pooling
    transfers: Transfers
    first_position: int
    cached: bool = False  # whether the model keeps its keys and values by default

    def prepare(self, items: Sequence[TokenSequence], groups: Sequence[Hashable] | None = None) -> Launch:
        """Send a batch to the device; returns what starts its computation. groups: see `pack`."""
        row = pack(items, groups)
        inputs = self.inputs(row, self.transfers.send(self.arrays(row)))
        return lambda: self.compute(inputs)

    def arrays(self, row: Row) -> list[Integers]:
        """Return what the device must know about a row."""
        key_borders, key_tokens = row.keys()
        pooled = row.sequences
        if self.pooling != "mean":
            pooled = [row.borders[i] if self.pooling == "first" else row.borders[i + 1] - 1 for i in row.sequences]
        return [
            row.ids,
            row.positions + self.first_position,
            _NONE if row.type_ids is None else row.type_ids,
            pooled,
            row.borders,
            key_borders,
            np.concatenate([_NONE, *key_tokens]),
        ]

    def inputs(self, row: Row, sent: Sequence[torch.Tensor]) -> Inputs:
        """Return a row of which the arrays have been sent."""
        ids, positions, type_ids, pooled, query_borders, key_borders, key_tokens = sent
        lengths = np.diff(row.borders)
        layout = Layout(
            borders=row.borders,
            prefixes=row.prefixes,
            query_borders=query_borders,
            key_borders=key_borders,
            key_tokens=key_tokens if len(key_tokens) else None,
            longest_query=int(lengths.max()),
            longest_key=int((lengths + [len(prefix) for prefix in row.prefixes]).max()),
        )
        return Inputs(ids[None], positions[None], type_ids[None] if len(type_ids) else None, pooled, layout)

    def compute(self, inputs: Inputs) -> torch.Tensor:
        """Return (n, d) pooled states in float32, on the device."""
        features: dict[str, Any] = {"input_ids": inputs.ids, "position_ids": inputs.positions}
        if inputs.type_ids is not None:
            features["token_type_ids"] = inputs.type_ids
        if self.cached:
            features["use_cache"] = False
        states = self.body(**features, layout=inputs.layout).last_hidden_state[0]
        if self.pooling == "mean":
            lengths = inputs.layout.query_borders.diff()
            states = torch.segment_reduce(states.float(), "mean", lengths=lengths, unsafe=True)
        pooled: torch.Tensor = states[inputs.pooled].float()
        return pooled


@dataclass(frozen=True, slots=True, eq=False)
class PaddedBody:
    """Runs items with right padding, for models that cannot pack. cached: see `PackedBody`."""

    body: PreTrainedModel
    pooling: Pooling
    transfers: Transfers
    padding: int
    cached: bool = False

    def prepare(self, items: Sequence[TokenSequence]) -> Launch:
        """Send a batch to the device; returns what starts its computation."""
        features = send_padded(self.transfers, padded(items, self.padding, left=False))
        if self.cached:
            features["use_cache"] = False
        return lambda: self._compute(features)

    def _compute(self, features: dict[str, Any]) -> torch.Tensor:
        mask = features["attention_mask"]
        states = self.body(**features).last_hidden_state
        if self.pooling == "mean":
            weights = (mask / mask.sum(dim=1, keepdim=True))[:, None]
            means: torch.Tensor = (weights @ states.float())[:, 0]
            return means
        tokens = mask.sum(dim=1) - 1 if self.pooling == "last" else torch.zeros_like(mask[:, 0])
        pooled: torch.Tensor = states[torch.arange(len(mask), device=mask.device), tokens].float()
        return pooled


def padded(items: Sequence[TokenSequence], padding: int, *, left: bool) -> dict[str, NDArray[np.int64]]:
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
    return features


def send_padded(transfers: Transfers, features: dict[str, NDArray[np.int64]]) -> dict[str, Any]:
    """Send features in int64, as a model with code of its own may insist on it."""
    return dict(zip(features, transfers.send(list(features.values()), torch.int64), strict=True))
