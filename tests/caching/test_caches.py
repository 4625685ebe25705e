"""Test the cache in the process, and the keys and values that every cache stores."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundarymorph.caching.redis import decoded, encoded
from boundarymorph.caching.scores import CachedScore, MemoryScoreCache, digest
from tests.clocks import Clock
from tests.contract.score_cache import MODEL, QUERY, SCORES, TEXTS, ScoreCacheContract


class TestMemoryScoreCache(ScoreCacheContract):
    @pytest.fixture
    def cache(self) -> MemoryScoreCache:
        return MemoryScoreCache()

    async def test_memory_cache_evicts_the_least_recently_used_query(self) -> None:
        cache = MemoryScoreCache(max_bytes=2_400)
        for query in ("a", "b", "c"):
            await cache.write(MODEL, query, {TEXTS[0]: SCORES[0]})
        await cache.read(MODEL, "a", TEXTS[:1])
        await cache.write(MODEL, "d", {TEXTS[0]: SCORES[0]})
        known = [query for query in "abcd" if await cache.look_up(MODEL, query)]
        assert known == ["a", "c", "d"]
        assert cache._queries.currsize <= 2_400

    async def test_memory_cache_keeps_no_query_larger_than_itself(self) -> None:
        cache = MemoryScoreCache(max_bytes=2_400)
        await cache.write(MODEL, QUERY, {digest(str(number)): SCORES[0] for number in range(100)})
        assert await cache.look_up(MODEL, QUERY) == {}
        assert cache._queries.currsize == 0

    async def test_later_write_does_not_extend_the_life_of_cached_scores(self) -> None:
        clock = Clock()
        cache = MemoryScoreCache(seconds_to_live=60, clock=clock)
        await cache.write(MODEL, QUERY, {TEXTS[0]: SCORES[0]})
        clock.now += 59
        await cache.write(MODEL, QUERY, {TEXTS[1]: SCORES[1]})
        assert len(await cache.look_up(MODEL, QUERY)) == 2
        clock.now += 1
        assert await cache.look_up(MODEL, QUERY) == {}
        assert await cache.read(MODEL, QUERY, TEXTS) == [None, None, None]
        assert cache._queries.currsize == 0
        await cache.write(MODEL, QUERY, {TEXTS[1]: SCORES[1]})
        clock.now += 59
        assert await cache.look_up(MODEL, QUERY) == {TEXTS[1]: SCORES[1]}


names = st.none() | st.text(st.characters(codec="utf-8"), max_size=60)


@given(st.builds(CachedScore, st.floats(0, 1), st.booleans(), names))
def test_encoded_score_decodes_to_the_same_bits(score: CachedScore) -> None:
    found = decoded(encoded(score))
    assert found == score
    assert found.score.hex() == score.score.hex()


SOUND = encoded(CachedScore(0.5, document="Ä"))


@pytest.mark.parametrize(
    "value",
    [
        *(None, 1, "text", [b""], b"", SOUND[:8], b"0.5"),
        bytes([4]) + SOUND[1:],  # an unknown flag
        bytes([0]) + SOUND[1:],  # an id without its flag
        SOUND[:-1],  # an incomplete character
        *(encoded(CachedScore(score)) for score in (-0.1, 1.1, float("nan"), float("inf"))),
    ],
)
def test_malformed_cache_value_is_not_decoded(value: object) -> None:
    assert decoded(value) is None


@given(st.text(), st.text(), st.text(), st.text())
def test_digests_differ_for_different_texts(one: str, two: str, three: str, four: str) -> None:
    assert (digest(one) == digest(two)) == (one == two)
    assert (digest(one, two) == digest(three, four)) == ((one, two) == (three, four))
