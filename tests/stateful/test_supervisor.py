"""The supervisor's policy with workers that die, fail and are told to stop at any time."""

import signal

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from boundarymorph.server.supervisor import FIRST_PAUSE, RestartPolicy
from tests.stateful.profile import draws

WORKERS, PATIENCE, RESTARTS, WINDOW = 2, 4.0, 2, 10.0
CALM = 6.0  # seconds in which workers only die, so that they do so more than once


class SupervisorMachine(RuleBasedStateMachine):
    """The model: since when each worker is away, when it died, and what has been asked of all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = RestartPolicy(WORKERS, patience=PATIENCE, restarts=RESTARTS, window=WINDOW)
        self.now = 0.0
        self.running: set[int] = set()
        self.deaths: dict[int, list[float]] = {worker: [] for worker in range(WORKERS)}
        self.signals = self.terminated = self.killed = 0
        self.stopped_at: float | None = None
        self.clean = True
        self.look()

    def stop(self) -> None:
        self.stopped_at = self.now if self.stopped_at is None else self.stopped_at

    def look(self) -> None:
        actions = self.policy.actions(self.now)
        due = {worker for worker in range(WORKERS) if worker not in self.running and self.is_due(worker)}
        assert set(actions.start) == (set() if self.stopped_at is not None else due)
        self.running |= set(actions.start)
        self.terminated += actions.terminate
        self.killed += actions.kill
        assert actions.kill <= (self.stopped_at is not None and self.now >= self.stopped_at + PATIENCE)
        self.clean &= not actions.kill

    def is_due(self, worker: int) -> bool:
        deaths = self.recent(worker)
        return not deaths or self.now >= deaths[-1] + FIRST_PAUSE * 2 ** (len(deaths) - 1)

    def recent(self, worker: int) -> list[float]:
        """Deaths that counted when it died last."""
        deaths = self.deaths[worker]
        return [death for death in deaths if death > deaths[-1] - WINDOW]

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.look()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), code=st.sampled_from([-signal.SIGKILL, -signal.SIGTERM, 0]))
    def die(self, data: st.DataObject, code: int) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.running))), code)

    @precondition(lambda self: self.running and self.now > CALM)
    @rule(data=st.data(), code=st.sampled_from([1, 143]))
    def fail(self, data: st.DataObject, code: int) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.running))), code)

    def end(self, worker: int, code: int) -> None:
        self.running.remove(worker)
        self.policy.ended(worker, code, self.now)
        if self.stopped_at is not None:
            self.clean &= code in (0, -signal.SIGTERM)
        elif code > 0:
            self.clean = False
            self.stop()
        else:
            self.deaths[worker].append(self.now)
            if len(self.recent(worker)) > RESTARTS:
                self.clean = False
                self.stop()

    @precondition(lambda self: self.now > CALM)
    @rule(number=st.sampled_from([signal.SIGTERM, signal.SIGINT]))
    def signal(self, number: signal.Signals) -> None:
        self.clean &= self.stopped_at is None
        self.policy.signal(number, self.now)
        self.stop()
        self.signals += 1

    @invariant()
    def the_code_says_whether_all_ended_in_order(self) -> None:
        assert (self.policy.code == 0) == self.clean

    @invariant()
    def it_is_over_when_all_have_ended(self) -> None:
        assert self.policy.stopping == (self.stopped_at is not None)
        assert self.policy.over == (self.policy.stopping and not self.running)

    def teardown(self) -> None:
        """Once told to stop, every signal is passed on, and who does not end is killed once."""
        if self.stopped_at is None:
            return
        for _ in range(self.signals + 1):
            self.look()
        assert max(1, self.signals) <= self.terminated <= self.signals + 1
        running = bool(self.running)
        self.now = max(self.now, self.stopped_at + PATIENCE)
        self.look()
        assert self.killed <= 1
        assert self.killed or not running


TestSupervisor = SupervisorMachine.TestCase
TestSupervisor.settings = draws(60, 30)
