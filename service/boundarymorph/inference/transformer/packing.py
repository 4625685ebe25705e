"""Batches without padding: all sequences in one row, with an attention that separates them.

Some sequences share a prefix, as the pairs of one query do. If the model is causal, the prefix is put into the row
once, as a sequence of its own, and the rest of each sequence attends to it as well as to itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from boundarymorph.inference.batching.model import TokenSequence

ATTENTION = "boundarymorph_packed"

_WORTH_SHARING = 8


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """The concatenated items of a batch.

    ids, positions, type_ids: (T,) per token, positions counted from 0; borders: (S + 1,) bounds of the S sequences;
    prefixes: for each sequence the range of the row that it attends to besides itself, empty for most; sequences: (n,)
    the sequence with which each item ends.
    """

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    type_ids: NDArray[np.int64] | None
    borders: list[int]
    prefixes: list[range]
    sequences: list[int]

    def keys(self) -> tuple[list[int], list[NDArray[np.int64]]]:
        """Return what the sequences attend to one after the other: the (S + 1,) bounds of each, and tokens of the row;
        no tokens if each sequence attends only to itself."""
        if not any(self.prefixes):
            return self.borders, []
        tokens = [
            np.array([*prefix, *range(start, end)], dtype=np.int64)
            for prefix, (start, end) in zip(self.prefixes, pairwise(self.borders), strict=True)
        ]
        return [0, *accumulate(map(len, tokens))], tokens


def pack(items: Sequence[TokenSequence], groups: Sequence[Hashable] | None = None) -> Row:
    """Put n items into one row.

    groups: (n,) items of the same group probably share a prefix; for causal models only, where prefixes do not depend
    on what follows.
    """
    shared = {} if groups is None else _common_prefixes(items, groups)
    pieces: list[NDArray[np.int64]] = []
    starts: list[int] = []
    prefixes: list[range] = []
    sequences: list[int] = []
    placed: dict[Hashable, range] = {}
    length = 0

    def place(ids: NDArray[np.int64], start: int, prefix: range) -> None:
        nonlocal length
        pieces.append(ids)
        starts.append(start)
        prefixes.append(prefix)
        length += len(ids)

    for item, group in zip(items, groups or [None] * len(items), strict=True):
        common = shared.get(group, 0)
        if common and group not in placed:
            placed[group] = range(length, length + common)
            place(item.ids[:common], 0, range(0))
        sequences.append(len(pieces))
        place(item.ids[common:], common, placed.get(group, range(0)))
    types = [item.type_ids for item in items if item.type_ids is not None]
    return Row(
        ids=np.concatenate(pieces),
        positions=np.concatenate(
            [np.arange(start, start + len(piece)) for start, piece in zip(starts, pieces, strict=True)]
        ),
        type_ids=np.concatenate(types) if types and not shared else None,
        borders=[0, *accumulate(map(len, pieces))],
        prefixes=prefixes,
        sequences=sequences,
    )


def _common_prefixes(items: Sequence[TokenSequence], groups: Sequence[Hashable]) -> dict[Hashable, int]:
    """Return the length of the prefix shared by each group of several items; each item keeps at least one token."""
    members: dict[Hashable, list[NDArray[np.int64]]] = {}
    for item, group in zip(items, groups, strict=True):
        members.setdefault(group, []).append(item.ids)
    lengths = {group: _common_prefix(ids) for group, ids in members.items() if len(ids) > 1}
    return {group: length for group, length in lengths.items() if length >= _WORTH_SHARING}


def _common_prefix(group: Sequence[NDArray[np.int64]]) -> int:
    common = group[0][: min(map(len, group)) - 1]
    for ids in group[1:]:
        differs = np.flatnonzero(ids[: len(common)] != common)
        if differs.size:
            common = common[: differs[0]]
    return len(common)


@dataclass(slots=True, eq=False)
class Layout:
    """What the attention needs to know about a row: a keyword argument of the model's forward.

    query_borders, key_borders: (S + 1,) int32, on the device; key_tokens: the row's tokens in the order in which
    sequences attend to them, on the device, or None if each attends only to itself.
    """

    borders: list[int]
    prefixes: list[range]
    query_borders: torch.Tensor
    key_borders: torch.Tensor
    key_tokens: torch.Tensor | None
    longest_query: int
    longest_key: int
    masks: dict[tuple[int, int, int | None, bool], torch.Tensor] = field(default_factory=dict)


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    layout: Layout,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Compute attention within each sequence of the row, and to its prefix.

    query: (1, heads, T, d); key, value: (1, heads or fewer, T, d); sliding_window: number of tokens visible on each
    side, including the token itself. Returns (1, T, heads, d), as the models expect.
    """
    causal = bool(getattr(module, "is_causal", False))
    attend = _attend_at_once if has_kernel(query.device, query.dtype) else _attend_in_turn
    return attend(query, key, value, layout, causal, scaling, sliding_window), None


def has_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernel for variable lengths works: in half precision, on GPUs since Ampere."""
    return device.type == "cuda" and dtype != torch.float32 and torch.cuda.get_device_capability(device) >= (8, 0)


def _attend_at_once(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layout: Layout,
    causal: bool,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Use one kernel for all sequences; it aligns the last query with the last key, as prefixes require."""
    queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))
    if layout.key_tokens is not None:
        keys, values = keys[layout.key_tokens], values[layout.key_tokens]
    reach = -1 if window is None else window - 1
    attended = varlen_attn(
        queries,
        keys,
        values,
        layout.query_borders,
        layout.key_borders,
        layout.longest_query,
        layout.longest_key,
        scale=scaling,
        window_size=(reach, 0 if causal else reach),
        enable_gqa=queries.shape[1] != keys.shape[1],
    )
    assert isinstance(attended, torch.Tensor)
    return attended[None]


def _attend_in_turn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layout: Layout,
    causal: bool,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    attended = torch.empty_like(query.transpose(1, 2), memory_format=torch.contiguous_format)
    grouped = query.shape[1] != key.shape[1]
    for (start, end), prefix in zip(pairwise(layout.borders), layout.prefixes, strict=True):
        keys, values = key[:, :, start:end], value[:, :, start:end]
        if prefix:
            keys = torch.cat((key[:, :, prefix.start : prefix.stop], keys), dim=2)
            values = torch.cat((value[:, :, prefix.start : prefix.stop], values), dim=2)
        plain = causal and not prefix and window is None
        mask = None
        if not plain and (causal or window is not None):
            mask = _mask(layout, end - start, keys.shape[2], window, causal, query.device)
        attended[:, start:end] = scaled_dot_product_attention(
            query[:, :, start:end],
            keys,
            values,
            attn_mask=mask,
            is_causal=plain,
            scale=scaling,
            enable_gqa=grouped,
        ).transpose(1, 2)
    return attended


def _mask(
    layout: Layout, queries: int, keys: int, window: int | None, causal: bool, device: torch.device
) -> torch.Tensor:
    """Return (queries, keys) bool, what each of the last tokens attends to; cached for the other layers."""
    kind = (queries, keys, window, causal)
    if kind not in layout.masks:
        seen = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(keys, device=device)
        reach = keys if window is None else window - 1
        layout.masks[kind] = (seen <= reach) & (seen >= (0 if causal else -reach))
    return layout.masks[kind]


# Not registered among the mask functions: then the models build no masks.
ALL_ATTENTION_FUNCTIONS.register(ATTENTION, packed_attention)
