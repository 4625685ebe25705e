"""The tests that every ScoreCache passes.

A test class inherits them, and provides the fixture `cache`, which is empty and keeps scores for a day.
"""

from boundarymorph.caching.scores import FIELDS, CachedScore, ScoreCache, digest

MODEL = "maker/model@123/fp32/512"
QUERY = "how often do trams run?"
TEXTS = [digest(text) for text in ("Trams run every ten minutes.", "A violin has four strings.", "")]
SCORES = [CachedScore(0.1), CachedScore(5e-324, truncated=True, document="tram"), CachedScore(1.0, document="Ärzte 🙂")]


class ScoreCacheContract:
    async def test_cache_reads_scores_in_the_order_requested(self, cache: ScoreCache) -> None:
        await cache.write(MODEL, QUERY, dict(zip(TEXTS, SCORES, strict=True)))
        assert await cache.read(MODEL, QUERY, TEXTS) == SCORES
        assert await cache.read(MODEL, QUERY, TEXTS[::-1]) == SCORES[::-1]
        assert await cache.read(MODEL, QUERY, [TEXTS[0], digest("other"), TEXTS[0]]) == [SCORES[0], None, SCORES[0]]

    async def test_cache_recalls_all_scores_of_a_query(self, cache: ScoreCache) -> None:
        for text, score in zip(TEXTS, SCORES, strict=True):
            await cache.write(MODEL, QUERY, {text: score})
        assert await cache.look_up(MODEL, QUERY) == dict(zip(TEXTS, SCORES, strict=True))

    async def test_cache_replaces_an_earlier_score(self, cache: ScoreCache) -> None:
        await cache.write(MODEL, QUERY, {TEXTS[0]: SCORES[0], TEXTS[1]: SCORES[1]})
        await cache.write(MODEL, QUERY, {TEXTS[0]: SCORES[2]})
        assert await cache.read(MODEL, QUERY, TEXTS) == [SCORES[2], SCORES[1], None]

    async def test_cache_separates_models_and_queries(self, cache: ScoreCache) -> None:
        await cache.write(MODEL, QUERY, {TEXTS[0]: SCORES[0]})
        for model, query in [("other", QUERY), (MODEL, "other"), (MODEL + QUERY, ""), ("", MODEL + QUERY)]:
            assert await cache.read(model, query, TEXTS) == [None, None, None]
            assert await cache.look_up(model, query) == {}

    async def test_cache_accepts_any_text_as_a_query(self, cache: ScoreCache) -> None:
        for query in ("", "🙂", "a" * 100_000, "\0{}\r\n", "lone \ud800 surrogate"):
            await cache.write(MODEL, query, {TEXTS[0]: SCORES[0]})
            assert await cache.read(MODEL, query, TEXTS[:1]) == SCORES[:1]

    async def test_cache_omits_a_long_document_id(self, cache: ScoreCache) -> None:
        await cache.write(MODEL, QUERY, {TEXTS[0]: CachedScore(0.5, document="d" * 255)})
        await cache.write(MODEL, QUERY, {TEXTS[1]: CachedScore(0.5, document="d" * 256)})
        assert [score.document for score in await cache.read(MODEL, QUERY, TEXTS[:2]) if score] == ["d" * 255, None]

    async def test_cache_recalls_a_bounded_number_of_scores_per_query(self, cache: ScoreCache) -> None:
        scores = {digest(str(number)): CachedScore(number / 10_000) for number in range(FIELDS + 1_000)}
        await cache.write(MODEL, QUERY, dict(list(scores.items())[:2_000]))
        await cache.write(MODEL, QUERY, dict(list(scores.items())[2_000:]))
        found = await cache.look_up(MODEL, QUERY)
        assert len(found) == FIELDS
        assert found.items() <= scores.items()
        last = list(scores)[2_000:]
        assert await cache.read(MODEL, QUERY, last) == [scores[text] for text in last]
