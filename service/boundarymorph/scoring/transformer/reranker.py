"""A repository that contains a reranker, and of which kind."""

from __future__ import annotations

from functools import cached_property

import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.inference.transformer.repository import Repository


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
