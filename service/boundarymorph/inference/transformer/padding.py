"""Attention for batches with padding that never looks at the mask's values.

PyTorch's attention needs no mask where nothing is padded, and transformers looks whether that is so. On a GPU the look
waits for all that was launched before, so that no batch could be launched while another is computed.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

PADDED_ATTENTION = "boundarymorph_padded"


def whole_mask(**options: Any) -> torch.Tensor | None:
    """Return the (n, 1, queries, keys) mask, whether it is needed or not. Takes what `sdpa_mask` takes."""
    return sdpa_mask(**options | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})


ALL_ATTENTION_FUNCTIONS.register(PADDED_ATTENTION, sdpa_attention_forward)
ALL_MASK_ATTENTION_FUNCTIONS.register(PADDED_ATTENTION, whole_mask)
