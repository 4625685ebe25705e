"""What every CrossEncoder does. A test class inherits and provides the `encoder` fixture, and a tolerance."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from boundarymorph.scoring.scorer import CrossEncoder
from tests.scoring.transformer.tiny import LONG, OTHER_QUERY, QUERY, TEXTS


class CrossEncoderContract:
    tolerance: float = 1e-5

    def test_scores_are_relevances(self, encoder: CrossEncoder) -> None:
        scores = encoder.run(encoder.tokenize(QUERY, TEXTS))
        assert scores.shape == (len(TEXTS),)
        assert scores.dtype == np.float64
        assert ((scores >= 0) & (scores <= 1)).all()
        assert np.ptp(scores) > 0.05

    def test_a_pair_has_one_score_whatever_it_comes_with(self, encoder: CrossEncoder) -> None:
        pairs = encoder.tokenize(QUERY, TEXTS)
        others = encoder.tokenize(OTHER_QUERY, TEXTS)
        together = encoder.run(pairs)
        backwards = encoder.run(pairs[::-1])[::-1]
        alone = np.concatenate([encoder.run([pair]) for pair in pairs])
        mixed = encoder.run([pair for both in zip(pairs, others, strict=True) for pair in both])[::2]
        twice = encoder.run([pairs[0], *pairs, *pairs[:3]])[1 : len(pairs) + 1]
        for scores in (backwards, alone, mixed, twice):
            np.testing.assert_allclose(scores, together, rtol=0, atol=self.tolerance)

    def test_several_threads_at_once(self, encoder: CrossEncoder) -> None:
        batches = [encoder.tokenize(query, TEXTS[:5]) for query in (QUERY, OTHER_QUERY)] * 2
        with ThreadPoolExecutor(3) as threads:
            concurrently = list(threads.map(encoder.run, batches))
        for batch, scores in zip(batches, concurrently, strict=True):
            np.testing.assert_allclose(scores, encoder.run(batch), rtol=0, atol=self.tolerance)

    def test_the_pairs_are_those_of_the_texts(self, encoder: CrossEncoder) -> None:
        pairs = encoder.tokenize(QUERY, [*TEXTS, LONG * 20])
        assert [pair.truncated for pair in pairs][-1]
        assert len(pairs[-1]) == encoder.max_length
        assert all(len(pair) <= encoder.max_length for pair in pairs)
        assert not any(pair.truncated for pair in pairs[:3])

    def test_empty_texts_and_no_texts(self, encoder: CrossEncoder) -> None:
        assert encoder.tokenize(QUERY, []) == []
        assert encoder.run([]).shape == (0,)
        assert np.isfinite(encoder.run(encoder.tokenize("", ["", "x"]))).all()
