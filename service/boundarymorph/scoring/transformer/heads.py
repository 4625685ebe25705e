"""From a model's hidden states to one logit per pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.inference.transformer.forward import Head, Pooling, send_padded
from boundarymorph.inference.transformer.transfers import Launch, Transfers
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


def label_head(model: PreTrainedModel) -> tuple[Pooling, Head]:
    """Return the float32 head of a packable sequence classification model: (n, d) pooled states to (n,) logits.

    The pooler of a BERT is taken from the body, which would otherwise apply it to a whole row.
    """
    parts = dict(model.named_children())
    kind = model.config.model_type
    if kind == "bert":
        pooler, classifier = cast(nn.Module, model.base_model.pooler).float(), parts["classifier"].float()
        model.base_model.register_module("pooler", None)
        return "first", lambda states: label_logits(classifier(pooler(states[:, None])))
    if kind in ("roberta", "xlm-roberta"):
        classifier = parts["classifier"].float()
        return "first", lambda states: label_logits(classifier(states[:, None]))
    if kind == "modernbert":
        head, classifier = parts["head"].float(), parts["classifier"].float()
        pooling: Pooling = "first" if model.config.classifier_pooling == "cls" else "mean"
        return pooling, lambda states: label_logits(classifier(head(states)))
    score = parts["score"].float()
    return "last", lambda states: label_logits(score(states))


def answer_head(model: PreTrainedModel, yes: int, no: int | None) -> tuple[Pooling, Head]:
    """Return a head made of the rows of a causal model's output layer that belong to its answers, in float32.

    Raises InvalidConfiguration if the answers are not tokens of the model.
    """
    output = cast(nn.Linear | None, model.get_output_embeddings())  # type: ignore[no-untyped-call]
    answers = [yes] if no is None else [no, yes]
    if output is None or not all(0 <= answer < output.weight.shape[0] for answer in answers):
        raise InvalidConfiguration(f"the model has no output for the tokens {answers}")
    weight = output.weight.detach()[answers].float()
    bias = None if output.bias is None else output.bias.detach()[answers].float()
    return "last", lambda states: label_logits(nn.functional.linear(states, weight, bias))


@dataclass(frozen=True, slots=True, eq=False)
class PaddedLabels:
    """A `Forward` of a whole sequence classification model, for models that cannot pack."""

    pads: ClassVar[bool] = True

    model: PreTrainedModel
    transfers: Transfers
    padding: int

    def prepare(self, pairs: Sequence[Pair]) -> Launch:
        """See `Forward.prepare`."""
        features = send_padded(self.transfers, pairs, self.padding)
        return lambda: label_logits(self.model(**features).logits.float())
