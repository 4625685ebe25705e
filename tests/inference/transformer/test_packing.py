"""Rows hold their pairs, whatever is shared, and both attentions give what each pair would get alone."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from boundarymorph.inference.transformer import packing
from boundarymorph.inference.transformer.forward import PackedBody
from boundarymorph.inference.transformer.packing import Row, packed_attention
from boundarymorph.inference.transformer.transfers import Transfers
from boundarymorph.scoring.scorer import Pair

HEADS, GROUPS, WIDTH = 4, 2, 8


def pairs_of(*queries_and_ids: tuple[str, list[int]]) -> list[Pair]:
    return [Pair(np.array(ids), query=query, truncated=False) for query, ids in queries_and_ids]


def pack(pairs: list[Pair], *, share_prefix: bool) -> Row:
    return packing.pack(pairs, [pair.query for pair in pairs] if share_prefix else None)


def read(row: Row, sequence: int) -> list[int]:
    """What a sequence sees, from its first token to its last."""
    own = range(row.borders[sequence], row.borders[sequence + 1])
    return [*row.prefixes[sequence], *own]


batches = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 14), st.lists(st.integers(0, 2), min_size=1, max_size=6)).map(
        lambda drawn: (drawn[0], [7] * drawn[1] + drawn[2])
    ),
    min_size=1,
    max_size=6,
)


class TestPack:
    @given(batch=batches, share=st.booleans())
    def test_every_pair_is_in_the_row(self, batch: list[tuple[str, list[int]]], share: bool) -> None:
        row = pack(pairs_of(*batch), share_prefix=share)
        for (_, ids), sequence in zip(batch, row.sequences, strict=True):
            tokens = read(row, sequence)
            assert row.ids[tokens].tolist() == ids
            assert row.positions[tokens].tolist() == list(range(len(ids)))
            assert row.borders[sequence] < row.borders[sequence + 1]
        assert row.borders[-1] == len(row.ids) <= sum(len(ids) for _, ids in batch)
        assert share or not any(row.prefixes)

    def test_a_prefix_is_there_once_a_query(self) -> None:
        common, other = list(range(20)), list(range(30, 50))
        batch = pairs_of(("a", [*common, 1]), ("b", [*other, 2]), ("a", [*common, 3, 4]), ("b", other), ("c", common))
        row = pack(batch, share_prefix=True)
        assert len(row.ids) == (20 + 1 + 2) + (19 + 2 + 1) + 20
        assert [len(row.prefixes[sequence]) for sequence in row.sequences] == [20, 19, 20, 19, 0]

    def test_equal_pairs_keep_a_token_each(self) -> None:
        row = pack(pairs_of(("a", [5] * 12), ("a", [5] * 12)), share_prefix=True)
        assert len(row.ids) == 13
        assert len(set(row.sequences)) == 2

    def test_short_prefixes_are_not_worth_it(self) -> None:
        row = pack(pairs_of(("a", [5, 6, 1]), ("a", [5, 6, 2])), share_prefix=True)
        assert len(row.ids) == 6

    def test_types_stay_with_their_tokens(self) -> None:
        typed = [Pair(np.arange(n), query="a", truncated=False, type_ids=np.arange(n) % 2) for n in (3, 4)]
        row = pack(typed, share_prefix=False)
        assert row.type_ids is not None
        assert row.type_ids.tolist() == [0, 1, 0, 0, 1, 0, 1]


def kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_borders: torch.Tensor,
    key_borders: torch.Tensor,
    longest_query: int,
    longest_key: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> torch.Tensor:
    """varlen_attn by its documentation, since its kernels are on GPUs only."""
    assert longest_query == int(query_borders.diff().max()) and longest_key == int(key_borders.diff().max())
    assert query_borders.dtype == key_borders.dtype == torch.int32
    attended = []
    for (start, end), (first, last) in zip(
        pairwise(query_borders.tolist()), pairwise(key_borders.tolist()), strict=True
    ):
        q, k, v = query[start:end], key[first:last], value[first:last]
        offset = (last - first) - (end - start)
        distance = torch.arange(last - first) - (torch.arange(end - start)[:, None] + offset)
        left, right = (len(key) if reach < 0 else reach for reach in window_size)
        mask = (distance >= -left) & (distance <= right)
        q, k, v = (states.transpose(0, 1)[None] for states in (q, k, v))
        heads = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa)
        attended.append(heads[0].transpose(0, 1))
    return torch.cat(attended)


class TestAttention:
    @pytest.mark.parametrize("window", [None, 3])
    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("at_once", [False, True])
    def test_each_pair_gets_what_it_would_alone(
        self, monkeypatch: pytest.MonkeyPatch, at_once: bool, causal: bool, window: int | None
    ) -> None:
        common = list(range(9))
        row = pack(
            pairs_of(("a", [*common, 1, 2, 3]), ("b", [4, 5]), ("a", [*common, 6]), ("a", [*common, 7, 8, 9, 1])),
            share_prefix=causal,
        )
        states = torch.randn(3, 1, HEADS, len(row.ids), WIDTH, generator=torch.Generator().manual_seed(2))
        query, key, value = states[0], states[1][:, :GROUPS], states[2][:, :GROUPS]
        if at_once:
            monkeypatch.setattr(packing, "varlen_attn", kernel)
            monkeypatch.setattr(packing, "has_kernel", lambda device, dtype: True)
        module: Any = SimpleNamespace(is_causal=causal)
        body = PackedBody(module, "first", Transfers(torch.device("cpu")), 0)
        layout = body.send(row)[0]["layout"]
        attended, weights = packed_attention(
            module, query, key, value, None, layout=layout, scaling=0.3, sliding_window=window, dropout=0.0
        )
        assert weights is None
        assert attended.shape == (1, len(row.ids), HEADS, WIDTH)
        for sequence in row.sequences:
            tokens = read(row, sequence)
            distance = torch.arange(len(tokens))[:, None] - torch.arange(len(tokens))
            mask = (distance.abs() < (window or len(tokens) + 1)) & ((distance >= 0) | (not causal))
            expected = scaled_dot_product_attention(
                query[:, :, tokens], key[:, :, tokens], value[:, :, tokens], attn_mask=mask, scale=0.3, enable_gqa=True
            )
            torch.testing.assert_close(attended[:, tokens], expected.transpose(1, 2), rtol=0, atol=1e-6)
