"""Test the embedded cross-encoder: contract, truncation, fairness, and cancellation."""

from collections.abc import AsyncIterator

import numpy as np
import pytest

from boundarymorph.inference.models import OnnxTextModel, embedded_cross_encoder
from boundarymorph.scoring.scorer import BatchingScorer, OnnxCrossEncoder
from tests.contract.scorer import QUERY, TEXTS, ScorerContract


class TestOnnxCrossEncoder(ScorerContract):
    @pytest.fixture(scope="class")
    @classmethod
    def encoder(cls) -> OnnxCrossEncoder:
        """Return one model for all tests, since it keeps no state."""
        return OnnxCrossEncoder.embedded()

    @pytest.fixture
    async def scorer(self, encoder: OnnxCrossEncoder) -> AsyncIterator[BatchingScorer]:
        scorer = BatchingScorer(encoder)
        yield scorer
        await scorer.close()

    async def test_onnx_scorer_name_has_model_revision_precision_and_length(self, scorer: BatchingScorer) -> None:
        assert scorer.name == "cross-encoder/ms-marco-MiniLM-L-12-v2@1225ccd6afd0/int8/512"

    async def test_onnx_score_is_the_sigmoid_of_the_logit(self, scorer: BatchingScorer) -> None:
        model = OnnxTextModel(embedded_cross_encoder())
        pairs = model.encode_pairs(QUERY, TEXTS)
        logits = [model.infer(np.array(pair.ids), np.array(pair.type_ids))[0] for pair in pairs]
        expected = 1 / (1 + np.exp(-np.array(logits, dtype=np.float64)))
        expected[[not text for text in TEXTS]] = 0
        np.testing.assert_allclose((await scorer.score(QUERY, TEXTS)).values, expected, rtol=1e-12)

    @pytest.mark.strangers
    @pytest.mark.parametrize("query", ["sea", "weather", "car"])
    async def test_onnx_score_of_a_text_of_unknown_tokens_is_zero(self, scorer: BatchingScorer, query: str) -> None:
        unknown = ["QUJD" * 40, "0f" * 64, "x" * 150, "ខ្មែរ", "ខ្មែរ ។ ខ្មែរ", "😀", "😀 !!!", "\u16a0\u16a1"]
        known = ["x", "1", "海水", "море", f"This explains {query}.", f"{'x' * 150} {query}"]
        values = (await scorer.score(query, unknown + known)).values
        assert (values[: len(unknown)] == 0).all()
        assert (values[len(unknown) :] > 0).all()
