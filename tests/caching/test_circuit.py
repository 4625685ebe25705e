import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boundarymorph.caching.redis import CircuitBreaker, State
from tests.clocks import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def circuit(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker(failures=3, clock=clock)


def state(circuit: CircuitBreaker) -> State:
    return circuit.state  # mypy takes the attribute for a constant


def admitted(circuit: CircuitBreaker) -> int:
    ticket = circuit.admit()
    assert ticket is not None
    return ticket


def fail(circuit: CircuitBreaker, times: int = 1) -> None:
    for _ in range(times):
        circuit.failed(admitted(circuit))


def test_circuit_opens_after_consecutive_failures(circuit: CircuitBreaker) -> None:
    fail(circuit, 2)
    circuit.succeeded(admitted(circuit))
    fail(circuit, 2)
    assert state(circuit) is State.CLOSED
    fail(circuit)
    assert state(circuit) is State.OPEN
    assert circuit.admit() is None


def test_circuit_counts_concurrent_failures_as_one(circuit: CircuitBreaker) -> None:
    for _ in range(2):
        for ticket in [admitted(circuit) for _ in range(10)]:
            circuit.failed(ticket)
        assert state(circuit) is State.CLOSED
    early = admitted(circuit)
    fail(circuit)
    assert state(circuit) is State.OPEN
    circuit.succeeded(early)
    assert state(circuit) is State.OPEN


def test_circuit_closes_after_one_successful_trial(circuit: CircuitBreaker, clock: Clock) -> None:
    fail(circuit, 3)
    clock.now += 1
    assert state(circuit) is State.HALF_OPEN
    trial = admitted(circuit)
    assert circuit.admit() is None
    assert state(circuit) is State.HALF_OPEN
    circuit.succeeded(trial)
    assert state(circuit) is State.CLOSED
    fail(circuit, 2)
    assert state(circuit) is State.CLOSED


def test_circuit_pauses_double_up_to_a_bound_and_start_again(circuit: CircuitBreaker, clock: Clock) -> None:
    fail(circuit, 3)
    for pause in (1, 2, 4, 8, 16, 30, 30):
        clock.now += pause - 0.5
        assert circuit.admit() is None
        clock.now += 0.5
        fail(circuit)
    clock.now += 30
    circuit.succeeded(admitted(circuit))
    fail(circuit, 3)
    clock.now += 1
    assert circuit.admit() is not None


def test_circuit_ignores_late_answers(circuit: CircuitBreaker, clock: Clock) -> None:
    early = admitted(circuit)
    fail(circuit, 3)
    circuit.succeeded(early)
    assert state(circuit) is State.OPEN
    clock.now += 1
    trial = admitted(circuit)
    circuit.failed(early)
    circuit.succeeded(early)
    circuit.abandoned(early)
    assert state(circuit) is State.HALF_OPEN
    assert circuit.admit() is None
    circuit.succeeded(trial)
    circuit.failed(early)
    assert state(circuit) is State.CLOSED


@settings(max_examples=50)
@given(st.lists(st.sampled_from(["admit", "succeeded", "failed", "abandoned", "wait"]), max_size=60))
def test_circuit_always_closes_again_after_a_success(steps: list[str]) -> None:
    clock = Clock()
    circuit = CircuitBreaker(failures=2, clock=clock)
    tickets: list[int] = []
    for step in steps:
        if step == "wait":
            clock.now += 1
        elif step == "admit":
            ticket = circuit.admit()
            if ticket is not None:
                tickets.append(ticket)
        elif tickets:
            getattr(circuit, step)(tickets.pop(0))
    for ticket in tickets:
        circuit.failed(ticket)
    clock.now += 30
    circuit.succeeded(admitted(circuit))
    assert state(circuit) is State.CLOSED
