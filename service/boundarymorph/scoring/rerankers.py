"""Cross-encoders on the Hugging Face hub that have a short name here. docs/models.md says what each is good for."""

from __future__ import annotations

from pathlib import Path

RERANKERS = {
    "bge-reranker-v2-m3": "BAAI/bge-reranker-v2-m3",
    "gte-reranker-modernbert-base": "Alibaba-NLP/gte-reranker-modernbert-base",
    "qwen3-reranker-0.6b": "Qwen/Qwen3-Reranker-0.6B",
    "mxbai-rerank-base-v2": "mixedbread-ai/mxbai-rerank-base-v2",
}
ENGLISH = (RERANKERS["gte-reranker-modernbert-base"],)  # those that read no other language


def repository_of(name: str) -> str:
    """Return the repository of a short name, in any case; another name, and a folder of that name, as it is."""
    return name if Path(name).is_dir() else RERANKERS.get(name.lower(), name)
