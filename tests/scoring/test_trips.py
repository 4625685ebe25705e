"""What trips to a scorer cost, and in how many rounds a budget is spent."""

import math

import pytest

from boundarymorph.scoring.build import trips_to
from boundarymorph.scoring.trips import FADES, LATEST, Clock, Kind, Trips
from boundarymorph.settings import JudgeSettings, ScorerSettings
from tests import clocks
from tests.fakes.scorer import SeededScorer

SIZES = [1, 2, 5, 9, 20, 3, 4, 8]


def timed(fixed: float, each: float, sizes: list[int], server: str | None = None, clock: Clock | None = None) -> Clock:
    clock = clock or Clock()
    for size in sizes:
        clock.took(size, fixed + each * size, server)
    return clock


def _trips(url: str | list[str], **price: float) -> Trips:
    return trips_to(ScorerSettings.model_validate({"url": url, "price": price}), SeededScorer())


class TestClock:
    def test_it_tells_the_parts_of_a_trip(self) -> None:
        assert timed(0.02, 0.001, SIZES).parts() == pytest.approx((0.02, 0.001))

    @pytest.mark.parametrize("sizes", [[], [1, 2, 3], [7] * LATEST, [1] * LATEST])
    def test_it_does_not_guess(self, sizes: list[int]) -> None:
        assert timed(0.02, 0.001, sizes).parts() is None

    def test_a_few_slow_trips_change_little(self) -> None:
        clock = timed(0.02, 0.001, [1, 2, 5, 9, 20, 3, 4, 8, 6, 7])
        clock.took(5, 60.0)
        clock.took(9, 60.0)
        assert clock.parts() == pytest.approx((0.02, 0.001), rel=0.2)

    def test_it_forgets(self) -> None:
        clock = timed(5.0, 1.0, [1, 2] * LATEST)
        for size in [1, 2] * (LATEST // 2):
            clock.took(size, 0.02 + 0.001 * size)
        assert clock.parts() == pytest.approx((0.02, 0.001))

    def test_what_is_old_counts_no_more(self) -> None:
        now = clocks.Clock()
        clock = timed(5.0, 1.0, SIZES, clock=Clock(now))
        now.now += FADES
        assert clock.parts() == pytest.approx((5.0, 1.0))
        now.now += 1.0
        assert clock.parts() is None
        assert timed(0.02, 0.001, SIZES, clock=clock).parts() == pytest.approx((0.02, 0.001))

    @pytest.mark.parametrize("slow", [["b"], ["a"], ["b", "d"], ["a", "c"]])
    def test_slow_replicas_change_no_plan_while_half_are_not(self, slow: list[str]) -> None:
        """Whichever was asked last, and though one of them takes longer only for large trips."""
        clock = Clock()
        for server in ("a", "b", "c", "d")[: 2 * len(slow)]:
            timed(*((0.01, 9.0) if server in slow else (0.02, 0.001)), SIZES, server, clock)
        assert clock.parts() == pytest.approx((0.02, 0.001))

    def test_most_replicas_are_slow(self) -> None:
        clock = Clock()
        for server, fixed in (("a", 0.3), ("b", 0.02), ("c", 0.4)):
            timed(fixed, 0.001, SIZES, server, clock)
        assert clock.parts() == pytest.approx((0.3, 0.001))


class TestRounds:
    @pytest.mark.parametrize(("budget", "rounds"), [(20, 2), (24, 2), (25, 3), (50, 3), (100, 3)])
    def test_few_where_a_trip_is_dear(self, budget: int, rounds: int) -> None:
        assert Trips("dear").rounds(budget) == rounds
        assert Trips("dear", clock=timed(0.02, 0.0001, SIZES)).rounds(budget) == rounds

    @pytest.mark.parametrize("budget", [10, 50, 100])
    def test_two_where_each_is_billed(self, budget: int) -> None:
        assert Trips("billed").rounds(budget) == 2

    @pytest.mark.parametrize(("budget", "rounds"), [(20, 1), (30, 1), (31, 2), (50, 2), (100, 3), (500, 3)])
    def test_no_more_than_full_passes(self, budget: int, rounds: int) -> None:
        assert Trips("dear", full=30).rounds(budget) == rounds
        assert Trips("dear", full=30).rounds(budget, settles=True) == -(-budget // 30)
        quick = timed(0.0005, 0.001, [1, 2] * LATEST)
        assert Trips("dear", clock=quick, full=30).rounds(budget) == rounds

    @pytest.mark.parametrize("seconds", [0.1, math.inf])
    def test_the_clock_says_nothing_where_trips_are_cheap(self, seconds: float) -> None:
        """So the same request has the same answer, whatever came before it."""
        assert Trips("cheap", clock=timed(9.0, 0.0, [1, 2] * LATEST)).rounds(50, seconds) is None

    def test_many_where_a_trip_turns_out_to_cost_little(self) -> None:
        assert Trips("dear", clock=timed(0.004, 0.02, [1, 2] * LATEST)).rounds(50) is None
        assert Trips("dear", clock=timed(0.006, 0.02, [1, 2] * LATEST)).rounds(50) == 3
        assert Trips("billed", clock=timed(0.004, 0.02, [1, 2] * LATEST)).rounds(50) == 2

    @pytest.mark.parametrize(("seconds", "rounds"), [(math.inf, 3), (2.2, 3), (1.7, 2), (1.4, 1), (0.1, 1)])
    def test_all_fit_before_the_deadline(self, seconds: float, rounds: int) -> None:
        """Of trips that take .4 s and .01 s a document."""
        assert Trips("dear", clock=timed(0.4, 0.01, [1, 2] * LATEST)).rounds(50, seconds) == rounds

    @pytest.mark.parametrize(("seconds", "documents"), [(1.0, 39), (0.5, 0), (0.1, 0)])
    def test_what_fits_into_one(self, seconds: float, documents: int) -> None:
        """Of trips that take .4 s and .01 s a document."""
        clock = timed(0.4, 0.01, [1, 2] * LATEST)
        assert Trips("dear", clock=clock).fitting(seconds) == pytest.approx(documents, abs=1)
        assert Trips("cheap", clock=clock).fitting(seconds) == Trips("dear").fitting(seconds) == 0
        assert Trips("dear", clock=clock).fitting(math.inf) > 1_000

    @pytest.mark.parametrize(("kind", "rounds"), [("cheap", None), ("dear", None), ("billed", 2)])
    def test_what_stops_by_itself_looks_often_unless_a_look_is_billed(self, kind: Kind, rounds: int | None) -> None:
        assert Trips(kind).rounds(200, settles=True) == rounds


@pytest.mark.parametrize(
    ("urls", "full"),
    [
        (("tei://host",), 1),
        (("openai://host/v1?model=m",), 20),
        (("jina://host?model=jina-reranker-v2",), 1),
        (("jina://host?model=jina-reranker-v3.5",), 64),
        (("systemone://host?model=m",), 30),
        (("decisions://one?model=m", "decisions://other?model=m"), 30),
        (("decisions://one?model=m", "tei://other?model=m"), 1),
    ],
)
def test_what_is_read_in_one_pass(urls: tuple[str, ...], full: int) -> None:
    settings = ScorerSettings(url=urls, judge=JudgeSettings(documents_per_request=20))
    assert trips_to(settings, SeededScorer()).full == full


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (ScorerSettings(), "cheap"),
        (ScorerSettings(url=("http://scorer",)), "dear"),
        (ScorerSettings(url=("tei://scorer",)), "dear"),
        (ScorerSettings(url=("openai://host/v1?model=m",)), "dear"),
        (ScorerSettings(url=("cohere://host?model=m",)), "billed"),
        (ScorerSettings(url=("jina://host?model=m",)), "dear"),
    ],
)
def test_the_kind_goes_by_the_scorer(settings: ScorerSettings, kind: Kind) -> None:
    assert trips_to(settings, SeededScorer()).kind == kind
