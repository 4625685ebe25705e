"""Test the encoder with a cache: its contract, and how often it calls the encoder behind it."""

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from boundarymorph.caching.vectors import CachingEncoder, Vector
from boundarymorph.errors import EncoderUnavailable
from boundarymorph.retrieval.encoders import Encoder
from tests.caching.fakes import GatedEncoder, let_others_run
from tests.contract.encoder import EncoderContract
from tests.retrieval.fakes import SeededEncoder, vector_of


class TestContract(EncoderContract):
    @pytest.fixture
    async def encoder(self) -> AsyncIterator[Encoder]:
        encoder = CachingEncoder(SeededEncoder())
        yield encoder
        await encoder.close()


@pytest.fixture
def inner() -> GatedEncoder:
    return GatedEncoder()


@pytest.fixture
async def encoder(inner: GatedEncoder) -> AsyncIterator[CachingEncoder]:
    encoder = CachingEncoder(inner)
    yield encoder
    inner.gate.open()
    await encoder.close()


async def test_cached_query_vector_equals_the_encoded_one(encoder: CachingEncoder, inner: GatedEncoder) -> None:
    first = await encoder.encode_query("trams")
    first[:] = 0  # a caller may change its own vector
    second = await encoder.encode_query("trams")
    np.testing.assert_array_equal(second.view(np.uint32), vector_of("trams").view(np.uint32))
    assert inner.queries == ["trams"]


async def test_concurrent_equal_queries_are_encoded_once(encoder: CachingEncoder, inner: GatedEncoder) -> None:
    """If the first request is cancelled, another one encodes; an error reaches all of them."""
    inner.gate.shut()
    first, *others = [asyncio.create_task(encoder.encode_query("trams")) for _ in range(4)]
    await let_others_run()
    first.cancel()
    await let_others_run()
    inner.gate.open()
    for vector in await asyncio.gather(*others):
        np.testing.assert_array_equal(vector, vector_of("trams"))
        vector[:] = 0  # as above
    assert inner.queries == ["trams"] * 2

    async def fail(text: str, caller: str = "") -> Vector:
        await asyncio.sleep(0)
        raise EncoderUnavailable("gone")

    inner.encode_query = fail  # type: ignore[method-assign]
    failed = await asyncio.gather(*(encoder.encode_query("bus") for _ in range(3)), return_exceptions=True)
    assert [str(error) for error in failed] == ["gone"] * 3


class Renamed(GatedEncoder):
    """An encoder whose servers report a model name that may change."""

    identity: str | None = None


@pytest.mark.parametrize("other", [("encoder@2", 32), ("encoder@1", 16)])
async def test_vector_is_not_cached_if_the_model_changed_meanwhile(other: tuple[str, int]) -> None:
    inner = Renamed()
    inner.identity = "encoder@1"
    encoder = CachingEncoder(inner)
    inner.gate.shut()
    call = asyncio.ensure_future(encoder.encode_query("a"))
    await let_others_run()
    inner.identity, inner.dimension = other  # the servers change their model
    inner.gate.open()
    await call
    for inner.identity, inner.dimension in (("encoder@1", 32), other):
        await encoder.encode_query("a")
    assert len(inner.queries) == 3
    await encoder.close()


async def test_encoder_cache_evicts_the_least_recently_used_query(inner: GatedEncoder) -> None:
    encoder = CachingEncoder(inner, max_bytes=1_500)  # there is room for two vectors
    for text in ("a", "b", "a", "c", "a", "b"):
        await encoder.encode_query(text)
        await let_others_run()
    assert inner.queries == ["a", "b", "c", "b"]
    await encoder.close()
