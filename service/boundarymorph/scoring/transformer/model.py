"""Cross-encoders on PyTorch: sequence classification models, and causal ones that answer yes or no."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Unpack, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel

from boundarymorph.calibration.calibration import sigmoid
from boundarymorph.errors import InvalidConfiguration, ScorerFailed
from boundarymorph.inference.transformer.model import (
    DeviceModel,
    Forward,
    Head,
    Headed,
    LoadOptions,
    Placement,
    PooledBody,
    Precision,
    on_device,
    padded,
)
from boundarymorph.inference.transformer.repository import (
    CAUSAL_MAX_LENGTH,
    Repository,
    chosen_length,
    padding_token,
    typed,
)
from boundarymorph.scoring.scorer import Pair
from boundarymorph.scoring.transformer.prompts import (
    TEMPLATES,
    ChatPrompt,
    Prompt,
    SequencePairs,
    Template,
    described_template,
    template_of_name,
)


def label_logits(labels: torch.Tensor) -> torch.Tensor:
    """Map (n, 1) or (n, 2) label logits to (n,) relevance logits."""
    if labels.shape[-1] == 1:
        return labels[:, 0]
    return labels[:, 1] - labels[:, 0]


def check_labels(model: PreTrainedModel) -> None:
    """Raise InvalidConfiguration unless the model has one label, or irrelevant and relevant."""
    if model.config.num_labels not in (1, 2):
        raise InvalidConfiguration(
            f"the model has {model.config.num_labels} labels: a reranker has one, or two of which the second is for"
        )


def answer_head(model: PreTrainedModel, yes: int, no: int | None) -> Head:
    """Return a head made of the rows of a causal model's output layer that belong to its answers, in float32.

    Raises InvalidConfiguration if the answers are not tokens of the model.
    """
    output = cast(nn.Linear | None, model.get_output_embeddings())  # type: ignore[no-untyped-call]
    answers = [yes] if no is None else [no, yes]
    if output is None or not all(0 <= answer < output.weight.shape[0] for answer in answers):
        raise InvalidConfiguration(f"the model has no output for the tokens {answers}")
    weight = output.weight.detach()[answers].float()
    bias = None if output.bias is None else output.bias.detach()[answers].float()
    return lambda states: label_logits(nn.functional.linear(states, weight, bias))


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """A `Forward` of a whole sequence classification model. padding: a token, which is masked."""

    model: PreTrainedModel
    padding: int

    def __call__(self, pairs: Sequence[Pair]) -> torch.Tensor:
        return label_logits(self.model(**padded(pairs, self.padding, self.model.device)).logits.float())


__all__ = ["Precision", "TransformerCrossEncoder"]
_OWN_PROMPT = "chat"


class RerankerRepository(Repository):
    """A repository of a reranker. Raises InvalidConfiguration if it contains another kind of model."""

    @cached_property
    def generates(self) -> bool:
        """Whether it is a causal language model rather than a sequence classification model."""
        names = self.config.architectures or []
        if any(name.endswith("ForCausalLM") for name in names):
            return True
        if any(name.endswith("ForSequenceClassification") for name in names):
            return False
        raise InvalidConfiguration(
            f"{self.location} is a {' or '.join(names) or 'model of unknown kind'}: a reranker is a sequence "
            "classification model, or a causal language model that answers yes or no"
        )

    def reranker(self, dtype: torch.dtype) -> PreTrainedModel:
        """Load the model with its weights, on the CPU, ready to run."""
        return self.open(AutoModelForCausalLM if self.generates else AutoModelForSequenceClassification, dtype=dtype)


class TransformerCrossEncoder(DeviceModel[Pair]):
    """A `CrossEncoder` on one device, made by `load`.

    The relevance is the sigmoid of the logit divided by the temperature of the prompt.
    """

    failed = ScorerFailed

    def __init__(
        self,
        name: str,
        forward: Forward[Pair],
        placement: Placement,
        max_length: int,
        *,
        prompt: Prompt,
        temperature: float,
    ) -> None:
        super().__init__(name, forward, placement, max_length)
        self._prompt = prompt
        self._temperature = temperature

    @classmethod
    def load(
        cls,
        name_or_path: str,
        *,
        max_length: int | None = None,
        prompt: str | None = None,
        instruction: str | None = None,
        **options: Unpack[LoadOptions],
    ) -> TransformerCrossEncoder:
        """Load a model from a folder or from the hub.

        max_length: tokens per pair, by default what the model reads, but at most 8192 for a causal one; prompt: qwen3,
        zerank or chat (the repository's own), by default chosen by the model's name and files.

        Raises ModelUnavailable if files are missing, InvalidConfiguration for an unsuitable model or setting,
        OutOfMemory and DeviceLost.
        """
        placement = Placement.of(options)
        repository = RerankerRepository(
            name_or_path,
            revision=options.get("revision"),
            trust_remote_code=options.get("trust_remote_code", False),
        )
        length = chosen_length(repository, max_length, CAUSAL_MAX_LENGTH if repository.generates else None)
        template = _template(repository, prompt, instruction)
        chat = None
        if template is not None:
            chat = ChatPrompt(repository.backend_tokenizer, template, max_length=length, instruction=instruction)
        reader = chat or SequencePairs(repository.backend_tokenizer, max_length=length, types=typed(repository))
        forward = on_device(lambda: _open(repository, placement, chat))
        return cls(
            _name(repository, placement.precision, length, chat),
            forward,
            placement,
            length,
            prompt=reader,
            temperature=1.0 if template is None else template.temperature,
        )

    @property
    def takes_instruction(self) -> bool:
        return self._prompt.takes_instruction

    def tokenize(self, query: str, texts: Sequence[str], instruction: str | None = None) -> list[Pair]:
        return self._prompt.tokenize(query, texts, instruction)

    def run(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        """Return (n,) relevances. Raises OutOfMemory, DeviceLost, or ScorerFailed if one is not a finite number."""
        if not pairs:
            return np.empty(0)
        logits = self.compute(pairs).astype(np.float64)
        if not np.isfinite(logits).all():
            raise ScorerFailed(f"{self.name} gave a score that is not a number; another precision may help")
        return sigmoid(logits / self._temperature)


def _open(repository: RerankerRepository, placement: Placement, chat: ChatPrompt | None) -> Forward[Pair]:
    model = repository.reranker(placement.weight_type)
    model.to(device=placement.device)  # type: ignore[call-arg]
    if repository.generates:
        assert chat is not None
        no = chat.template.no
        head = answer_head(model, chat.token(chat.template.yes), None if no is None else chat.token(no))
        body = cast(PreTrainedModel, model.base_model)
        return Headed(PooledBody(body, "last", padding_token(repository)), head)
    check_labels(model)
    if model.config.pad_token_id is None:
        model.config.pad_token_id = padding_token(repository)
    return Labels(model, model.config.pad_token_id)


def _template(repository: RerankerRepository, prompt: str | None, instruction: str | None) -> Template | None:
    """Return the template for a chat model, or None if the query and the document are simply joined."""
    if prompt is not None and prompt not in (*TEMPLATES, _OWN_PROMPT):
        raise InvalidConfiguration(f"there is no --prompt {prompt}; there are {_prompts()}")
    template = TEMPLATES.get(prompt) if prompt is not None else template_of_name(repository.model)
    if template is None and (repository.generates or prompt == _OWN_PROMPT):
        template = described_template(repository.tokenizer, repository.read_json, instructed=instruction is not None)
        if template is None:
            raise InvalidConfiguration(
                f"{repository.location} does not say how to prompt it: choose a --prompt of {_prompts()}"
            )
    if template is None and instruction is not None:
        raise InvalidConfiguration(f"{repository.location} takes no instruction: leave it out")
    return template


def _prompts() -> str:
    return ", ".join([*TEMPLATES, _OWN_PROMPT])


def _name(repository: RerankerRepository, precision: str, max_length: int, chat: ChatPrompt | None) -> str:
    name = f"{repository.model}@{repository.revision[:12]}/{precision}/{max_length}"
    if chat is None:
        return name
    asked: dict[str, Any] = asdict(chat.template) | {"instruction": chat.instruction}
    return f"{name}/{hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:8]}"
