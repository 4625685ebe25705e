"""What we know about architectures: input length, causality, padding and segments."""

from __future__ import annotations

from transformers import PreTrainedConfig, PreTrainedModel

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.inference.transformer.repository import Repository

CAUSAL_MAX_LENGTH = 8192  # tokens, unless more are asked for

_FEWEST_TOKENS = 8


def make_bidirectional(model: PreTrainedModel) -> None:
    """Make a causal architecture bidirectional if its configuration says that it was trained so."""
    if not getattr(model.config, "is_causal", True):
        for module in model.modules():
            if hasattr(module, "is_causal"):
                module.is_causal = False  # type: ignore[assignment]


def chosen_length(repository: Repository, max_length: int | None, usual: int | None = None) -> int:
    """Return the most tokens of an input: the requested number, else the usual one, at most what the model reads.

    Raises InvalidConfiguration if the model cannot read inputs of the requested length.
    """
    positions = getattr(repository.config, "max_position_embeddings", None)
    tokenizer_length = int(repository.tokenizer.model_max_length)
    most = tokenizer_length if positions is None else int(positions) - first_position(repository.config)
    if max_length is None:
        return min(most, tokenizer_length, usual or most)
    if not _FEWEST_TOKENS <= max_length <= most:
        raise InvalidConfiguration(f"{repository.location} takes a max_length of {_FEWEST_TOKENS} to {most} tokens")
    return max_length


def first_position(config: PreTrainedConfig) -> int:
    """Return the first position; RoBERTa counts from after its padding index."""
    return int(config.pad_token_id or 0) + 1 if config.model_type in ("roberta", "xlm-roberta") else 0


def padding_token(repository: Repository) -> int:
    """Return the token for padding: any will do, since it is masked."""
    return int(repository.tokenizer.pad_token_id or 0)


def typed(repository: Repository) -> bool:
    """Whether the model distinguishes segments by type ids."""
    named = "token_type_ids" in repository.tokenizer.model_input_names
    return named and getattr(repository.config, "type_vocab_size", 0) > 1
