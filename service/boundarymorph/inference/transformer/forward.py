"""Running a batch through the body of a model, with and without padding."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from boundarymorph.inference.batching.model import Contra, TokenSequence
from boundarymorph.inference.transformer.packing import Layout, Row, pack
from boundarymorph.inference.transformer.transfers import Launch, Transfers

Pooling = Literal["first", "last", "mean"]
Head = Callable[[torch.Tensor], torch.Tensor]
_NONE: NDArray[np.int64] = np.empty(0, dtype=np.int64)


class Forward(Protocol[Contra]):
    """Computes the results of batches."""

    @property
    def pads(self) -> bool:
        """See `Model.pads`."""

    def prepare(self, items: Sequence[Contra], /) -> Launch:
        """Send a batch to the device; returns what starts its computation."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedBody:
    """Runs all items of a batch in one row. Its results are (n, d) pooled states in float32.

    first_position: the model's first position; cached: whether the model keeps its keys and values by default; group:
    of an item, for `pack`.
    """

    pads: ClassVar[bool] = False

    body: PreTrainedModel
    pooling: Pooling
    transfers: Transfers
    first_position: int
    cached: bool = False
    group: Callable[[Any], Hashable] | None = None

    def prepare(self, items: Sequence[TokenSequence]) -> Launch:
        """See `Forward.prepare`."""
        features, pooled = self.send(pack(items, None if self.group is None else [self.group(item) for item in items]))
        return lambda: self._compute(features, pooled)

    def send(self, row: Row) -> tuple[dict[str, Any], torch.Tensor]:
        """Send a row; returns the arguments of the body and, (n,), what is pooled: tokens or, for means, sequences."""
        key_borders, key_tokens = row.keys()
        pooled = row.sequences
        if self.pooling != "mean":
            pooled = [row.borders[i] if self.pooling == "first" else row.borders[i + 1] - 1 for i in row.sequences]
        ids, positions, type_ids, sent_pooled, query_borders, sent_key_borders, sent_key_tokens = self.transfers.send(
            [
                row.ids,
                row.positions + self.first_position,
                _NONE if row.type_ids is None else row.type_ids,
                pooled,
                row.borders,
                key_borders,
                np.concatenate([_NONE, *key_tokens]),
            ]
        )
        lengths = np.diff(row.borders)
        layout = Layout(
            borders=row.borders,
            prefixes=row.prefixes,
            query_borders=query_borders,
            key_borders=sent_key_borders,
            key_tokens=sent_key_tokens if key_tokens else None,
            longest_query=int(lengths.max()),
            longest_key=int((lengths + [len(prefix) for prefix in row.prefixes]).max()),
        )
        features = {"input_ids": ids[None], "position_ids": positions[None], "layout": layout}
        if row.type_ids is not None:
            features["token_type_ids"] = type_ids[None]
        if self.cached:
            features["use_cache"] = False
        return features, sent_pooled

    def _compute(self, features: dict[str, Any], pooled: torch.Tensor) -> torch.Tensor:
        states = self.body(**features).last_hidden_state[0]
        if self.pooling == "mean":
            lengths = features["layout"].query_borders.diff()
            states = torch.segment_reduce(states.float(), "mean", lengths=lengths, unsafe=True)
        chosen: torch.Tensor = states[pooled].float()
        return chosen


@dataclass(frozen=True, slots=True, eq=False)
class PaddedBody:
    """Runs items with right padding, for models that cannot pack. For results and `cached` see `PackedBody`."""

    pads: ClassVar[bool] = True

    body: PreTrainedModel
    pooling: Pooling
    transfers: Transfers
    padding: int
    cached: bool = False

    def prepare(self, items: Sequence[TokenSequence]) -> Launch:
        """See `Forward.prepare`."""
        features = send_padded(self.transfers, items, self.padding)
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


@dataclass(frozen=True, slots=True, eq=False)
class Headed:
    """A body, and the head that makes results of its pooled states."""

    body: PackedBody | PaddedBody
    head: Head

    @property
    def pads(self) -> bool:
        return self.body.pads

    def prepare(self, items: Sequence[TokenSequence]) -> Launch:
        """See `Forward.prepare`."""
        states = self.body.prepare(items)
        return lambda: self.head(states())


def send_padded(transfers: Transfers, items: Sequence[TokenSequence], padding: int) -> dict[str, Any]:
    """Send the (n, longest) features of a batch: ids, mask, and type ids if the items have them.

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
    return dict(zip(features, transfers.send(list(features.values()), torch.int64), strict=True))
