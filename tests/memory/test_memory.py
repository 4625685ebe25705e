"""When a prior is learned, when it is in force, whose requests count, and that a memory survives writing."""

from collections import Counter
from dataclasses import replace

import numpy as np
import orjson
import pytest

from boundarymorph.memory.memory import Memory, evidence_of_json, evidence_to_json, prior_of_json
from boundarymorph.selection.prior import DEFAULT_PRIOR, Evidence, TrendPrior
from tests.memory.test_fitting import LEARNED, drawn, evidence_of

OTHER = replace(LEARNED, level=4.0, similarity=-0.8, words=-0.5)
MOST = 32


def after(memory: Memory, rng: np.random.Generator, prior: TrendPrior, count: int, caller: str = "one") -> Memory:
    for _ in range(count):
        memory = memory.hear(evidence_of(*drawn(rng, prior)), caller, MOST)
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


def test_it_is_learned_anew_at_twenty_and_forty_and_then_each_thirty_two() -> None:
    rng = np.random.default_rng(0)
    memory, learned = Memory(), Counter[int]()
    for _ in range(140):
        memory = after(memory, rng, LEARNED, 1)
        learned[memory.learned_at] += 1
    assert [number for number in learned if number] == [10, 20, 40, 72, 104, 136]


def test_what_the_default_predicts_as_well_is_not_in_force() -> None:
    memory = after(Memory(), np.random.default_rng(0), DEFAULT_PRIOR, 40)
    assert memory.prior is not None
    assert not memory.in_force


def test_another_scorer_puts_it_out_of_force_within_fifty_requests() -> None:
    rng = np.random.default_rng(0)
    memory = after(Memory(), rng, LEARNED, 40)
    assert memory.in_force
    states = []
    for _ in range(50):
        memory = memory.hear(evidence_of(*drawn(rng, OTHER)), "one", MOST)
        states.append(memory.in_force)
    assert not states[-1] and states.index(False) <= 8
    assert all(not state for state in states[states.index(False) :])


def test_one_caller_has_a_quarter_of_it_at_most_where_there_are_others() -> None:
    rng = np.random.default_rng(0)
    memory = after(Memory(), rng, LEARNED, 40, "alone")
    assert len(memory.told) == MOST
    memory = after(memory, rng, LEARNED, 8, "other")
    memory = after(memory, rng, OTHER, 100, "hostile")
    assert Counter(one.caller for one in memory.told)["hostile"] <= MOST // 4
    assert memory.requests == 148 and len(memory.told) <= MOST


def test_a_memory_is_read_as_it_was_written_and_is_small() -> None:
    memory = after(Memory(), np.random.default_rng(0), LEARNED, 40)
    written = orjson.dumps(memory.to_json())
    assert len(written) < 256_000 * MOST / 512
    read = Memory.of_json(orjson.loads(written))
    assert orjson.dumps(read.to_json()) == written
    assert (read.in_force, read.prior, read.due) == (memory.in_force, memory.prior, memory.due)


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": 0},
        {"loads": [1.0, 2.0]},
        {"square": float("nan")},
        {"products": [-1.0] + [0.0] * 9},
        {"products": "none"},
    ],
)
def test_sums_that_no_request_has_are_refused(wrong: dict[str, object]) -> None:
    right = evidence_to_json(evidence_of(*drawn(np.random.default_rng(0), LEARNED)))
    assert isinstance(evidence_of_json(right), Evidence)
    with pytest.raises((TypeError, ValueError)):
        evidence_of_json({**right, **wrong})


@pytest.mark.parametrize("wrong", [{"scale": 0.0}, {"level": float("inf")}, {"unknown": 1.0}, {"words_deviation": -1}])
def test_numbers_that_are_no_prior_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises((TypeError, ValueError)):
        prior_of_json({"level": -3.0, **wrong})
