"""What real gateways tell the memory of their retriever, while processes are killed and indexes restored, against two
bounds on how many selections it knows."""

from __future__ import annotations

import tempfile
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from boundarymorph.memory.memory import FIRST, REQUESTS
from tests.ports import free_port
from tests.stateful.profile import draws
from tests.system.service import Service, boundarymorph, retriever, scorer, service

DOCUMENTS = [{"id": f"d{n}", "text": f"text {n} on {n % 7}"} for n in range(40)]
ENVIRONMENT = {"BOUNDARYMORPH_MEMORY__ENABLED": "true"}
gateways = st.integers(0, 1)


class MemoriesMachine(RuleBasedStateMachine):
    """least, most: selections that the memory knows; exact: whether none can have been lost since they were equal;
    quiet: whether gateways have told all."""

    @initialize()
    def start(self) -> None:
        self.left = ExitStack()
        self.folder = Path(self.left.enter_context(tempfile.TemporaryDirectory()))
        self.running: dict[str, tuple[AbstractContextManager[Service], Service]] = {}
        self.ports = {name: free_port() for name in ("retriever", "scorer", "0", "1")}
        self.begin("retriever", retriever(self.folder / "data", port=self.ports["retriever"]))
        self.begin("scorer", scorer(self.folder / "scorer.log", port=self.ports["scorer"]))
        for name in ("0", "1"):
            self.begin(name, self.gateway(name))
        self.least = self.most = self.number = self.saved = 0
        self.exact, self.quiet, self.snapshots = True, False, 0
        self.fill()

    def begin(self, name: str, process: AbstractContextManager[Service]) -> None:
        self.running[name] = process, process.__enter__()

    def end(self, name: str, *, killed: bool = False) -> None:
        process, running = self.running.pop(name)
        if not killed:
            assert running.stop() == 0
        process.__exit__(None, None, None)

    def gateway(self, name: str) -> AbstractContextManager[Service]:
        urls = (f"http://127.0.0.1:{self.ports[role]}" for role in ("retriever", "scorer"))
        options = [option for pair in zip(("--retriever-url", "--scorer-url"), urls, strict=True) for option in pair]
        (self.folder / name).mkdir(exist_ok=True)
        return service(self.folder / name / "data", *options, port=self.ports[name], environment=ENVIRONMENT)

    def client(self, name: int = 0) -> Service:
        return self.running[str(name)][1]

    def fill(self) -> None:
        self.client().fill("texts", DOCUMENTS, encoder="none")

    def memory(self) -> dict[str, Any]:
        memories = self.client().client.get("/indexes/texts/learned").json()["memories"]
        assert len(memories) <= 1
        return dict(memories[0]) if memories else {"requests": 0, "remembered": 0, "in_force": False}

    @rule(gateway=gateways, count=st.integers(1, 8))
    def ask(self, gateway: int, count: int) -> None:
        self.quiet = False
        for _ in range(count):
            self.number, self.most = self.number + 1, self.most + 1
            query = f"text {self.number} on 3"
            found = self.client(gateway).select(query=query, index="texts", k=4, budget=8, relevance="scorer")
            assert found["learned_from"] == 0 or FIRST <= found["learned_from"] <= self.most

    @rule()
    def tell(self) -> None:
        """Gateways that are asked to stop tell first."""
        for name in ("0", "1"):
            self.end(name)
            self.begin(name, self.gateway(name))
        known = self.memory()["requests"]
        assert known == self.most if self.exact else self.least <= known <= self.most
        self.least, self.most, self.exact, self.quiet = known, known, True, True

    @rule(name=st.sampled_from(["0", "1", "retriever"]))
    def kill(self, name: str) -> None:
        self.end(name, killed=True)
        self.begin(
            name,
            retriever(self.folder / "data", port=self.ports[name]) if name == "retriever" else self.gateway(name),
        )
        self.exact = False

    @precondition(lambda self: self.quiet)
    @rule()
    def save(self) -> None:
        self.saved, self.snapshots = self.most, self.snapshots + 1
        self.of_index("snapshot", "--to")

    @precondition(lambda self: self.snapshots and self.quiet)
    @rule()
    def restore(self) -> None:
        assert self.client().client.delete("/indexes/texts").is_success
        self.of_index("restore", "--from")
        self.least = self.most = self.saved

    def of_index(self, what: str, option: str) -> None:
        folder = str(self.folder / f"copy {self.snapshots}")
        done = boundarymorph("index", what, "texts", option, folder, data=self.folder / "data")
        assert done.returncode == 0, done.stderr

    @rule(whole=st.booleans())
    def forget(self, whole: bool) -> None:
        """What gateways have not told yet may come later."""
        untold = self.most - self.least
        assert self.client().client.delete(f"/indexes/texts{'' if whole else '/learned'}").is_success
        if whole:
            self.fill()
        self.least, self.most = 0, untold
        self.exact = self.exact and untold == 0

    @invariant()
    def nothing_is_lost_or_made_up(self) -> None:
        if not self.running:
            return
        memory = self.memory()
        assert self.least <= memory["requests"] <= self.most
        self.least = max(self.least, memory["requests"])
        assert memory["remembered"] == min(memory["requests"], REQUESTS)
        assert memory["requests"] >= FIRST or not memory["in_force"]

    def teardown(self) -> None:
        for name in list(self.running):
            self.end(name, killed=True)
        self.left.close()


TestMemories = MemoriesMachine.TestCase
TestMemories.settings = draws(5, 20)


def test_what_gateways_know_when_they_stop_is_told_and_kept() -> None:
    machine = MemoriesMachine()
    machine.start()
    try:
        machine.ask(0, 5)
        machine.ask(1, 6)
        machine.tell()
        machine.save()
        machine.kill("retriever")
        machine.ask(0, 3)
        machine.forget(whole=False)
        machine.tell()
        machine.restore()
        machine.nothing_is_lost_or_made_up()
        assert machine.memory()["requests"] == 11
    finally:
        machine.teardown()
