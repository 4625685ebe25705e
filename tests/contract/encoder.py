"""The tests that every Encoder passes.

A test class inherits them, and provides the fixture `encoder` and a tolerance.
"""

import asyncio
from typing import ClassVar

import numpy as np

from boundarymorph.retrieval.encoders import Encoder

TEXTS = ["Trams run every ten minutes.", "A violin has four strings.", "", "Ärzte empfehlen 8 Stunden Schlaf 🙂"]


class EncoderContract:
    tolerance: ClassVar[float] = 0.0  # how much a component may depend on the batch

    async def test_encoder_returns_unit_vectors_of_documents(self, encoder: Encoder) -> None:
        vectors = (await encoder.encode_documents(TEXTS)).vectors
        assert vectors.shape == (len(TEXTS), encoder.dimension)
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(vectors.astype(np.float64), axis=1), 1, atol=1e-6)
        assert len(np.unique(vectors, axis=0)) == len(TEXTS)

    async def test_encoder_returns_a_unit_vector_of_a_query(self, encoder: Encoder) -> None:
        vector = await encoder.encode_query("how often do trams run?")
        assert vector.shape == (encoder.dimension,)
        assert vector.dtype == np.float32
        assert abs(np.linalg.norm(vector.astype(np.float64)) - 1) < 1e-6

    async def test_encoder_gives_a_text_one_vector_in_any_batch(self, encoder: Encoder) -> None:
        together = (await encoder.encode_documents(TEXTS)).vectors
        concurrently = await asyncio.gather(*(encoder.encode_documents([text]) for text in reversed(TEXTS)))
        alone = np.concatenate([embeddings.vectors for embeddings in reversed(concurrently)])
        np.testing.assert_allclose(together, alone, rtol=0, atol=self.tolerance)

    async def test_encoder_accepts_no_texts(self, encoder: Encoder) -> None:
        embeddings = await encoder.encode_documents([])
        assert embeddings.vectors.shape == (0, encoder.dimension)
        assert embeddings.truncated == 0
