"""List the rerankers that this service knows, by their documentation of November 2026."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from boundarymorph.selection.pool import Trust


@dataclass(frozen=True, slots=True)
class Reranker:
    """The known properties of a model.

    TEI and vLLM turn logits into numbers in [0, 1].

    Attributes:
        trust: How well it finds documents that people find relevant.
        tokens: Most tokens that it reads of a text with its query, or of all texts of a pass together; None if unknown.
        results: The results of the model, or of the API that hosts it. Probabilities mean the same for every query, so
            that a fixed threshold makes sense; relevance in [0, 1] may not.
        absolute: Whether a result does not depend on the other texts of a request.
        together: Documents that it reads in one pass.
        spans: Whether it can name the relevant parts of a document.
        short: Its short name here.
        english: Whether it reads no other language.
    """

    trust: Trust
    tokens: int | None = None
    results: Literal["probability", "relevance", "logit", "cosine"] = "relevance"
    absolute: bool = True
    together: int = 1
    spans: bool = False
    short: str | None = None
    english: bool = False


# Small cross-encoders that have only seen web passages.
_SMALL = Reranker("weak", 512, "logit", english=True)
# Cohere's API reads 4,096 tokens of a document, though the models from version 4 on have a window of 32,768.
_COHERE_4 = Reranker("strong", 4_096)
_COHERE_5 = Reranker("strong", 4_096, "probability", spans=True)
_VOYAGE = Reranker("strong", 32_000)
_JINA_3 = Reranker("strong", 131_072, "cosine", absolute=False, together=64)
_JINA_3_5 = Reranker("strong", 131_072, "cosine", together=64)
_QWEN = Reranker("strong", 32_768, "probability")

# By the name that a scorer reports, without its revision and precision.
KNOWN: Mapping[str, Reranker] = {
    "cross-encoder/ms-marco-TinyBERT-L-2": _SMALL,
    "cross-encoder/ms-marco-TinyBERT-L-2-v2": _SMALL,
    "cross-encoder/ms-marco-MiniLM-L-2-v2": _SMALL,
    "cross-encoder/ms-marco-MiniLM-L-4-v2": _SMALL,
    "cross-encoder/ms-marco-MiniLM-L-6-v2": _SMALL,
    "cross-encoder/ms-marco-MiniLM-L6-v2": _SMALL,
    "cross-encoder/ms-marco-MiniLM-L-12-v2": _SMALL,
    "cross-encoder/ms-marco-MiniLM-L12-v2": _SMALL,
    "cross-encoder/ms-marco-electra-base": _SMALL,
    "mixedbread-ai/mxbai-rerank-xsmall-v1": _SMALL,
    "jinaai/jina-reranker-v1-tiny-en": Reranker("weak", 8_192, "logit", english=True),
    "jinaai/jina-reranker-v1-turbo-en": Reranker("weak", 8_192, "logit", english=True),
    "BAAI/bge-reranker-v2-m3": Reranker("normal", 8_192, "logit", short="bge-reranker-v2-m3"),
    "Alibaba-NLP/gte-reranker-modernbert-base": Reranker(
        "normal", 8_192, "logit", short="gte-reranker-modernbert-base", english=True
    ),
    "Qwen/Qwen3-Reranker-0.6B": Reranker("strong", 32_768, "probability", short="qwen3-reranker-0.6b"),
    "Qwen/Qwen3-Reranker-4B": _QWEN,
    "Qwen/Qwen3-Reranker-8B": _QWEN,
    "mixedbread-ai/mxbai-rerank-base-v2": Reranker("strong", 8_192, "logit", short="mxbai-rerank-base-v2"),
    "mixedbread-ai/mxbai-rerank-large-v2": Reranker("strong", 8_192, "logit"),
    "jinaai/jina-reranker-v3": _JINA_3,
    "jinaai/jina-reranker-v3.5": _JINA_3_5,
    "nvidia/llama-nemotron-rerank-1b-v2": Reranker("strong", 8_192, "logit"),
    "nvidia/Nemotron-3.5-Rerank-8B-BF16": Reranker("strong", 32_768, "logit"),
    "cohere:rerank-v3.5": Reranker("normal", 4_096),
    "cohere:rerank-v4.0-pro": _COHERE_4,
    "cohere:rerank-v4.0-fast": _COHERE_4,
    "cohere:rerank-v5.0-pro": _COHERE_5,
    "cohere:rerank-v5.0-fast": _COHERE_5,
    "voyage:rerank-2.5": _VOYAGE,
    "voyage:rerank-2.5-lite": _VOYAGE,
    "voyage:rerank-3": _VOYAGE,
    "voyage:rerank-3-lite": _VOYAGE,
    "jina:jina-reranker-v3": _JINA_3,
    "jina:jina-reranker-v3.5": _JINA_3_5,
}
RERANKERS = {known.short: name for name, known in KNOWN.items() if known.short is not None}
ENGLISH = tuple(name for name, known in KNOWN.items() if known.english)


def repository_of(name: str) -> str:
    """Return the repository of a short name, in any case, and another name or a folder as it is."""
    return name if Path(name).is_dir() else RERANKERS.get(name.lower(), name)


def trust_of(model: str | None, declared: Trust | None = None) -> Trust:
    """Return the trust in a scorer.

    Args:
        model: The full name that it reports.
        declared: The trust that its operator or its kind declares.
    """
    if declared is not None:
        return declared
    parts = (model or "").partition("@")[0].rpartition("=")[2].split("/")  # vLLM: NAME=REPOSITORY/LENGTH
    names = ("/".join(parts[:count]) for count in (len(parts), 2))
    return next((KNOWN[name].trust for name in names if name in KNOWN), "normal")
