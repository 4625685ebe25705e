"""From a model's hidden states to one logit per pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from transformers import PreTrainedModel

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.inference.transformer.forward import Head, padded
from boundarymorph.scoring.scorer import Pair


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
