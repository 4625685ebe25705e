"""What we know about architectures: input length, causality, and whether they can run several sequences in a row."""

from __future__ import annotations

from transformers import PreTrainedConfig, PreTrainedModel

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.inference.transformer.device import Placement
from boundarymorph.inference.transformer.int8 import quantize
from boundarymorph.inference.transformer.packing import ATTENTION
from boundarymorph.inference.transformer.padding import PADDED_ATTENTION
from boundarymorph.inference.transformer.repository import Repository

CAUSAL_MAX_LENGTH = 8192  # tokens, unless more are asked for

_BIDIRECTIONAL = {"bert", "roberta", "xlm-roberta", "modernbert"}
_CAUSAL = {"qwen2", "qwen3"}
_FEWEST_TOKENS = 8


def causal(model: PreTrainedModel) -> bool:
    """Whether a token's state depends only on the tokens before it. For models that pack."""
    return caches(model) and bool(getattr(model.config, "is_causal", True))


def caches(model: PreTrainedModel) -> bool:
    """Whether the model keeps its keys and values by default. For models that pack."""
    return model.config.model_type in _CAUSAL


def make_bidirectional(model: PreTrainedModel) -> None:
    """Make a causal architecture bidirectional if its configuration says that it was trained so."""
    if not getattr(model.config, "is_causal", True):
        for module in model.modules():
            if hasattr(module, "is_causal"):
                module.is_causal = False  # type: ignore[assignment]


def packs(model: PreTrainedModel) -> bool:
    """Whether this architecture can run several sequences in one row."""
    if getattr(model.config, "is_decoder", False):
        return False
    return model.config.model_type in _BIDIRECTIONAL | _CAUSAL and _known(model)


def _known(model: PreTrainedModel) -> bool:
    """Whether its code is that of transformers, not the repository's own."""
    return type(model).__module__.startswith("transformers.")


def place(model: PreTrainedModel, body: PreTrainedModel, placement: Placement, packed: bool | None) -> bool:
    """Move a model to its device, its body in int8 if that is its precision; returns whether it packs.

    packed: None to pack if possible. Other models get an attention that does not wait for the device, if their code
    lets them. Raises InvalidConfiguration if packed is True and the model cannot.
    """
    can_pack = packs(model)
    if packed and not can_pack:
        raise InvalidConfiguration(f"a {model.config.model_type} runs with padding only: leave packed out")
    packed = can_pack if packed is None else packed
    if packed:
        model.set_attn_implementation(ATTENTION)
    elif _known(model) and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(PADDED_ATTENTION)
    if placement.precision == "int8":
        quantize(body)
    model.to(device=placement.device)  # type: ignore[call-arg]
    return packed


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
