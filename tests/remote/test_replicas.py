"""Which server is next: choice, ejection, pauses."""

from collections import Counter

import pytest

from boundarymorph.remote.replicas import LONGEST_HOLD, MISSES, Replicas, Wait
from tests.clocks import Clock

DOWN = Wait(busy=False, hold=None)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def seconds_left(replicas: Replicas, clock: Clock) -> float:
    """Let the time pass for which the only one is ejected, in steps of 1/64 s."""
    start = clock.now
    while replicas.pick(1) == DOWN:
        clock.now += 1 / 64
    return clock.now - start


def test_the_least_busy_is_next(clock: Clock) -> None:
    replicas = Replicas(3, clock=clock)
    tickets = [replicas.begin(index, texts) for index, texts in ((0, 5), (1, 3), (2, 4))]
    assert replicas.pick(1) == 1
    assert replicas.pick(1, exclude={1}) == 2
    replicas.end(tickets[0])
    assert replicas.pick(1) == 0


def test_equals_are_drawn_with_the_seed(clock: Clock) -> None:
    draws = [[Replicas(4, clock=clock, seed=seed).pick(1) for _ in range(1)] for seed in range(200)]
    assert min(Counter(draw[0] for draw in draws).values()) > 20
    one, same = Replicas(4, clock=clock, seed=7), Replicas(4, clock=clock, seed=7)
    assert [one.pick(1) for _ in range(50)] == [same.pick(1) for _ in range(50)]


def test_a_failure_ejects_for_longer_each_time(clock: Clock) -> None:
    replicas = Replicas(1, clock=clock)
    for backoff in (0.25, 0.5, 1.0, 2.0, 2.0):
        replicas.failed(0)
        assert seconds_left(replicas, clock) == backoff
    replicas.succeeded(ticket := replicas.begin(0, 1))
    replicas.end(ticket)
    replicas.failed(0)
    assert seconds_left(replicas, clock) == 0.25


def test_one_outage_counts_once(clock: Clock) -> None:
    replicas = Replicas(1, clock=clock)
    for _ in range(10):
        replicas.failed(0)
    assert seconds_left(replicas, clock) == 0.25


def test_a_trial_is_a_single_request(clock: Clock) -> None:
    replicas = Replicas(2, clock=clock)
    replicas.failed(0)
    replicas.failed(1)
    clock.now += 1
    replicas.begin(0, 1)
    assert replicas.pick(1) == 1
    assert replicas.pick(1, exclude={1}) == DOWN
    assert not replicas.any_works()
    replicas.succeeded(replicas.begin(0, 1))
    assert replicas.pick(1, exclude={1}) == 0
    assert replicas.any_works()


def test_requests_that_began_before_a_fault_do_not_keep_a_trial_waiting(clock: Clock) -> None:
    replicas = Replicas(1, clock=clock)
    hanging = replicas.begin(0, 1)
    replicas.failed(0)
    clock.now += 1
    assert replicas.to_probe() == [0]
    assert replicas.pick(1) == 0
    trial = replicas.begin(0, 1)
    assert replicas.pick(1) == DOWN
    replicas.end(hanging)
    assert replicas.pick(1) == DOWN
    replicas.end(trial)
    assert replicas.pick(1) == 0, "a trial that was called off says nothing"


def test_a_pause_is_kept_and_ended_by_a_trial(clock: Clock) -> None:
    replicas = Replicas(1, clock=clock)
    assert replicas.paused(0, 3.0) == 3.0
    assert replicas.pick(1) == Wait(busy=False, hold=3.0)
    clock.now += 3
    assert replicas.pick(1) == 0
    replicas.begin(0, 1)
    assert replicas.pick(1) == Wait(busy=True, hold=None)
    replicas.succeeded(replicas.begin(0, 1))
    assert replicas.pick(1) == 0


def test_a_success_that_began_before_a_fault_says_nothing(clock: Clock) -> None:
    replicas = Replicas(2, clock=clock)
    early = [replicas.begin(index, 1) for index in (0, 1)]
    clock.now += 1
    replicas.failed(0)
    replicas.paused(1, 2.0)
    assert not any(replicas.succeeded(ticket) for ticket in early)
    assert replicas.pick(1) == Wait(busy=False, hold=2.0)
    assert replicas.succeeded(replicas.begin(0, 1))
    assert not replicas.succeeded(replicas.begin(1, 1))
    assert [replicas.pick(1) for _ in range(9)] == [0] * 9, "a pause is kept in any case"


def test_a_failed_server_is_probed_before_it_gets_work_that_others_can_do(clock: Clock) -> None:
    replicas = Replicas(2, clock=clock)
    replicas.failed(0)
    assert replicas.to_probe() == []
    clock.now += 1
    assert replicas.to_probe() == [0]
    replicas.begin(1, 5)
    assert replicas.pick(1) == 1
    check = replicas.begin(0, 0)
    assert replicas.to_probe() == []
    replicas.end(check)
    replicas.probed(0)
    assert replicas.to_probe() == []
    assert replicas.pick(1) == 0
    replicas.failed(0)
    clock.now += 1
    assert replicas.to_probe() == [0]


def test_a_pause_without_an_end_is_short_and_a_long_one_is_cut(clock: Clock) -> None:
    replicas = Replicas(2, clock=clock)
    assert replicas.paused(0, None) == 0.25
    assert replicas.paused(0, None) == 0.25
    clock.now += 0.25
    assert replicas.paused(0, None) == 0.5
    assert replicas.paused(1, 1e9) == LONGEST_HOLD
    assert replicas.pick(1) == Wait(busy=False, hold=0.5)


def test_a_pause_is_not_shortened(clock: Clock) -> None:
    replicas = Replicas(1, clock=clock)
    replicas.paused(0, 5.0)
    assert replicas.paused(0, 1.0) == 5.0


def test_a_server_whose_callers_wait_in_vain_is_probed_and_asked_last(clock: Clock) -> None:
    replicas = Replicas(2, clock=clock)
    replicas.begin(1, 9)
    for verdict in (replicas.probed, lambda index: replicas.succeeded(replicas.begin(index, 0))):
        for _ in range(MISSES - 1):
            replicas.missed(0)
        assert (replicas.to_probe(), replicas.pick(1)) == ([], 0)
        replicas.missed(0)
        assert (replicas.to_probe(), replicas.pick(1)) == ([0], 1)
        assert replicas.pick(1, exclude={1}) == 0, "where nobody else can, it may be asked"
        verdict(0)
        assert (replicas.to_probe(), replicas.pick(1)) == ([], 0)
    assert replicas.any_works()


def test_callers_are_counted_anew_after_a_pause(clock: Clock) -> None:
    replicas = Replicas(1, clock=clock)
    for _ in range(MISSES):
        replicas.missed(0)
    replicas.paused(0, 0.1)
    clock.now += 1
    assert replicas.to_probe() == []


def test_callers_are_counted_anew_after_any_answer(clock: Clock) -> None:
    replicas = Replicas(1, clock=clock)
    early = replicas.begin(0, 1)
    clock.now += 1
    replicas.paused(0, 1.0)
    for _ in range(MISSES):
        replicas.missed(0)
    assert not replicas.succeeded(early), "the pause is kept"
    replicas.end(early)
    clock.now += 1
    assert replicas.to_probe() == []


def test_a_failure_ends_a_pause(clock: Clock) -> None:
    replicas = Replicas(1, clock=clock)
    replicas.paused(0, 9.0)
    replicas.failed(0)
    assert not replicas.any_works()
    clock.now += 1
    assert replicas.pick(1) == 0


def test_no_more_is_under_way_than_a_server_takes(clock: Clock) -> None:
    replicas = Replicas(1, requests=2, clock=clock)
    replicas.limit(0, 10)
    large = replicas.begin(0, 6)
    assert replicas.pick(4) == 0
    assert replicas.pick(5) == Wait(busy=True, hold=None)
    small = replicas.begin(0, 1)
    assert replicas.pick(1) == Wait(busy=True, hold=None)
    replicas.end(large)
    replicas.end(small)
    assert replicas.pick(11) == 0, "what is too much for any moment is at least tried alone"
