"""The embedded cross-encoder, batched, against the contract; its truncation, fairness and cancellation."""

from collections.abc import AsyncIterator

import numpy as np
import pytest

from boundarymorph.inference.models import OnnxTextModel, embedded_cross_encoder
from boundarymorph.scoring.scorer import BatchingScorer, OnnxCrossEncoder
from tests.contract.scorer import QUERY, TEXTS, ScorerContract

PASSAGE = "The Eiffel Tower in Paris was completed in 1889 and is 330 metres tall."


class TestOnnxCrossEncoder(ScorerContract):
    @pytest.fixture(scope="class")
    @classmethod
    def encoder(cls) -> OnnxCrossEncoder:
        """One for all: it keeps nothing of a call."""
        return OnnxCrossEncoder.embedded()

    @pytest.fixture
    async def scorer(self, encoder: OnnxCrossEncoder) -> AsyncIterator[BatchingScorer]:
        scorer = BatchingScorer(encoder)
        yield scorer
        await scorer.close()

    async def test_the_name_tells_model_revision_precision_and_length(self, scorer: BatchingScorer) -> None:
        assert scorer.name == "cross-encoder/ms-marco-MiniLM-L-12-v2@1225ccd6afd0/int8/512"

    async def test_it_is_the_sigmoid_of_the_logit(self, scorer: BatchingScorer) -> None:
        model = OnnxTextModel(embedded_cross_encoder())
        pairs = [encoding for encoding, _ in model.encode_pairs(QUERY, TEXTS)]
        logits = [model.infer(np.array(pair.ids), np.array(pair.type_ids))[0] for pair in pairs]
        expected = 1 / (1 + np.exp(-np.array(logits, dtype=np.float64)))
        np.testing.assert_allclose((await scorer.score(QUERY, TEXTS)).values, expected, rtol=1e-12)

    async def test_the_number_of_threads_changes_no_score(self, scorer: BatchingScorer) -> None:
        single = BatchingScorer(OnnxCrossEncoder.embedded(threads=1))
        several = BatchingScorer(OnnxCrossEncoder.embedded(threads=3))
        expected = (await scorer.score(QUERY, TEXTS)).values
        for other in (single, several):
            np.testing.assert_array_equal((await other.score(QUERY, TEXTS)).values, expected)
            await other.close()

    async def test_what_answers_the_query_scores_higher(self, scorer: BatchingScorer) -> None:
        relevant, irrelevant = (await scorer.score("how tall is the eiffel tower?", [PASSAGE, TEXTS[1]])).values
        assert relevant > 0.9
        assert irrelevant < 0.01
        assert irrelevant > 0

    async def test_long_documents_are_cut_and_counted(self, scorer: BatchingScorer) -> None:
        beyond = await scorer.score(QUERY, [PASSAGE + " stone" * 600, PASSAGE + " stone" * 900, PASSAGE])
        assert beyond.truncated == 2
        assert beyond.values[0] == beyond.values[1]

    async def test_a_query_of_any_length_leaves_room_for_the_document(self, scorer: BatchingScorer) -> None:
        query = "how tall is the eiffel tower? " * 200
        scores = await scorer.score(query, [PASSAGE, TEXTS[1], ""])
        assert scores.truncated == 3
        assert scores.values[0] > scores.values[1]
