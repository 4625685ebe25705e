"""Cross-encoders on PyTorch: sequence classification models, and causal ones that answer yes or no."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedConfig, PreTrainedModel

from boundarymorph.errors import InvalidConfiguration, ScorerFailed
from boundarymorph.models import available_cores
from boundarymorph.scoring.cross_encoder import Pair, sigmoid
from boundarymorph.scoring.transformer.described import described_template
from boundarymorph.scoring.transformer.failures import on_device
from boundarymorph.scoring.transformer.forward import Forward, PackedForward, PaddedAnswers, PaddedLabels
from boundarymorph.scoring.transformer.heads import answer_head, causal, check_labels, label_head, packs
from boundarymorph.scoring.transformer.int8 import quantize
from boundarymorph.scoring.transformer.packing import ATTENTION
from boundarymorph.scoring.transformer.prompts import (
    TEMPLATES,
    ChatPrompt,
    Prompt,
    SequencePairs,
    Template,
    template_of_name,
)
from boundarymorph.scoring.transformer.repository import Repository

Precision: TypeAlias = Literal["auto", "fp32", "bf16", "fp16", "int8"]

_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_OWN_PROMPT = "chat"
_BATCH_TOKENS = {"cpu": 512, "cuda": 16384}
_LANES_OF_A_GPU = 2
_MOST_OF_A_CAUSAL_MODEL = 8192
_FEWEST_TOKENS = 8


class TransformerCrossEncoder:
    """One model on one device. `load` makes it. On a GPU one lane packs while the other computes.

    A logit becomes a relevance by the sigmoid, after division by the temperature of the prompt.
    """

    def __init__(
        self,
        *,
        name: str,
        prompt: Prompt,
        forward: Forward,
        device: torch.device,
        max_length: int,
        batch_tokens: int,
        lanes: int,
        temperature: float = 1.0,
    ) -> None:
        self.name = name
        self.max_length = max_length
        self.batch_tokens = batch_tokens
        self.lanes = lanes
        self.side_by_side = device.type == "cpu"
        self._prompt = prompt
        self._forward: Forward | None = forward
        self._device = device
        self._temperature = temperature
        self.pads = not isinstance(forward, PackedForward)

    @classmethod
    def load(
        cls,
        name_or_path: str,
        *,
        precision: Precision = "auto",
        device: str = "auto",
        max_length: int | None = None,
        prompt: str | None = None,
        instruction: str | None = None,
        batch_tokens: int | None = None,
        packed: bool | None = None,
        share_prefix: bool = True,
        trust_remote_code: bool = False,
        threads: int | None = None,
    ) -> TransformerCrossEncoder:
        """Open a model from a folder or from the hub.

        precision: auto is bf16 on a GPU and fp32 elsewhere; max_length: tokens of a pair, by default what the model
        reads, of a causal one at most 8192; prompt: qwen3, zerank or chat (the repository's own), else found by the
        model's name and files; packed: whether batches go without padding, by default where that can be done;
        share_prefix: whether pairs of one query share their beginning in a packed batch of a causal model;
        trust_remote_code: whether the repository may bring code that is run; threads: how many batches a CPU computes
        side by side, one thread each, by default one a core. That is faster than to split each batch, and does not slow
        down when the cores are shared; PyTorch keeps to one thread an operation in the whole process.

        Raises ModelUnavailable for files that are missing, InvalidConfiguration for a model or setting that does not
        fit, OutOfMemory and DeviceLost.
        """
        where = _device(device)
        precision = _precision(precision, where)
        if batch_tokens is not None and batch_tokens < 1:
            raise InvalidConfiguration("batch_tokens must be at least 1")
        lanes = _threads(threads) if where.type == "cpu" else _LANES_OF_A_GPU
        if where.type == "cpu":
            torch.set_num_threads(1)
        repository = Repository(name_or_path, trust_remote_code=trust_remote_code)
        length = _max_length(repository, max_length)
        template = _template(repository, prompt, instruction)
        chat = None
        if template is not None:
            chat = ChatPrompt(repository.backend_tokenizer, template, max_length=length, instruction=instruction)
        reader = chat or SequencePairs(repository.backend_tokenizer, max_length=length, types=_types(repository))
        forward = on_device(lambda: _open(repository, precision, where, packed, share_prefix, chat))
        return cls(
            name=_name(repository, precision, length, chat),
            prompt=reader,
            forward=forward,
            device=where,
            max_length=length,
            batch_tokens=batch_tokens or _BATCH_TOKENS.get(where.type, _BATCH_TOKENS["cpu"]),
            lanes=lanes,
            temperature=1.0 if template is None else template.temperature,
        )

    @property
    def backend(self) -> str:
        return f"torch-{self._device.type}"

    def tokenize(self, query: str, texts: Sequence[str]) -> list[Pair]:
        return self._prompt.tokenize(query, texts)

    def run(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        """(n,) relevances. Raises OutOfMemory, DeviceLost, or ScorerFailed where the model gives no finite number."""
        if not pairs:
            return np.empty(0)
        logits = on_device(lambda: self._logits(pairs))
        if not np.isfinite(logits).all():
            raise ScorerFailed(f"{self.name} gave a score that is no number; another precision may help")
        return sigmoid(logits / self._temperature)

    @torch.inference_mode()
    def _logits(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        if self._forward is None:
            raise ScorerFailed(f"{self.name} is closed")
        logits: NDArray[np.float64] = self._forward(pairs).double().cpu().numpy()
        return logits

    def close(self) -> None:
        self._forward = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def _open(
    repository: Repository,
    precision: str,
    device: torch.device,
    packed: bool | None,
    share_prefix: bool,
    chat: ChatPrompt | None,
) -> Forward:
    fallback = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = repository.open(dtype=_TYPES.get(precision, fallback))
    can_pack = packs(model)
    if packed and not can_pack:
        raise InvalidConfiguration(f"a {model.config.model_type} runs with padding only: leave packed out")
    packed = can_pack if packed is None else packed
    if packed:
        model.set_attn_implementation(ATTENTION)
    body = cast(PreTrainedModel, model.base_model)
    if precision == "int8":
        quantize(body)
    model.to(device=device)  # type: ignore[call-arg]
    if repository.generates:
        assert chat is not None
        no = chat.template.no
        pooling, head = answer_head(model, chat.token(chat.template.yes), None if no is None else chat.token(no))
        if not packed:
            return PaddedAnswers(body, head, device, _padding(repository))
    else:
        check_labels(model)
        if not packed:
            if model.config.pad_token_id is None:
                model.config.pad_token_id = _padding(repository)
            return PaddedLabels(model, device, model.config.pad_token_id)
        pooling, head = label_head(model)
    return PackedForward(
        body=body,
        pooling=pooling,
        head=head,
        device=device,
        first_position=_first_position(model.config),
        share_prefix=share_prefix and causal(model),
    )


def _template(repository: Repository, prompt: str | None, instruction: str | None) -> Template | None:
    """What to ask a chat model with, or None where a query and a document are simply joined."""
    if prompt is not None and prompt not in (*TEMPLATES, _OWN_PROMPT):
        raise InvalidConfiguration(f"there is no --prompt {prompt}; there are {_prompts()}")
    template = TEMPLATES.get(prompt) if prompt is not None else template_of_name(repository.model)
    if template is None and (repository.generates or prompt == _OWN_PROMPT):
        template = described_template(repository.tokenizer, repository.read_json, instructed=instruction is not None)
        if template is None:
            raise InvalidConfiguration(
                f"{repository.location} does not tell how it is asked: choose a --prompt of {_prompts()}"
            )
    if template is None and instruction is not None:
        raise InvalidConfiguration(f"{repository.location} takes no instruction: leave it out")
    return template


def _prompts() -> str:
    return ", ".join([*TEMPLATES, _OWN_PROMPT])


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise InvalidConfiguration(f"there is no device {device}: use auto, cpu, cuda or cuda:0") from error
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise InvalidConfiguration(f"PyTorch sees no {device} here: use auto or cpu, or install PyTorch for CUDA")
    return found


def _precision(precision: Precision, device: torch.device) -> Precision:
    if precision == "auto":
        return "bf16" if device.type == "cuda" else "fp32"
    if precision not in (*_TYPES, "int8"):
        raise InvalidConfiguration(f"there is no precision {precision}: use auto, fp32, bf16, fp16 or int8")
    return precision


def _threads(threads: int | None) -> int:
    threads = available_cores() if threads is None else threads
    if threads < 1:
        raise InvalidConfiguration("threads must be at least 1")
    return threads


def _max_length(repository: Repository, max_length: int | None) -> int:
    positions = getattr(repository.config, "max_position_embeddings", None)
    tokenizer_length = int(repository.tokenizer.model_max_length)
    most = tokenizer_length if positions is None else int(positions) - _first_position(repository.config)
    if max_length is None:
        return min(most, tokenizer_length, _MOST_OF_A_CAUSAL_MODEL if repository.generates else most)
    if not _FEWEST_TOKENS <= max_length <= most:
        raise InvalidConfiguration(f"{repository.location} takes a max_length of {_FEWEST_TOKENS} to {most} tokens")
    return max_length


def _first_position(config: PreTrainedConfig) -> int:
    """RoBERTa counts positions from behind its padding index."""
    return int(config.pad_token_id or 0) + 1 if config.model_type in ("roberta", "xlm-roberta") else 0


def _padding(repository: Repository) -> int:
    """Any token will do, since it is masked."""
    return int(repository.tokenizer.pad_token_id or 0)


def _types(repository: Repository) -> bool:
    named = "token_type_ids" in repository.tokenizer.model_input_names
    return named and getattr(repository.config, "type_vocab_size", 0) > 1


def _name(repository: Repository, precision: str, max_length: int, chat: ChatPrompt | None) -> str:
    name = f"{repository.model}@{repository.revision[:12]}/{precision}/{max_length}"
    if chat is None:
        return name
    asked: dict[str, Any] = asdict(chat.template) | {"instruction": chat.instruction}
    return f"{name}/{hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:8]}"
