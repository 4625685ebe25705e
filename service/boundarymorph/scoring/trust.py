"""How far scorers are trusted to find what people find relevant."""

from __future__ import annotations

from collections.abc import Mapping

from boundarymorph.selection.pool import Trust

# By the name that a scorer reports, without its revision and precision. Other scorers are normal.
KNOWN_MODELS: Mapping[str, Trust] = {
    # Small cross-encoders that have only seen web passages.
    "cross-encoder/ms-marco-TinyBERT-L-2": "weak",
    "cross-encoder/ms-marco-TinyBERT-L-2-v2": "weak",
    "cross-encoder/ms-marco-MiniLM-L-2-v2": "weak",
    "cross-encoder/ms-marco-MiniLM-L-4-v2": "weak",
    "cross-encoder/ms-marco-MiniLM-L-6-v2": "weak",
    "cross-encoder/ms-marco-MiniLM-L6-v2": "weak",
    "cross-encoder/ms-marco-MiniLM-L-12-v2": "weak",
    "cross-encoder/ms-marco-MiniLM-L12-v2": "weak",
    "cross-encoder/ms-marco-electra-base": "weak",
    "mixedbread-ai/mxbai-rerank-xsmall-v1": "weak",
    "jinaai/jina-reranker-v1-tiny-en": "weak",
    "jinaai/jina-reranker-v1-turbo-en": "weak",
    # Rerankers of 2025 and 2026.
    "Qwen/Qwen3-Reranker-0.6B": "strong",
    "Qwen/Qwen3-Reranker-4B": "strong",
    "Qwen/Qwen3-Reranker-8B": "strong",
    "mixedbread-ai/mxbai-rerank-base-v2": "strong",
    "mixedbread-ai/mxbai-rerank-large-v2": "strong",
    "jinaai/jina-reranker-v3": "strong",
    "nvidia/llama-nemotron-rerank-1b-v2": "strong",
    "cohere:rerank-v4.0-pro": "strong",
    "cohere:rerank-v4.0-fast": "strong",
    "voyage:rerank-2.5": "strong",
    "voyage:rerank-2.5-lite": "strong",
    "jina:jina-reranker-v3": "strong",
}


def trust_of(model: str | None, declared: Trust | None = None) -> Trust:
    """Return how far a scorer is trusted. model: the full name that it reports; declared: by its operator or kind."""
    if declared is not None:
        return declared
    return "normal" if model is None else KNOWN_MODELS.get(model.partition("@")[0], "normal")
