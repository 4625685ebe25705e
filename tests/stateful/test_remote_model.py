"""A remote scorer in front of simulated servers that die, hang, are busy and change their model, in virtual time."""

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

import aiohttp
import orjson
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from yarl import URL

from boundarymorph.errors import DeadlineExceeded, Overloaded, ScorerFailed, ScorerUnavailable
from boundarymorph.remote.balancer import MOST_BACKOFF
from boundarymorph.remote.model import GRACE
from boundarymorph.remote.peer import Peer
from boundarymorph.scoring.remote import RemoteScorer, parse
from tests.clocks import VirtualLoop
from tests.stateful.profile import draws

ATTEMPT = 1.0  # seconds that a request may take by itself
LATENCY = 0.05  # seconds that a server takes
HURRY, PATIENCE = 0.02, 8.0  # seconds that callers wait
TEXTS = [f"text {number}" for number in range(6)]
STATES = ["well", "dead", "hangs", "frozen", "busy", "broken"]  # one that is frozen does not describe itself either


def score_of(model: str, text: str) -> float:
    return hashlib.blake2b(f"{model} {text}".encode()).digest()[0] / 255


@dataclass
class Answer:
    """Of a simulated server, as far as peers read one of aiohttp."""

    status: int
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)

    content_length = 0

    async def read(self) -> bytes:
        return orjson.dumps(self.body)


class Server:
    """What Text Embeddings Inference would answer, in place of a peer's session.

    connected: which each restart ends.
    """

    def __init__(self, model: str, peer: Peer) -> None:
        self.state, self.model = "well", model
        self.connected = False
        self._peer = peer

    async def request(self, method: str, url: URL, *, data: BinaryIO | None, **_: object) -> Answer:
        if self.state == "dead":
            self.connected = False
            raise aiohttp.ConnectionTimeoutError("nobody there")
        if not self.connected:
            self.connected = True
            await self._peer._connections._count()
        if self.state == "frozen" or (self.state == "hangs" and method == "POST"):
            await asyncio.Event().wait()
        if data is None:
            return Answer(200, {"model_id": self.model, "max_client_batch_size": 4})
        model = self.model
        await asyncio.sleep(LATENCY)
        if self.state == "busy":
            return Answer(429, headers={"retry-after": "0.3"})
        if self.state != "well":
            return Answer(500)
        if not self.connected:
            raise aiohttp.ServerDisconnectedError
        texts = orjson.loads(data.read())["texts"]
        return Answer(200, [{"index": i, "score": score_of(model, text)} for i, text in enumerate(texts)])

    async def close(self) -> None:
        pass


class RemoteModelMachine(RuleBasedStateMachine):
    """settled: nothing has changed for so long that what works must be known."""

    @initialize(count=st.integers(1, 3), seed=st.integers(0, 9))
    def start(self, count: int, seed: int) -> None:
        self.loop = VirtualLoop()
        endpoints = [parse(f"tei://server{number}:1") for number in range(count)]
        self.works = dict[str, bool]()
        self.scorer = RemoteScorer(
            endpoints,
            timeout=PATIENCE,
            attempt_timeout=ATTEMPT,
            clock=self.loop.time,
            seed=seed,
            on_change=self.works.__setitem__,
        )
        self.servers = [Server("hub/a", peer) for peer in self.scorer._servers]
        for peer, server in zip(self.scorer._servers, self.servers, strict=True):
            peer._connections._session = cast(aiohttp.ClientSession, server)
        self.settled = True

    @rule(data=st.data(), state=st.sampled_from(STATES))
    def becomes(self, data: Any, state: str) -> None:
        server = data.draw(st.sampled_from(self.servers))
        if state != server.state:
            server.state, self.settled = state, False

    @rule(data=st.data(), model=st.sampled_from(["hub/a", "hub/b"]), restarts=st.booleans())
    def changes_its_model(self, data: Any, model: str, restarts: bool) -> None:
        server = data.draw(st.sampled_from(self.servers))
        if model != server.model:
            server.model, server.connected, self.settled = model, False, False
            if restarts:
                server.state = "dead"

    @rule(seconds=st.sampled_from([0.1, 0.5, 3.0]))
    def time_goes_on(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    @rule(waits=st.lists(st.sampled_from([HURRY, 0.2, PATIENCE]), min_size=1, max_size=6))
    def ask(self, waits: list[float]) -> None:
        """Several callers at a time."""

        async def all_of_them() -> list[bool]:
            return await asyncio.gather(*(self._call(seconds) for seconds in waits))

        answered = self.loop.run_until_complete(all_of_them())
        in_use = self.scorer.identity
        if self.settled and any(server.state == "well" and server.model == in_use for server in self.servers):
            wanted = [done for done, seconds in zip(answered, waits, strict=True) if seconds == PATIENCE]
            assert all(wanted), "a caller with time was told that nobody works"

    @rule()
    def settle(self) -> None:
        """After some time, in which callers come and go, all is known."""

        async def some_time() -> None:
            await asyncio.sleep(MOST_BACKOFF)  # as long as a server may be left alone
            for _ in range(16):
                await asyncio.gather(self._call(PATIENCE), self._call(HURRY))
                await asyncio.sleep(0.5)

        self.loop.run_until_complete(some_time())
        self.settled = True
        if any(server.state == "well" for server in self.servers):
            models = [server.model for server in self.servers if server.state in ("well", "busy")]
            assert str(self.scorer.identity) in models, "no server that works serves the model in use"
        for server, works in zip(self.servers, self.works.values(), strict=True):
            if server.state == "well" and server.model == self.scorer.identity:
                assert works, "a server that works is said to be away"

    async def _call(self, seconds: float) -> bool:
        """Whether it got its scores, by the deadline and all of one model."""
        deadline = self.loop.time() + seconds
        try:
            scores = await self.scorer.score("q", TEXTS, deadline=deadline)
        except (DeadlineExceeded, Overloaded, ScorerUnavailable, ScorerFailed):
            return False
        finally:
            assert self.loop.time() <= deadline + GRACE + 1e-6, "it waited beyond its deadline"
        assert scores.values.tolist() == [score_of(str(scores.model), text) for text in TEXTS]
        return True

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.loop.run_until_complete(asyncio.sleep(3 * ATTEMPT + PATIENCE))
        members = self.scorer._balancer.replicas.values()
        assert not any(one.requests or one.texts or one.on_trial for one in members)
        self.loop.run_until_complete(self.scorer.close())
        self.loop.close()


TestRemoteModel = RemoteModelMachine.TestCase
TestRemoteModel.settings = draws(14, 20)


def test_a_server_that_had_another_model_for_long_returns_after_the_longest_back_off() -> None:
    machine = RemoteModelMachine()
    machine.start(count=3, seed=0)
    for model in ("hub/a", "hub/b", "hub/a"):
        machine.servers[2].model, machine.servers[2].connected = model, False
        for _ in range(6):
            machine.settle()
    machine.teardown()


def test_a_server_that_restarted_with_another_model_is_followed_while_it_is_overloaded() -> None:
    machine = RemoteModelMachine()
    machine.start(count=2, seed=0)
    machine.settle()
    for server, state in zip(machine.servers, ("busy", "well"), strict=True):
        server.state, server.model, server.connected = state, "hub/b", False
    machine.settle()
    assert machine.scorer.identity == "hub/b"
    machine.ask([PATIENCE])
    machine.teardown()
