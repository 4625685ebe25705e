"""Test how far the service trusts known scorers."""

import pytest

from boundarymorph.scoring.build import declared_trust
from boundarymorph.scoring.rerankers import trust_of
from boundarymorph.selection.pool import Trust
from boundarymorph.settings import ScorerSettings


@pytest.mark.parametrize(
    ("model", "trust"),
    [
        ("cross-encoder/ms-marco-MiniLM-L-12-v2@0123456789ab/int8/512", "weak"),
        ("cross-encoder/ms-marco-MiniLM-L-12-v2", "weak"),
        ("Qwen/Qwen3-Reranker-0.6B@main", "strong"),
        ("cohere:rerank-v5.0-pro", "strong"),
        ("nvidia/Nemotron-3.5-Rerank-8B-BF16/32768", "strong"),  # vLLM's name of the model
        ("served=Qwen/Qwen3-Reranker-4B/8192/sigmoid@01234567", "strong"),
        ("someone/Qwen/Qwen3-Reranker-4B", "normal"),
        ("BAAI/bge-reranker-v2-m3", "normal"),
        ("someone/cross-encoder-ms-marco-MiniLM-L-12-v2-tuned", "normal"),  # only the whole name counts
        (None, "normal"),
    ],
)
def test_trust_of_a_scorer_depends_on_its_exact_name(model: str | None, trust: Trust) -> None:
    assert trust_of(model) == trust


@pytest.mark.parametrize(
    ("settings", "trust"),
    [
        ({}, None),
        ({"trust": "strong"}, "strong"),
        ({"url": "tei://127.0.0.1:1"}, None),
        ({"url": "openai://127.0.0.1:1/v1?model=m"}, "strong"),
        ({"url": "openai://127.0.0.1:1/v1?model=m", "trust": "weak"}, "weak"),
        ({"url": ["openai://127.0.0.1:1/v1?model=m", "tei://127.0.0.1:1"]}, None),
    ],
)
def test_declared_trust_is_the_setting_or_depends_on_the_server(
    settings: dict[str, object], trust: Trust | None
) -> None:
    assert declared_trust(ScorerSettings.model_validate(settings)) == trust


def test_declared_trust_overrides_the_name() -> None:
    assert trust_of("cross-encoder/ms-marco-MiniLM-L-12-v2", "strong") == "strong"
