"""Caches of scores against dictionaries: in this process, and in a real Redis shared by several."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from boundarymorph.caching import memory
from boundarymorph.caching.interfaces import CachedScore, ScoreCache, digest
from boundarymorph.caching.memory import MemoryScoreCache
from boundarymorph.caching.redis import RedisLink, RedisScoreCache, score_key
from tests.caching.servers import RedisServer
from tests.clocks import Clock
from tests.stateful.profile import draws

LIVE = 10  # seconds
FIELDS = 4
ROOM = 3_000  # bytes
models = st.sampled_from(["maker/model@1/fp32/512", "maker/model@2/fp32/512"])
queries = st.sampled_from(["trams", "violins"])
names = [digest(str(number)) for number in range(6)]
remembered = st.builds(
    CachedScore, st.floats(0, 1), st.booleans(), st.sampled_from([None, "a", "Ärzte 🙂", "d" * 255, "d" * 256])
)
batches = st.dictionaries(st.sampled_from(names), remembered, max_size=4)


def kept(score: CachedScore) -> CachedScore:
    return CachedScore(score.score, score.truncated, None if score.document == "d" * 256 else score.document)


class Machine(RuleBasedStateMachine):
    """Calls run on a loop of its own; `now` is the machine's own time."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()

    def run(self, call: Any) -> Any:
        return self.loop.run_until_complete(call)

    def teardown(self) -> None:
        self.loop.close()


class MemoryScoresMachine(Machine):
    """Whole queries may be gone, the least recently used first, and never more than the room there is."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.cache = MemoryScoreCache(ROOM, seconds_to_live=LIVE, clock=self.clock)
        self.model: dict[tuple[str, str], tuple[float, dict[bytes, CachedScore]]] = {}  # when it expires, and scores

    @rule(seconds=st.integers(1, LIVE))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @invariant()
    def bounded(self) -> None:
        assert 0 <= self.cache.kept_bytes <= ROOM

    def live(self, model: str, query: str) -> dict[bytes, CachedScore]:
        expires, scores = self.model.get((model, query), (0.0, {}))
        return scores if expires > self.clock.now else {}

    @rule(model=models, query=queries, scores=batches)
    def write(self, model: str, query: str, scores: dict[bytes, CachedScore]) -> None:
        self.recall(model, query)  # which tells whether it is gone
        self.run(self.cache.write(model, query, scores))
        if scores:
            known = self.live(model, query)
            expires = self.model[model, query][0] if known else self.clock.now + LIVE
            known = {text: one for text, one in known.items() if text not in scores}
            known |= {text: kept(one) for text, one in scores.items()}
            self.model[model, query] = (expires, dict(list(known.items())[-FIELDS:]))
            assert self.run(self.cache.recall(model, query)) == self.live(model, query)

    @rule(model=models, query=queries)
    def recall(self, model: str, query: str) -> None:
        recalled = self.run(self.cache.recall(model, query))
        if recalled:
            assert recalled == self.live(model, query)
            assert list(recalled) == list(self.live(model, query))
        else:
            self.model.pop((model, query), None)
        found = self.run(self.cache.read(model, query, names))
        assert found == [recalled.get(text) for text in names]


class SharedMachine(Machine):
    """Two processes over one Redis, in two namespaces, which know the same and lose nothing that is not expired.

    Time is that of the server, which can't be set: what should be over is made to be over by name.
    """

    server: RedisServer

    @initialize()
    def begin(self) -> None:
        self.server.flush()
        self.scores: dict[tuple[str, str, str], dict[bytes, CachedScore]] = {}
        self.clients: dict[tuple[int, str], ScoreCache] = {}
        self.links: list[RedisLink] = []
        for process in (0, 1):
            self.start(process)

    @rule(process=st.integers(0, 1))
    def start(self, process: int) -> None:
        """Anew, with connections of its own."""
        link = RedisLink(self.server.url, timeout=30)
        self.links.append(link)
        for namespace in ("", "blue"):
            cache = RedisScoreCache(link, seconds_to_live=LIVE * 1_000, namespace=namespace or None)
            self.clients[process, namespace] = cache

    @rule(
        process=st.integers(0, 1), namespace=st.sampled_from(["", "blue"]), model=models, query=queries, scores=batches
    )
    def write(self, process: int, namespace: str, model: str, query: str, scores: dict[bytes, CachedScore]) -> None:
        self.run(self.clients[process, namespace].write(model, query, scores))
        known = self.scores.setdefault((namespace, model, query), {})
        known |= {text: kept(one) for text, one in scores.items()}

    @rule(process=st.integers(0, 1), namespace=st.sampled_from(["", "blue"]), model=models, query=queries)
    def recall(self, process: int, namespace: str, model: str, query: str) -> None:
        cache, expected = self.clients[process, namespace], self.scores.get((namespace, model, query), {})
        assert self.run(cache.recall(model, query)) == expected
        assert self.run(cache.read(model, query, names)) == [expected.get(text) for text in names]

    @rule(namespace=st.sampled_from(["", "blue"]), model=models, query=queries, left=st.sampled_from([0, 5_000, None]))
    def expire(self, namespace: str, model: str, query: str, left: int | None) -> None:
        """As the time passes, or as a crash leaves it that came before the time to live was set."""
        key = score_key(model, query, namespace or None)
        with self.server.admin() as admin:
            if left is None:
                admin.persist(key)
            else:
                admin.pexpire(key, left * 1_000)
        if left == 0:
            self.scores.pop((namespace, model, query), None)

    @rule()
    def restart(self) -> None:
        """Of Redis, which forgets all."""
        self.server.flush()
        self.scores.clear()

    def teardown(self) -> None:
        for link in getattr(self, "links", []):
            self.run(link.close())
        super().teardown()


class EndOfLifeMachine(Machine):
    """Of one query in Redis, with its time to live: no write prolongs it, and each gives one to what has none."""

    server: RedisServer

    @initialize()
    def begin(self) -> None:
        self.server.flush()
        self.link = RedisLink(self.server.url, timeout=30)
        self.cache = RedisScoreCache(self.link, seconds_to_live=LIVE * 1_000)
        self.most: int | None = None  # seconds that are left at most; None while there is nothing

    @rule(scores=batches)
    def write(self, scores: dict[bytes, CachedScore]) -> None:
        self.run(self.cache.write("model", "query", scores))
        if scores:
            self.most = LIVE * 1_000 if self.most is None else min(self.most, LIVE * 1_000)

    @rule(left=st.sampled_from([50, 5_000, 50_000]))
    def change(self, left: int) -> None:
        with self.server.admin() as admin:
            if admin.expire(score_key("model", "query"), left):
                self.most = left

    @invariant()
    def ends_in_time(self) -> None:
        if hasattr(self, "most"):
            with self.server.admin() as admin:
                left = admin.pttl(score_key("model", "query"))
            assert left == -2 if self.most is None else 0 < left <= 1_000 * self.most

    def teardown(self) -> None:
        if hasattr(self, "link"):
            self.run(self.link.close())
        super().teardown()


@pytest.fixture(scope="module", autouse=True)
def _server() -> Iterator[None]:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "FIELDS", FIELDS)
        server = RedisServer(Path(folder))
        SharedMachine.server = EndOfLifeMachine.server = server
        yield
        server.kill()


TestMemoryScores = MemoryScoresMachine.TestCase
TestMemoryScores.settings = draws(40, 30)
TestShared = SharedMachine.TestCase
TestShared.settings = draws(12, 25)
TestEndOfLife = EndOfLifeMachine.TestCase
TestEndOfLife.settings = draws(8, 12)
