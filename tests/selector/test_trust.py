"""What the latest scores on an index say of the scorer."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from boundarymorph.selection import Pool
from boundarymorph.selector import scores as trust
from boundarymorph.selector.scores import FEWEST, PLACES, QUERIES, RECENT, TO_COMPARE, Place, Trust

PLACE = Place("scorer", "", "index")
N = 20
SIMILARITY = np.linspace(1.0, 0.0, N)
POOL = Pool.of([str(place) for place in range(N)], np.eye(N), np.ones(N), SIMILARITY)
FLAT = Pool.listed(POOL.ids)
Scores = Sequence[float]


def told(of: Callable[[int], Scores], queries: int, *, pool: Pool = POOL, place: Place = PLACE) -> list[str]:
    """The warnings of the last of so many queries with such scores."""
    kept, said = Trust(), list[str]()
    for number in range(queries):
        said = kept.warnings(place, f"query {number}", pool, dict(enumerate(of(number))))
    return said


def reversed_scores(number: int) -> Scores:
    noise = np.random.default_rng(number).normal(0.0, 0.2, N)
    return list(np.clip(0.5 - 0.3 * (SIMILARITY - 0.5) + 0.3 * noise, 0.01, 0.99))


def right_scores(number: int) -> Scores:
    return [1.0 - score for score in reversed_scores(number)]


def random_scores(number: int) -> Scores:
    return list(np.random.default_rng(number).uniform(0.01, 0.99, N))


def test_a_constant_scorer() -> None:
    assert told(lambda _: [0.5] * 9, QUERIES - 1) == []
    [said] = told(lambda _: [0.5] * 9, QUERIES)
    assert said == "the scorer may not work on this index: all of its last 27 scores, of 3 queries, are 0.5"
    [said] = told(lambda _: [0.5] * 9, QUERIES, place=replace(PLACE, index=""))
    assert "on these pools" in said
    assert told(lambda number: [0.1 * number] * 9, RECENT // 4) == [], "each query has a score of its own"
    assert told(lambda _: [0.5] * 8 + [0.5004], QUERIES) != [], "in half precision"
    assert told(lambda _: [0.5] * 8 + [0.501], QUERIES) == []
    assert told(lambda _: [1e-5] * 8 + [3e-5], QUERIES) == [], "none is relevant, and they differ"
    assert "are 0" in told(lambda _: [0.0] * 9, QUERIES)[0]


@pytest.mark.parametrize(("off", "warned"), [(0, True), (1, True), (2, False)])
def test_a_saturated_scorer(off: int, warned: bool) -> None:
    """Of ten scores, so many are between."""
    scores = [0.0, 1.0, 1.0 - 1e-7, 1e-7, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    said = told(lambda _: [*scores[off:], *[0.4] * off], QUERIES)
    assert bool(said) == warned
    assert not warned or "are 0 or 1 to six digits" in said[0]
    assert told(lambda _: scores, QUERIES - 1) == []


def test_a_reversed_scorer() -> None:
    assert told(reversed_scores, TO_COMPARE - 1) == []
    [said] = told(reversed_scores, TO_COMPARE)
    assert "over the last 10 queries its scores fall where similarity and words rise" in said
    assert told(reversed_scores, TO_COMPARE, pool=FLAT) == [], "nothing speaks for one document more than for another"


@pytest.mark.parametrize("scores", [right_scores, random_scores])
@pytest.mark.parametrize("queries", [TO_COMPARE, RECENT])
def test_one_that_works_or_guesses_is_not_contrary(scores: Callable[[int], Scores], queries: int) -> None:
    assert told(scores, queries) == []


def test_a_mean_below_zero_must_be_certain() -> None:
    """Half of the queries are contrary and half are not; and all are a little."""
    assert told(lambda number: (right_scores if number % 3 else reversed_scores)(number), TO_COMPARE) == []

    def a_little(number: int) -> Scores:
        return list(np.clip(np.array(random_scores(number)) - 0.1 * SIMILARITY, 0.0, 1.0))

    assert told(a_little, RECENT) == []


def test_one_query_asked_often_is_one_query() -> None:
    kept = Trust()
    for _ in range(RECENT):
        assert kept.warnings(PLACE, "query", POOL, dict(enumerate(reversed_scores(0)))) == []
        assert kept.warnings(PLACE, "query", POOL, dict.fromkeys(range(9), 0.5)) == []


def test_few_scores_do_not_count() -> None:
    assert told(lambda _: [0.5] * (FEWEST - 1), RECENT) == []
    assert told(lambda _: [0.5] * FEWEST, RECENT) != []


def test_each_place_is_judged_alone() -> None:
    kept = Trust()
    places = [PLACE, Place("other", "", "index"), Place("scorer", "team", "index"), Place("scorer", "", "another")]
    for number in range(QUERIES - 1):
        for place in places:
            assert kept.warnings(place, f"{number}", POOL, dict.fromkeys(range(9), 0.5)) == []
    assert kept.warnings(PLACE, "last", POOL, dict.fromkeys(range(9), 0.5)) != []


def test_it_mends_and_it_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Trust()
    for number in range(RECENT):
        kept.warnings(PLACE, f"reversed {number}", POOL, dict(enumerate(reversed_scores(number))))
    for number in range(RECENT):
        said = kept.warnings(PLACE, f"right {number}", POOL, dict(enumerate(right_scores(number))))
    assert said == []
    assert len(kept._seen[PLACE]) == RECENT
    monkeypatch.setattr(trust, "PLACES", 3)
    for number in range(PLACES):
        kept.warnings(replace(PLACE, index=f"{number}"), "q", POOL, dict.fromkeys(range(9), 0.5))
    assert [place.index for place in kept._seen] == [f"{number}" for number in range(PLACES - 3, PLACES)]
