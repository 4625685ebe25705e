"""Test the embedded encoder with the contract of encoders."""

from collections.abc import AsyncIterator

import numpy as np
import pytest

from boundarymorph.inference.models import OnnxTextModel, embedded_encoder
from boundarymorph.retrieval.encoders.encoder import BatchingEncoder, OnnxDualEncoder
from tests.contract.encoder import EncoderContract


class TestOnnxEncoder(EncoderContract):
    @pytest.fixture(scope="class")
    @classmethod
    def model(cls) -> OnnxDualEncoder:
        """Return one model for all tests, since it keeps no state."""
        return OnnxDualEncoder.embedded()

    @pytest.fixture
    async def encoder(self, model: OnnxDualEncoder) -> AsyncIterator[BatchingEncoder]:
        encoder = BatchingEncoder(model)
        yield encoder
        await encoder.close()

    async def test_onnx_encoder_name_has_model_revision_precision_and_length(self, encoder: BatchingEncoder) -> None:
        assert encoder.name == "BAAI/bge-small-en-v1.5@68807e3ff2ab/int8/512"

    async def test_onnx_encoder_vector_is_the_normalized_first_token(self, encoder: BatchingEncoder) -> None:
        model = OnnxTextModel(embedded_encoder())
        [encoding] = model.encode_texts(["A violin has four strings."])
        hidden = model.infer(np.array(encoding.ids))
        (vector,) = (await encoder.encode_documents(["A violin has four strings."])).vectors
        np.testing.assert_allclose(vector, hidden[0] / np.linalg.norm(hidden[0]), atol=1e-6)

    async def test_onnx_encoder_adds_the_query_prefix(self, encoder: BatchingEncoder) -> None:
        documents = ["Trams leave every ten minutes.", "A violin has four strings.", "Yeast makes the dough rise."]
        prefixed = "Represent this sentence for searching relevant passages: string instrument"
        vectors = (await encoder.encode_documents([*documents, prefixed])).vectors
        query = await encoder.encode_query("string instrument")
        np.testing.assert_array_equal(query, vectors[3])
        assert np.argmax(vectors[:3] @ query) == 1

    async def test_onnx_encoder_truncates_long_texts_and_counts_them(self, encoder: BatchingEncoder) -> None:
        embeddings = await encoder.encode_documents(["stone " * 511, "stone " * 510, "short"])
        assert embeddings.truncated == 1
        np.testing.assert_array_equal(embeddings.vectors[0], embeddings.vectors[1])
