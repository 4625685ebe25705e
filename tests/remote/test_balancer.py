"""Test the balancer without I/O: which server it calls, which model it uses, and its errors."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

import pytest

from boundarymorph.errors import DeadlineExceeded, Overloaded, ScorerFailed, ScorerUnavailable, TextTooLong
from boundarymorph.inference.concurrency import Deadline
from boundarymorph.remote.balancer import BACKOFF, LONGEST_PAUSE, PAUSE, Balancer, Role
from boundarymorph.remote.peer import OtherModel, Peer, ServerBusy, ServerUnavailable, UnusableAnswer
from tests.clocks import Clock
from tests.metrics import sample

Outcomes = Mapping[int, Exception]
NOWHERE = -1
ROLE = Role("scorer", ScorerUnavailable, ScorerFailed)


class Bench:
    """A balancer over servers that are never called.

    Attributes:
        works: Whether each server works, as the balancer reports it.
        asked: The number of requests.
        open: The requests in flight: the server of each, and its outcome.
    """

    def __init__(self, count: int, *, requests: int = 4, seed: int = 0) -> None:
        self.clock, self.asked = Clock(), 0
        self.running: list[asyncio.Task[None]] = []
        self.open: list[tuple[int, asyncio.Future[None]]] = []
        self.peers = [Peer(f"http://{number}", "scorer") for number in range(count)]
        self.balancer = Balancer(self.peers, ROLE, requests=requests, clock=self.clock, seed=seed)

    @property
    def works(self) -> list[bool]:
        up = [sample("boundarymorph_replica_up", role=ROLE.name, endpoint=peer.base) for peer in self.peers]
        return [value == 1 for value in up]

    async def ask(self, peer: Peer, outcomes: Outcomes) -> str:
        self.asked += 1
        if failure := outcomes.get(self.peers.index(peer)):
            raise failure
        return peer.base

    async def call(self, outcomes: Outcomes, seconds: float | None = None) -> str:
        deadline = None if seconds is None else Deadline(self.clock.now + seconds, self.clock)
        return await self.balancer.call(lambda peer: self.ask(peer, outcomes), deadline=deadline)

    async def begin(self, texts: int = 1) -> int:
        """Send a request that stays in flight, and return the place of its server."""

        async def ask(peer: Peer) -> None:
            outcome = asyncio.get_running_loop().create_future()
            self.open.append((self.peers.index(peer), outcome))
            await outcome

        before = len(self.open)
        self.running.append(
            asyncio.create_task(
                self.balancer.call(ask, texts=texts, deadline=Deadline(self.clock.now + 99, self.clock))
            )
        )
        await asyncio.sleep(0)
        return self.open[-1][0] if len(self.open) > before else NOWHERE

    async def end(self, place: int, failure: BaseException | None = None) -> None:
        """End a request by its number in the order of their starts."""
        outcome = self.open[place][1]
        outcome.set_result(None) if failure is None else outcome.set_exception(failure)
        for _ in range(4):
            await asyncio.sleep(0)

    async def eject(self, index: int) -> None:
        while self.works[index]:
            await self.call({index: ServerUnavailable("gone")})


async def test_balancer_refuses_a_server_with_another_model() -> None:
    bench = Bench(3)
    models = ["a", "a", "b"]

    async def ask(peer: Peer) -> str:
        bench.asked += 1
        bench.balancer.serves(peer, models[bench.peers.index(peer)])
        return peer.base

    for peer, model in zip(bench.peers[:2], models, strict=False):
        bench.balancer.serves(peer, model)
    with pytest.raises(OtherModel, match="http://2 serves b, but http://0 serves a"):
        bench.balancer.serves(bench.peers[2], "b")
    while bench.works[2]:
        assert await bench.balancer.call(ask) in ("http://0", "http://1")
    assert (bench.balancer.model, bench.works) == ("a", [True, True, False])
    before = bench.asked
    for _ in range(5):
        await bench.balancer.call(ask)
    assert bench.asked == before + 5, "it is left alone for a while"
    models[2] = "a"
    bench.clock.now += BACKOFF
    assert await bench.balancer.call(ask) == "http://2", "it has returned with the model in use"
    assert bench.works == [True, True, True]


async def test_balancer_changes_models_when_no_working_server_has_the_old() -> None:
    bench = Bench(3)
    models = ["a", "a", "a"]

    async def ask(peer: Peer) -> str:
        bench.balancer.serves(peer, models[bench.peers.index(peer)])
        return models[bench.peers.index(peer)]

    for peer in bench.peers:
        bench.balancer.serves(peer, "a")
    for updated in (0, 1):
        models[updated] = "b"
        while bench.works[updated]:
            assert await bench.balancer.call(ask) == "a"
    assert bench.works == [False, False, True]
    models[2] = "b"
    assert await bench.balancer.call(ask) == "b" == bench.balancer.model
    for _ in range(3):
        await bench.balancer.call(ask)
    assert bench.works == [True, True, True], "the refused ones are called again at once"


async def test_balancer_uses_another_model_when_servers_of_the_first_fail() -> None:
    bench, gone = Bench(2), False

    async def ask(peer: Peer) -> str:
        if peer is bench.peers[0] and gone:
            raise ServerUnavailable("gone")
        bench.balancer.serves(peer, "ab"[bench.peers.index(peer)])
        return "ab"[bench.peers.index(peer)]

    bench.balancer.serves(bench.peers[0], "a")
    while bench.works[1]:
        assert await bench.balancer.call(ask) == "a"
    bench.clock.now, gone = bench.clock.now + BACKOFF / 2, True
    assert await bench.balancer.call(ask) == "b" == bench.balancer.model
    assert bench.works == [False, True]


@pytest.mark.parametrize("seed", range(3))
async def test_balancer_picks_the_least_busy_server_and_breaks_ties_randomly(seed: int) -> None:
    bench, same = Bench(3, seed=seed), Bench(3, seed=seed)
    first = [await bench.begin(texts) for texts in (5, 3, 4)]
    assert sorted(first) == [0, 1, 2] and first == [await same.begin(texts) for texts in (5, 3, 4)]
    await bench.end(1)
    assert await bench.begin() == first[1]
    assert sorted([await bench.begin() for _ in range(3)]) == [0, 1, 2]
    drawn = Counter([await Bench(3, seed=other).begin() for other in range(90)])
    assert min(drawn.values()) > 10


async def test_balancer_retries_a_failed_server_with_growing_backoff(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="boundarymorph")
    bench = Bench(2)
    gone = {0: ServerUnavailable("still gone", carried_out=False)}
    await bench.eject(0)
    for backoff in (1, 2, 4, 8, 16, 30, 30):
        bench.clock.now += backoff - 0.1
        before = bench.asked
        for _ in range(3):
            assert await bench.call(gone) == bench.peers[1].base
        assert bench.asked == before + 3
        bench.clock.now += 0.1
        for _ in range(3):
            assert await bench.call(gone) == bench.peers[1].base
        assert (bench.asked, bench.works) == (before + 7, [False, True]), "one call tried it"
    bench.clock.now += 30
    assert await bench.call({}) == bench.peers[0].base
    assert bench.works == [True, True]
    assert [record.message for record in caplog.records] == [
        "a scorer does not work: gone",
        "a scorer works again: http://0",
    ]
    await bench.eject(0)
    bench.clock.now += BACKOFF
    assert await bench.call({}) == bench.peers[0].base, "the times begin anew"


async def test_balancer_sends_a_retry_to_a_working_server() -> None:
    bench = Bench(3)
    await bench.eject(0)
    await bench.eject(1)
    bench.clock.now += BACKOFF
    assert await bench.call(dict.fromkeys(range(2), ServerUnavailable("gone"))) == bench.peers[2].base


async def test_balancer_ejects_a_server_again_if_its_trial_times_out() -> None:
    bench = Bench(2)
    await bench.eject(0)
    bench.clock.now += BACKOFF
    with pytest.raises(DeadlineExceeded):
        await bench.call({0: DeadlineExceeded("late")})
    for _ in range(3):
        assert await bench.call({}) == bench.peers[1].base
    bench.clock.now += 2 * BACKOFF
    assert await bench.call({}) == bench.peers[0].base


async def test_balancer_tries_a_returning_server_with_one_call() -> None:
    bench = Bench(2)
    await bench.eject(0)
    bench.clock.now += BACKOFF
    assert [await bench.begin() for _ in range(3)] == [0, 1, 1]
    await bench.end(0)
    assert bench.works == [True, True]
    assert await bench.begin() == 0


async def test_balancer_without_working_servers_tries_each_with_one_call() -> None:
    bench = Bench(2)
    for _ in range(4):
        with pytest.raises(ScorerUnavailable, match="gone; gone"):
            await bench.call(dict.fromkeys(range(2), ServerUnavailable("gone")))
        asked = bench.asked
        with pytest.raises(ScorerUnavailable):
            await bench.call({})
        assert bench.asked == asked, "nobody is asked so soon"
        bench.clock.now += BACKOFF
    assert {await bench.begin(), await bench.begin()} == {0, 1}
    with pytest.raises(ScorerUnavailable):
        await bench.call({})
    await bench.end(0)
    assert bench.works.count(True) == 1


async def test_answer_to_a_request_from_before_a_fault_is_ignored() -> None:
    bench = Bench(2)
    early = [await bench.begin(), await bench.begin()]
    bench.clock.now += 1
    await bench.eject(early[0])
    await bench.end(0)
    assert not bench.works[early[0]]
    with suppress(Overloaded):
        await bench.call({early[1]: ServerBusy("full", 5.0)})
    await bench.end(1)
    with pytest.raises(Overloaded) as refused:
        await bench.call({}, seconds=2)
    assert refused.value.retry_after == 5.0, "a pause is kept in any case"


@pytest.mark.parametrize(("asked", "kept"), [((None,), PAUSE), ((5.0, 1.0), 5.0), ((1e9,), LONGEST_PAUSE)])
async def test_pause_of_a_busy_server_is_kept_up_to_a_bound(asked: Sequence[float | None], kept: float) -> None:
    bench = Bench(1)
    for pause in asked:
        with pytest.raises(Overloaded):
            await bench.call({0: ServerBusy("full", pause)})
    with pytest.raises(Overloaded) as refused:
        await bench.call({}, seconds=kept)
    assert refused.value.retry_after == kept and bench.works == [True]
    bench.clock.now += kept
    assert await bench.begin() == 0
    assert await bench.begin() == NOWHERE, "the first one is the trial, for which the other waits"
    await bench.end(0)
    assert [index for index, _ in bench.open] == [0, 0]


async def test_failure_of_a_paused_server_ends_its_pause() -> None:
    bench = Bench(1)
    with pytest.raises(Overloaded):
        await bench.call({0: ServerBusy("full", 9.0)})
    with pytest.raises(ScorerUnavailable):
        await bench.call({0: ServerUnavailable("gone")})
    assert bench.works == [False]
    bench.clock.now += BACKOFF
    assert await bench.begin() == 0


async def test_concurrent_failures_of_a_server_count_once() -> None:
    bench = Bench(2, requests=9)
    early = [await bench.begin() for _ in range(6)]
    for place, index in enumerate(early):
        if index == 0:
            await bench.end(place, ServerUnavailable("gone"))
    bench.clock.now += BACKOFF
    assert await bench.call({}) == bench.peers[0].base
    assert bench.works == [True, True]


async def test_failure_older_than_an_answer_ejects_no_server() -> None:
    bench = Bench(1)
    for _ in range(3):
        await bench.begin()
    await bench.end(1)
    await bench.end(0, ServerUnavailable("it took too long"))
    assert bench.works == [True]
    with pytest.raises(ScorerUnavailable, match="it took too long"):
        await bench.running[0]
    await bench.end(2, ServerUnavailable("it took too long"))
    assert bench.works == [False], "this one began later"


async def test_pause_counts_even_if_a_newer_request_was_answered() -> None:
    bench = Bench(1)
    for _ in range(2):
        await bench.begin()
    await bench.end(1)
    await bench.end(0, ServerBusy("full", 5.0))
    with pytest.raises(Overloaded):
        await bench.call({}, seconds=2)
    bench.running[0].cancel()


async def test_balancer_bounds_requests_and_texts_per_server() -> None:
    bench = Bench(1, requests=2)
    bench.balancer.serves(bench.peers[0], "m", texts=10)
    assert await bench.begin(6) == 0
    assert await bench.begin(5) == NOWHERE
    assert await bench.begin(4) == 0
    assert await bench.begin(0) == NOWHERE
    for place, begun in ((0, 3), (1, 4)):
        await bench.end(place)
        assert len(bench.open) == begun, "those that waited"
    alone = Bench(1)
    alone.balancer.serves(alone.peers[0], "m", texts=10)
    assert await alone.begin(11) == 0, "a request over the limit is tried alone"


async def test_closed_balancer_refuses_calls() -> None:
    bench = Bench(2)
    await bench.balancer.close()
    with pytest.raises(RuntimeError, match="the scorer is closed"):
        await bench.call({})


async def test_overload_error_quotes_one_server_or_gives_the_shortest_pause() -> None:
    busy = {
        0: ServerBusy("full", 5.0, public="nights are quieter"),
        1: ServerBusy("full", 3.0, public="so are mornings"),
    }
    for count, public, pause in ((1, "nights are quieter", 5.0), (2, "the scorer is overloaded; try again later", 3.0)):
        bench = Bench(count)
        with pytest.raises(Overloaded) as raised:
            await bench.call(busy)
        assert (raised.value.public, raised.value.retry_after, bench.asked) == (public, pause, count)


async def test_error_that_every_server_gives_ejects_none() -> None:
    bench = Bench(2)
    with pytest.raises(TextTooLong, match="odd"):
        await bench.call(dict.fromkeys(range(2), UnusableAnswer("odd", kind=TextTooLong)))
    assert (bench.asked, bench.works) == (2, [True, True])


@pytest.mark.parametrize(
    ("failure", "asked"),
    [
        (ServerUnavailable("gone"), 2),
        (UnusableAnswer("odd"), 2),
        (ServerUnavailable("gone", carried_out=False), 2),
        (ServerBusy("full", 1.0), 4),
    ],
)
async def test_failed_call_is_repeated_once_and_busy_servers_are_skipped(failure: Exception, asked: int) -> None:
    bench = Bench(4)
    with pytest.raises((ScorerUnavailable, ScorerFailed, Overloaded)):
        await bench.call(dict.fromkeys(range(4), failure))
    assert bench.asked == asked


@pytest.mark.parametrize(("carried_out", "asked"), [(True, 1), (False, 2)])
async def test_unrepeatable_call_is_retried_only_if_not_carried_out(carried_out: bool, asked: int) -> None:
    bench = Bench(2)
    outcomes = dict.fromkeys(range(2), ServerUnavailable("gone", carried_out=carried_out))
    with pytest.raises(ScorerUnavailable, match="gone"):
        await bench.balancer.call(lambda peer: bench.ask(peer, outcomes), repeatable=False)
    assert (bench.asked, bench.works.count(False)) == (asked, asked)


async def test_unrepeatable_call_is_no_trial_of_a_returning_server() -> None:
    bench = Bench(2)
    with suppress(ScorerUnavailable):
        await bench.call(dict.fromkeys(range(2), ServerUnavailable("gone")))
    bench.clock.now += BACKOFF
    upload = asyncio.create_task(bench.balancer.call(lambda peer: asyncio.Event().wait(), repeatable=False))
    await asyncio.sleep(0)
    assert sorted([await bench.begin(), await bench.begin()]) == [0, 1]
    for task in (upload, *bench.running):
        task.cancel()
    await asyncio.gather(upload, *bench.running, return_exceptions=True)
