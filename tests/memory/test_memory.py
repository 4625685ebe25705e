"""When a prior is learned, when it is in force, whose requests count, and that a memory survives writing."""

from collections import Counter
from dataclasses import replace

import numpy as np
import orjson
import pytest
from pydantic import ValidationError

from boundarymorph.memory.memory import (
    ALL_LOOKS,
    AUDITS,
    LOOKS,
    Audited,
    Memory,
    Observation,
    log_likelihoods,
    observations_of_json,
    observations_to_json,
    prior_of_json,
)
from boundarymorph.selection.pool import DEFAULT_PRIOR, TrendPrior
from boundarymorph.selection.promise import Audit, Look
from boundarymorph.settings.sections import MemorySettings
from tests.memory.test_fitting import LEARNED, drawn, evidence_of

OTHER = replace(LEARNED, level=4.0, similarity=-0.8, words=-0.5)
MOST = 32


def after(memory: Memory, rng: np.random.Generator, prior: TrendPrior, count: int, caller: str = "one") -> Memory:
    for _ in range(count):
        memory = memory.record([Observation(evidence_of(*drawn(rng, prior)), caller)], MOST)
        if memory.due:
            memory = memory.taking(memory.learn())
    return memory


def test_ten_requests_teach_a_prior_which_is_in_force() -> None:
    rng = np.random.default_rng(0)
    nine = after(Memory(), rng, LEARNED, 9)
    assert nine.prior is None and not nine.in_force
    ten = after(nine, rng, LEARNED, 1)
    assert ten.in_force and ten.learned_at == 10
    assert ten.prior is not None and ten.prior.level == pytest.approx(LEARNED.level, abs=1.5)


def test_it_is_learned_anew_at_twenty_and_forty_and_then_each_sixty_four() -> None:
    rng = np.random.default_rng(0)
    memory, learned = Memory(), Counter[int]()
    for _ in range(170):
        memory = after(memory, rng, LEARNED, 1)
        learned[memory.learned_at] += 1
    assert [number for number in learned if number] == [10, 20, 40, 104, 168]


def test_what_the_default_predicts_as_well_is_not_in_force() -> None:
    memory = after(Memory(), np.random.default_rng(0), DEFAULT_PRIOR, 40)
    assert memory.prior is not None
    assert not memory.in_force


@pytest.mark.parametrize(
    "other", [OTHER, replace(LEARNED, level=1.0), replace(LEARNED, rank=-0.1, similarity=-0.9, words=-0.6)]
)
@pytest.mark.parametrize("seed", range(3))
def test_another_scorer_puts_it_out_of_force_within_seven_requests(other: TrendPrior, seed: int) -> None:
    """Of other scores, of another level alone, or in another order alone."""
    rng = np.random.default_rng(seed)
    memory = after(Memory(), rng, LEARNED, 40)
    assert memory.in_force
    states = []
    for _ in range(50):
        memory = memory.record([Observation(evidence_of(*drawn(rng, other)), "one")], MOST)
        states.append(memory.in_force)
    assert not any(states[7:])


@pytest.mark.parametrize("seed", range(3))
def test_the_wrong_order_puts_it_out_of_force_though_the_level_is_right(seed: int) -> None:
    rng = np.random.default_rng(seed)
    turned = replace(LEARNED, rank=-0.1, similarity=-0.9, words=-0.6, slope_deviation=1.0, words_deviation=1.0)
    memory = after(Memory(), rng, LEARNED, 40)
    memory = replace(memory, prior=turned)
    told = [evidence_of(*drawn(rng, LEARNED)) for _ in range(4)]
    assert (log_likelihoods(turned, told) - log_likelihoods(DEFAULT_PRIOR, told)).mean() > -2.0
    assert memory.in_force
    assert not memory.record([Observation(one, "one") for one in told], MOST).in_force


def test_what_a_memory_knows_of_its_own_scorer_stays_in_force() -> None:
    memory, in_force = Memory(), 0
    rng = np.random.default_rng(0)
    for _ in range(200):
        memory = after(memory, rng, LEARNED, 1)
        in_force += memory.in_force
    assert in_force >= 188


@pytest.mark.parametrize("seed", range(3))
def test_one_caller_does_not_keep_in_force_what_is_wrong_for_others(seed: int) -> None:
    """One key fills the memory, and goes on with three of four requests, as the prior says; others are unlike it."""
    rng = np.random.default_rng(seed)
    memory = after(Memory(), rng, OTHER, 64, "hostile")
    assert memory.in_force
    wrong = []
    for number in range(50):
        memory = after(memory, rng, OTHER, 3, "hostile")
        told = evidence_of(*drawn(rng, LEARNED))
        prior = memory.prior if memory.in_force else DEFAULT_PRIOR
        assert prior is not None
        wrong.append(bool(log_likelihoods(prior, [told])[0] < log_likelihoods(DEFAULT_PRIOR, [told])[0] - 1.0))
        memory = memory.record([Observation(told, f"honest {number % 5}")], MOST)
    assert wrong[0] and sum(wrong) <= 5


def test_one_caller_has_a_quarter_of_it_at_most_where_there_are_others() -> None:
    rng = np.random.default_rng(0)
    memory = after(Memory(), rng, LEARNED, 40, "alone")
    assert len(memory.observations) == MOST
    memory = after(memory, rng, LEARNED, 8, "other")
    memory = after(memory, rng, OTHER, 100, "hostile")
    assert Counter(one.caller for one in memory.observations)["hostile"] <= MOST // 4
    assert memory.requests == 148 and len(memory.observations) <= MOST


def test_a_memory_is_read_as_it_was_written_and_is_small() -> None:
    memory = after(Memory(), np.random.default_rng(0), LEARNED, 40)
    written = orjson.dumps(memory.to_json())
    assert len(written) < 256_000 * MOST / 512
    read = Memory.of_json(orjson.loads(written))
    assert orjson.dumps(read.to_json()) == written
    assert (read.in_force, read.prior, read.due) == (memory.in_force, memory.prior, memory.due)
    more = [Observation(evidence_of(*drawn(np.random.default_rng(1), OTHER)), "two")]
    assert read.record(more, MOST).ahead == pytest.approx(memory.record(more, MOST).ahead, rel=1e-4)


def test_requests_are_read_as_they_were_written() -> None:
    rng = np.random.default_rng(0)
    given = [Observation(evidence_of(*drawn(rng, LEARNED, 5 + number)), f"c{number}") for number in range(3)]
    given[1] = replace(given[1], evidence=replace(given[1].evidence, graded=True))
    read = observations_of_json(orjson.loads(orjson.dumps(observations_to_json(given))))
    assert observations_of_json([]) == observations_to_json([]) == []
    assert [one.caller for one in read] == ["c0", "c1", "c2"]
    for one, other in zip(given, read, strict=True):
        np.testing.assert_allclose(other.evidence.products, one.evidence.products, rtol=1e-12)
        np.testing.assert_array_equal(other.evidence.loads, one.evidence.loads)
        assert (other.evidence.square, other.evidence.count) == (one.evidence.square, one.evidence.count)
        assert other.evidence.graded is one.evidence.graded


@pytest.mark.parametrize(
    "wrong",
    [
        {0: "c" * 65},
        {2: 0},
        {2: None},
        {3: float("nan")},
        {4: "none"},
        {8: -1.0, 9: 0.0, 10: 0.0, 11: 0.0},
        {8: float("inf")},
        slice(1, None),
        slice(0),
    ],
)
def test_one_request_that_cannot_be_is_refused_among_others(wrong: dict[int, object] | slice) -> None:
    rng = np.random.default_rng(0)
    rows = observations_to_json([Observation(evidence_of(*drawn(rng, LEARNED)), "c") for _ in range(3)])
    if isinstance(wrong, slice):
        rows[1] = rows[1][wrong]
    else:
        rows[1] = [wrong.get(place, value) for place, value in enumerate(rows[1])]
    with pytest.raises((TypeError, ValueError)):
        observations_of_json(rows)


def test_requests_recorded_together_are_as_one_after_another() -> None:
    rng = np.random.default_rng(0)
    memory = after(Memory(), rng, LEARNED, 12)
    given = [Observation(evidence_of(*drawn(rng, OTHER)), f"c{number % 2}") for number in range(30)]
    one_by_one = memory
    for one in given:
        one_by_one = one_by_one.record([one], MOST)
    together = memory.record(given, MOST)
    assert together.observations == one_by_one.observations and together.requests == one_by_one.requests == 42
    assert (together.ahead, together.weight) == pytest.approx((one_by_one.ahead, one_by_one.weight), rel=1e-9)


@pytest.mark.parametrize("length", [15, LOOKS])
def test_the_largest_memory_has_256_kilobytes_at_most(length: int) -> None:
    rng, most = np.random.default_rng(0), 384
    given = [Observation(evidence_of(*drawn(rng, LEARNED, 200)), f"{number % 9:016}") for number in range(most)]
    looks = tuple(Look(calls, 0.001 / (3 + calls), 0.001 / (7 + calls)) for calls in range(1_000, 1_000 + length))
    memory = replace(Memory().record(given, most), prior=LEARNED)
    for number in range(AUDITS):
        memory = memory.record_audit(Audited("k = 1000, relevance to the scorer", Audit(looks), f"{number % 9:016}"))
    assert len(memory.observations) == most
    assert len(memory.audits) == min(AUDITS, ALL_LOOKS // length)
    assert len(orjson.dumps(memory.to_json())) <= 256_000
    with pytest.raises(ValidationError):
        MemorySettings(requests=most + 1)


@pytest.mark.parametrize("wrong", [{"scale": 0.0}, {"level": float("inf")}, {"unknown": 1.0}, {"words_deviation": -1}])
def test_numbers_that_are_no_prior_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises((TypeError, ValueError)):
        prior_of_json({"level": -3.0, **wrong})
