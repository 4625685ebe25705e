"""What every EmbeddingCache does. A test class inherits and provides `cache`, empty."""

import numpy as np

from boundarymorph.caching.interfaces import EmbeddingCache, Space, Vector, digest
from tests.retrieval.fakes import vector_of

SPACE = Space("maker/encoder@123/int8/512", 32)
TEXTS = [digest(text) for text in ("Trams run every ten minutes.", "A violin has four strings.", "")]
EMBEDDED = [vector_of(str(number)) for number in range(3)]


def assert_same(found: Vector | None, expected: Vector) -> None:
    assert found is not None
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


class EmbeddingCacheContract:
    async def test_nothing_is_known_at_first(self, cache: EmbeddingCache) -> None:
        assert await cache.read(SPACE, TEXTS) == [None, None, None]

    async def test_what_was_written_comes_back_bit_by_bit(self, cache: EmbeddingCache) -> None:
        await cache.write(SPACE, dict(zip(TEXTS, EMBEDDED, strict=True)))
        found = await cache.read(SPACE, [*TEXTS[::-1], digest("other")])
        assert found[3] is None
        for one, expected in zip(found[:3], EMBEDDED[::-1], strict=True):
            assert_same(one, expected)

    async def test_numbers_that_compare_oddly_come_back_too(self, cache: EmbeddingCache) -> None:
        odd = np.full(32, -0.0, np.float32)
        odd[:4] = np.nan, np.inf, 1e-45, -np.inf
        await cache.write(SPACE, {TEXTS[0]: odd})
        assert_same((await cache.read(SPACE, TEXTS[:1]))[0], odd)

    async def test_what_becomes_of_the_callers_array_does_not_matter(self, cache: EmbeddingCache) -> None:
        vectors = np.stack(EMBEDDED)
        await cache.write(SPACE, {TEXTS[1]: vectors[1]})
        vectors[:] = 0
        assert_same((await cache.read(SPACE, [TEXTS[1]]))[0], EMBEDDED[1])

    async def test_a_later_embedding_replaces_an_earlier_one(self, cache: EmbeddingCache) -> None:
        await cache.write(SPACE, {TEXTS[0]: EMBEDDED[0]})
        await cache.write(SPACE, {TEXTS[0]: EMBEDDED[1]})
        assert_same((await cache.read(SPACE, TEXTS))[0], EMBEDDED[1])

    async def test_encoders_and_dimensions_are_apart(self, cache: EmbeddingCache) -> None:
        await cache.write(SPACE, {TEXTS[0]: EMBEDDED[0]})
        for space in (Space("other", 32), Space(SPACE.encoder, 16)):
            assert await cache.read(space, TEXTS[:1]) == [None]

    async def test_empty_calls_write_and_return_nothing(self, cache: EmbeddingCache) -> None:
        await cache.write(SPACE, {})
        assert await cache.read(SPACE, []) == []

    async def test_many(self, cache: EmbeddingCache) -> None:
        written = {digest(str(number)): vector_of(str(number)) for number in range(300)}
        await cache.write(SPACE, written)
        for one, expected in zip(await cache.read(SPACE, list(written)), written.values(), strict=True):
            assert_same(one, expected)
