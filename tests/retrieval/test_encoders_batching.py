"""Test that an encoder batches the texts of many callers.

tests/scoring has the tests of batching for any model.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from boundarymorph.errors import EncoderFailed
from boundarymorph.inference.models import TokenSequence
from boundarymorph.retrieval.encoders.encoder import BatchingEncoder
from boundarymorph.retrieval.ranking import unit_vectors
from tests.contract.encoder import EncoderContract
from tests.patience import until_async
from tests.retrieval.fakes import vector_of

MANY = 1_000


class SeededDualEncoder:
    """A `DualEncoder` with the vectors of `vector_of`, whose tokens are characters.

    A text has at most 100 tokens. The batches are recorded, and the model waits until `open` is set.
    """

    name = "seeded"
    backend = "test"
    max_length = 100
    dimension = 32

    def __init__(self, *, workers: int = 1, batch_tokens: int = 200, pads: bool = False, open: bool = True) -> None:
        self.workers, self.batch_tokens, self.pads = workers, batch_tokens, pads
        self.parallel = False
        self.open = threading.Event()
        if open:
            self.open.set()
        self.batches: list[list[str]] = []
        self.tokenized = 0
        self._texts: dict[TokenSequence, str] = {}

    def tokenize_query(self, text: str) -> TokenSequence:
        return self.tokenize_documents([f"query: {text}"])[0]

    def tokenize_documents(self, texts: Sequence[str]) -> list[TokenSequence]:
        tokenized = [TokenSequence(np.arange(min(100, max(1, len(text)))), len(text) > 100) for text in texts]
        self._texts.update(zip(tokenized, texts, strict=True))
        self.tokenized += len(texts)
        return tokenized

    def run(self, texts: Sequence[TokenSequence]) -> NDArray[np.float32]:
        read = [self._texts[text] for text in texts]
        self.batches.append(read)
        assert self.open.wait(10)
        return np.array([vector_of(text) for text in read])

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("pads", "workers"), [(True, 1), (False, 3)])
class TestContract(EncoderContract):
    @pytest.fixture
    async def encoder(self, pads: bool, workers: int) -> AsyncIterator[BatchingEncoder]:
        encoder = BatchingEncoder(SeededDualEncoder(pads=pads, workers=workers))
        yield encoder
        await encoder.close()

    async def test_concurrent_calls_get_their_own_vectors_in_order(self, encoder: BatchingEncoder) -> None:
        calls = [[f"text {n} {m}" + "x" * (n * m % 110) for m in range(n % 7)] for n in range(60)]
        calls.append([f"{number} " + "x" * (number % 130) for number in range(2 * MANY)])  # in many slices
        answers = await asyncio.gather(*map(encoder.encode_documents, calls))
        for texts, embeddings in zip(calls, answers, strict=True):
            expected = np.array([vector_of(text) for text in texts], dtype=np.float32).reshape(-1, 32)
            np.testing.assert_array_equal(embeddings.vectors, expected)
            assert embeddings.truncated == sum(len(text) > 100 for text in texts)


async def test_large_call_queues_two_slices_and_queries_go_first() -> None:
    model = SeededDualEncoder(open=False)
    encoder = BatchingEncoder(model)
    large = asyncio.create_task(encoder.encode_documents(["x" * 100] * MANY))
    await until_async(lambda: len(model.batches) == 1 and encoder.waiting()[0] > 400)
    await asyncio.sleep(0.02)
    waiting, tokenized = encoder.waiting()[0], model.tokenized
    assert waiting < tokenized < 700
    query = asyncio.create_task(encoder.encode_query("urgent"))
    await until_async(lambda: encoder.waiting()[0] == waiting + 1)
    model.open.set()
    np.testing.assert_array_equal(await query, vector_of("query: urgent"))
    assert "query: urgent" in model.batches[1]
    await large
    await encoder.close()


async def test_check_refuses_a_probe_that_is_not_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = BatchingEncoder(model := SeededDualEncoder())
    await encoder.check()
    assert [len(batch) for batch in model.batches] == [2, 1]
    monkeypatch.setattr(model, "run", lambda texts: np.full((len(texts), 32), np.nan, dtype=np.float32))
    with pytest.raises(EncoderFailed, match="nan or inf"):
        await encoder.check()
    await encoder.close()


@given(st.lists(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=3, max_size=3), min_size=1, max_size=5))
def test_unit_vectors_normalizes_rows_and_makes_zero_rows_nan(states: list[list[float]]) -> None:
    rows = unit_vectors(np.array(states, dtype=np.float32))
    for row, state in zip(rows.astype(np.float64), np.array(states, dtype=np.float32).astype(np.float64), strict=True):
        length = np.linalg.norm(state)
        if length == 0:
            assert np.isnan(row).all()
        else:
            np.testing.assert_allclose(row, state / length, rtol=0, atol=1e-7)
