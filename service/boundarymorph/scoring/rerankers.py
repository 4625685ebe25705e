"""Rerankers that have a short name here. docs/models.md says what each is good for."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Reranker(NamedTuple):
    """A cross-encoder on the Hugging Face hub, whose template, if it needs one, is that of its family
    (`transformer.prompts`). Its relevance is the sigmoid of one logit, or of the difference of two. repository:
    OWNER/NAME; millions: of parameters; tokens: of a pair that it reads; languages, licence: by its card."""

    repository: str
    millions: int
    tokens: int
    languages: str
    licence: str = "Apache-2.0"


RERANKERS = {
    "bge-reranker-v2-m3": Reranker("BAAI/bge-reranker-v2-m3", 568, 8192, "100+"),
    "gte-reranker-modernbert-base": Reranker("Alibaba-NLP/gte-reranker-modernbert-base", 149, 8192, "English"),
    "qwen3-reranker-0.6b": Reranker("Qwen/Qwen3-Reranker-0.6B", 596, 8192, "100+"),
    "mxbai-rerank-base-v2": Reranker("mixedbread-ai/mxbai-rerank-base-v2", 494, 8192, "100+"),
}
ENGLISH = tuple(known.repository for known in RERANKERS.values() if known.languages == "English")


def repository_of(name: str) -> str:
    """Return the repository of a short name, in any case; another name, and a folder of that name, as it is."""
    known = RERANKERS.get(name.lower())
    return name if known is None or Path(name).is_dir() else known.repository
