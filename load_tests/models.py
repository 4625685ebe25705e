"""Make models of real shapes with random weights, as folders.

Their scores have no meaning, but their time and rounding do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from boundarymorph.inference.models import embedded_cross_encoder
from tests.scoring.transformer import tiny


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a model.

    `folder` is the name by which the product knows the kind of model.
    """

    folder: str
    make: Callable[[], PreTrainedModel]
    tokenizer: Callable[[], Any]
    length: int
    dtype: torch.dtype = torch.float32

    def write(self, directory: Path, device: str = "cpu") -> Path:
        """Write the model and its tokenizer to a folder in the directory, and return the folder.

        The model is made on the device.
        """
        torch.manual_seed(0)
        torch.set_default_dtype(self.dtype)
        try:
            with torch.device(device):
                model = self.make()
        finally:
            torch.set_default_dtype(torch.float32)
        folder = directory / self.folder
        model.save_pretrained(folder)
        tokenizer = self.tokenizer()
        tokenizer.model_max_length = self.length
        tokenizer.save_pretrained(folder)
        return folder


def bert(hidden: int, layers: int, heads: int) -> Shape:
    """Return a cross-encoder with the embedded one's tokenizer."""
    options: dict[str, Any] = {"hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": layers}
    options |= {"num_attention_heads": heads, "num_labels": 1, "initializer_range": 0.1}
    config = BertConfig(**options)
    return Shape("bert", lambda: BertForSequenceClassification(config), _word_pieces, 512)


def qwen(hidden: int, layers: int, heads: int, intermediate: int) -> Shape:
    """Return a language model that answers yes or no."""
    config = Qwen3Config(
        vocab_size=151_669,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        tie_word_embeddings=True,
        pad_token_id=0,
    )
    return Shape("Qwen3-Reranker", lambda: Qwen3ForCausalLM(config), tiny.byte_pairs, 8_192, torch.bfloat16)


def _word_pieces() -> Any:
    tokenizer = Tokenizer.from_file(str(embedded_cross_encoder().tokenizer))
    tokenizer.no_padding()  # the embedded file pads every text to 512 tokens
    tokenizer.no_truncation()
    names = {f"{name.lower()}_token": f"[{name}]" for name in ("CLS", "MASK", "PAD", "SEP", "UNK")}
    wrapped: Any = PreTrainedTokenizerFast
    return wrapped(tokenizer_object=tokenizer, **names)


SHAPES = {
    "smoke": bert(64, 2, 4),
    "minilm": bert(384, 12, 12),
    "22M": bert(384, 6, 12),
    "0.6B": qwen(1024, 28, 16, 3072),
}
