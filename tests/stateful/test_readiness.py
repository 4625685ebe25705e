"""Readiness, over random histories of probes that answer, fail, hang, and end late."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from boundarymorph.errors import Overloaded, ScorerUnavailable
from boundarymorph.server.readiness import Readiness
from tests.stateful.profile import draws

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("retriever", "scorer")
OUTCOMES: dict[str, Exception | None] = {
    "well": None,
    "busy": Overloaded("much to do"),
    "away": ScorerUnavailable("gone"),
    "broken": ValueError(),
}
DETAIL = {"well": None, "busy": None, "away": "gone", "broken": "ValueError()"}


class ReadinessMachine(RuleBasedStateMachine):
    """The model: by part, its last outcome, and since when it answers or not."""

    @initialize()
    def start(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.seconds = 0
        self.held: dict[str, asyncio.Future[None]] = {}
        self.at_once = dict.fromkeys(NAMES, 0)
        self.round: asyncio.Task[None] | None = None
        self.real = Readiness(
            {name: self._probe(name) for name in NAMES},
            interval=1,
            timeout=1e6,
            now=lambda: EPOCH + timedelta(seconds=self.seconds),
        )
        self.last = dict.fromkeys(NAMES, "well")
        self.since = dict.fromkeys(NAMES, 0)

    def _probe(self, name: str) -> Any:
        async def probe(deadline: float) -> None:
            assert name not in self.held, "it is asked twice at a time"
            self.held[name] = asyncio.get_running_loop().create_future()
            try:
                await self.held[name]
            finally:
                del self.held[name]

        return probe

    @rule(seconds=st.integers(1, 5))
    def time_goes_on(self, seconds: int) -> None:
        self.seconds += seconds

    @rule()
    def ask(self) -> None:
        """As `follow` does: the next round begins when the last has ended."""
        if self.round is None:
            self.round = self.loop.create_task(self.real.ask())
            self._run()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), outcome=st.sampled_from([*OUTCOMES, "hangs"]))
    def answers(self, data: Any, outcome: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        error = TimeoutError() if outcome == "hangs" else OUTCOMES[outcome]
        if error is None:
            self.held[name].set_result(None)
        else:
            self.held[name].set_exception(error)
        self._run()
        if (outcome in ("well", "busy")) != (self.last[name] in ("well", "busy")):
            self.since[name] = self.seconds
        self.last[name] = outcome
        if not self.held:
            assert self.round is not None and self.round.done()
            self.round.result()
            self.round = None

    @invariant()
    def each_part_is_as_its_last_probe_left_it(self) -> None:
        if not hasattr(self, "real"):
            return
        away = []
        for name, part in self.real.parts.items():
            detail = DETAIL.get(self.last[name], "no answer in 1e+06 seconds")
            assert (part.status, part.detail) == ("ok" if detail is None else "away", detail)
            assert part.since == EPOCH + timedelta(seconds=self.since[name])
            away += [] if detail is None else [f"{name}: {detail}"]
        assert self.real.missing == ("; ".join(away) or None)

    def _run(self) -> None:
        """What can be done now."""
        for _ in range(10):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            if self.round is not None:
                self.round.cancel()
            self._run()
            self.loop.close()


TestReadiness = ReadinessMachine.TestCase
TestReadiness.settings = draws(20, 25)
