"""Which model is in use, who is probed, and which error callers get, without any I/O."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

import pytest

from boundarymorph.errors import DeadlineExceeded, Overloaded, ScorerFailed, ScorerUnavailable, TextTooLong
from boundarymorph.inference.concurrency import Deadline
from boundarymorph.remote.balancer import BACKOFF, LONGEST_PAUSE, MISSES, PAUSE, Balancer, Role
from boundarymorph.remote.peer import Busy, Flawed, OtherModel, Peer, Unavailable
from tests.clocks import Clock

Outcomes = Mapping[int, Exception]
NOWHERE = -1
ROLE = Role("scorer", ScorerUnavailable, ScorerFailed)


class Bench:
    """A balancer over servers that are never called.

    works: as the balancer reports it; broken: what a probe raises; gate: what it waits for; probes, asked: how many
    there were; open: the requests that wait for their outcome, with the server of each.
    """

    def __init__(self, count: int, *, requests: int = 4, seed: int = 0) -> None:
        self.clock, self.probes, self.asked = Clock(), 0, 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.broken: Exception | None = None
        self.changes: dict[str, bool] = {}
        self.running: list[asyncio.Task[None]] = []
        self.open: list[tuple[int, asyncio.Future[None]]] = []
        self.peers = [Peer(f"http://{number}", "scorer") for number in range(count)]
        self.balancer = Balancer(
            self.peers,
            ROLE,
            requests=requests,
            probe=self._probe,
            clock=self.clock,
            seed=seed,
            on_change=self.changes.__setitem__,
        )

    @property
    def works(self) -> list[bool]:
        return list(self.changes.values())

    async def ask(self, peer: Peer, outcomes: Outcomes) -> str:
        self.asked += 1
        if failure := outcomes.get(self.peers.index(peer)):
            raise failure
        return peer.base

    async def call(self, outcomes: Outcomes, seconds: float | None = None) -> str:
        deadline = None if seconds is None else Deadline(self.clock.now + seconds, self.clock)
        answer = await self.balancer.call(lambda peer: self.ask(peer, outcomes), deadline=deadline)
        await asyncio.sleep(0)  # for what it makes due
        return answer

    async def begin(self, texts: int = 1) -> int:
        """Send a request that stays under way; return where it is."""

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
        """End the request that began as so many-th."""
        outcome = self.open[place][1]
        outcome.set_result(None) if failure is None else outcome.set_exception(failure)
        for _ in range(4):
            await asyncio.sleep(0)

    async def eject(self, index: int) -> None:
        while self.works[index]:
            await self.call({index: Unavailable("gone")})

    async def miss(self, index: int) -> None:
        """Have a caller leave this server, and no other."""
        others = [other for other in range(len(self.peers)) if other != index]
        with suppress(DeadlineExceeded):
            while await self.call({index: DeadlineExceeded("late")}) in [self.peers[other].base for other in others]:
                pass
        for _ in range(4):
            await asyncio.sleep(0)

    async def probed(self) -> None:
        members = self.balancer.replicas.values()
        await asyncio.gather(*(member.probe for member in members if member.probe is not None))

    async def _probe(self, _: Peer) -> None:
        self.probes += 1
        await self.gate.wait()
        if self.broken is not None:
            raise self.broken


async def test_the_model_in_use_is_that_of_most_servers_which_work() -> None:
    bench = Bench(3)
    first, second, third = bench.peers
    for peer, model in ((second, "b"), (third, "b"), (first, "a")):
        bench.balancer.serves(peer, model)
    assert (bench.balancer.model, bench.works) == ("b", [True, True, True])
    with pytest.raises(OtherModel, match="http://0 serves a, but http://1 serves b"):
        bench.balancer.check_model(first)
    bench.balancer.serves(second, "a")
    assert (bench.balancer.model, bench.works) == ("a", [True, True, False])
    await bench.eject(0)
    assert bench.balancer.model == "a", "in a tie it stays the same"
    await bench.eject(1)
    assert (bench.balancer.model, bench.works) == ("b", [False, False, True])
    bench.balancer.serves(first, "a")
    bench.balancer.serves(second, "a")
    assert bench.balancer.model == "b", "those that are away have no say"
    with pytest.raises(ScorerUnavailable, match="gone; gone; gone"):
        await bench.eject(2)
    bench.balancer.serves(second, "a")
    assert (bench.balancer.model, bench.works) == ("a", [False, False, False]), "unless all are"


async def test_servers_of_another_model_are_probed_and_have_a_say() -> None:
    bench = Bench(3)
    for peer, model in zip(bench.peers, "abb", strict=True):
        bench.balancer.serves(peer, model)
    other = OtherModel("another")
    while bench.works[0]:
        await bench.call({0: other})
    bench.clock.now += BACKOFF
    bench.broken = other
    await bench.call({0: AssertionError("others do the work")})
    await bench.probed()
    assert (bench.probes, bench.works) == (1, [False, True, True])
    early = {await bench.begin() for _ in range(2)}
    assert early == {1, 2}
    bench.balancer.serves(bench.peers[1], "a")
    assert (bench.balancer.model, bench.works) == ("a", [True, True, False])
    for place in range(2):
        await bench.end(place)
    assert bench.works == [True, True, False], "an answer of the model before says nothing"


@pytest.mark.parametrize("seed", range(3))
async def test_the_least_busy_is_next_and_equals_are_drawn(seed: int) -> None:
    bench, same = Bench(3, seed=seed), Bench(3, seed=seed)
    first = [await bench.begin(texts) for texts in (5, 3, 4)]
    assert sorted(first) == [0, 1, 2] and first == [await same.begin(texts) for texts in (5, 3, 4)]
    assert await bench.begin(2) == first[1]
    assert await bench.begin(1) == first[2]
    await bench.end(0)
    assert await bench.begin(1) == first[0]
    drawn = Counter([await Bench(3, seed=other).begin() for other in range(90)])
    assert min(drawn.values()) > 10


async def test_a_failed_server_is_probed_after_ever_longer_times() -> None:
    bench = Bench(2)
    await bench.eject(0)
    for backoff in (1, 2, 4, 8, 16, 30, 30):
        probes, bench.broken = bench.probes, Unavailable("still gone")
        for _ in range(2 * backoff):
            assert bench.probes == probes
            assert await bench.call({0: AssertionError("others do the work")}) == bench.peers[1].base
            await bench.probed()
            bench.clock.now += 0.5
        await bench.call({})
        await bench.probed()
        assert (bench.probes, bench.works) == (probes + 1, [False, True])
    bench.broken, probes = None, bench.probes
    bench.clock.now += 30
    await bench.call({})
    await bench.probed()
    assert bench.works == [True, True]
    await bench.eject(0)
    bench.clock.now += BACKOFF
    await bench.call({})
    await bench.probed()
    assert (bench.probes, bench.works) == (probes + 2, [True, True]), "which begin anew"


async def test_where_none_works_one_request_at_a_time_tries_each_soon() -> None:
    bench = Bench(2)
    for _ in range(4):
        with pytest.raises(ScorerUnavailable, match="gone; gone"):
            await bench.call(dict.fromkeys(range(2), Unavailable("gone")))
        asked = bench.asked
        with pytest.raises(ScorerUnavailable):
            await bench.call({})
        assert bench.asked == asked, "nobody is asked so soon"
        bench.clock.now += BACKOFF
    assert {await bench.begin(), await bench.begin()} == {0, 1}
    with pytest.raises(ScorerUnavailable):
        await bench.call({})
    await bench.end(0)
    assert bench.works.count(True) == 1 and bench.probes == 0


async def test_an_answer_to_what_began_before_a_fault_says_nothing() -> None:
    bench = Bench(2)
    early = [await bench.begin(), await bench.begin()]
    bench.clock.now += 1
    await bench.eject(early[0])
    await bench.end(0)
    assert not bench.works[early[0]]
    with suppress(Overloaded):
        await bench.call({early[1]: Busy("full", 5.0)})
    await bench.end(1)
    with pytest.raises(Overloaded) as refused:
        await bench.call({}, seconds=2)
    assert refused.value.retry_after == 5.0, "a pause is kept in any case"


@pytest.mark.parametrize(("asked", "kept"), [((None,), PAUSE), ((5.0, 1.0), 5.0), ((1e9,), LONGEST_PAUSE)])
async def test_a_pause_is_not_shortened_and_has_an_end(asked: Sequence[float | None], kept: float) -> None:
    bench = Bench(1)
    for pause in asked:
        with pytest.raises(Overloaded):
            await bench.call({0: Busy("full", pause)})
    with pytest.raises(Overloaded) as refused:
        await bench.call({}, seconds=kept)
    assert refused.value.retry_after == kept and bench.works == [True]
    bench.clock.now += kept
    assert await bench.begin() == 0
    assert await bench.begin() == NOWHERE, "the first one is the trial, for which the other waits"
    await bench.end(0)
    assert [index for index, _ in bench.open] == [0, 0]


async def test_a_failure_ends_a_pause() -> None:
    bench = Bench(1)
    with pytest.raises(Overloaded):
        await bench.call({0: Busy("full", 9.0)})
    with pytest.raises(ScorerUnavailable):
        await bench.call({0: Unavailable("gone")})
    assert bench.works == [False]
    bench.clock.now += BACKOFF
    assert await bench.begin() == 0


@pytest.mark.parametrize("gone", [True, False])
async def test_one_whose_callers_wait_in_vain_is_probed_and_asked_last(gone: bool) -> None:
    bench = Bench(2)
    for _ in range(MISSES - 1):
        await bench.miss(0)
    assert bench.probes == 0
    bench.broken = Unavailable("gone") if gone else None
    bench.gate.clear()
    await bench.miss(0)
    for _ in range(4):
        assert await bench.begin() == 1
    assert await bench.begin() == 0, "where nobody else can, it may be asked"
    bench.gate.set()
    await bench.probed()
    assert (bench.probes, bench.works) == (1, [not gone, True])
    if not gone:
        assert await bench.begin() == 0


@pytest.mark.parametrize("outcome", [None, Busy("full", 0.1)])
async def test_any_answer_and_any_pause_end_the_count_of_callers_that_left(outcome: Busy | None) -> None:
    bench = Bench(1)
    for _ in range(MISSES - 1):
        await bench.miss(0)
    with suppress(Overloaded):
        await bench.call({} if outcome is None else {0: outcome})
    bench.clock.now += 1
    for _ in range(MISSES - 1):
        await bench.miss(0)
    assert bench.probes == 0
    await bench.miss(0)
    assert bench.probes == 1


async def test_one_outage_counts_once() -> None:
    bench = Bench(2, requests=9)
    early = [await bench.begin() for _ in range(6)]
    for place, index in enumerate(early):
        if index == 0:
            await bench.end(place, Unavailable("gone"))
    bench.clock.now += BACKOFF
    await bench.call({})
    await bench.probed()
    assert (bench.probes, bench.works) == (1, [True, True])


async def test_a_request_that_fails_after_a_newer_one_was_answered_ejects_no_server() -> None:
    bench = Bench(1)
    for _ in range(3):
        await bench.begin()
    await bench.end(1)
    await bench.end(0, Unavailable("it took too long"))
    assert bench.works == [True]
    with pytest.raises(ScorerUnavailable, match="it took too long"):
        await bench.running[0]
    await bench.end(2, Unavailable("it took too long"))
    assert bench.works == [False], "this one began later"


async def test_a_pause_counts_even_if_a_newer_request_was_answered() -> None:
    bench = Bench(1)
    for _ in range(2):
        await bench.begin()
    await bench.end(1)
    await bench.end(0, Busy("full", 5.0))
    with pytest.raises(Overloaded):
        await bench.call({}, seconds=2)
    bench.running[0].cancel()


async def test_callers_that_leave_after_a_newer_request_was_answered_do_not_count() -> None:
    bench = Bench(1, requests=9)
    for _ in range(MISSES + 1):
        await bench.begin()
    await bench.end(MISSES)
    for place in range(MISSES):
        await bench.end(place, DeadlineExceeded("late"))
    assert bench.probes == 0


async def test_no_more_is_under_way_than_a_server_takes() -> None:
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
    assert await alone.begin(11) == 0, "what is too much for any moment is at least tried alone"


async def test_nothing_is_probed_or_called_after_the_end() -> None:
    bench, end = Bench(2), asyncio.Event()
    await bench.eject(0)
    bench.clock.now += 1

    async def ask(_: Peer) -> None:
        await end.wait()

    call = asyncio.create_task(bench.balancer.call(ask))
    await asyncio.sleep(0)
    await bench.balancer.close()
    end.set()
    await call
    await bench.probed()
    assert bench.probes == 0
    for again in (bench.balancer.call, bench.balancer.call_once):
        with pytest.raises(RuntimeError, match="the scorer is closed"):
            await again(ask)


async def test_one_overloaded_server_is_quoted_and_several_give_the_shortest_pause() -> None:
    busy = {0: Busy("full", 5.0, public="nights are quieter"), 1: Busy("full", 3.0, public="so are mornings")}
    for count, public, pause in ((1, "nights are quieter", 5.0), (2, "the scorer is overloaded; try again later", 3.0)):
        bench = Bench(count)
        with pytest.raises(Overloaded) as raised:
            await bench.call(busy)
        assert (raised.value.public, raised.value.retry_after, bench.asked) == (public, pause, count)


async def test_what_all_say_of_a_call_is_not_held_against_them() -> None:
    bench = Bench(2)
    with pytest.raises(TextTooLong, match="odd"):
        await bench.call(dict.fromkeys(range(2), Flawed("odd", kind=TextTooLong)))
    assert (bench.asked, bench.works) == (2, [True, True])


@pytest.mark.parametrize(
    ("failure", "asked"),
    [(Unavailable("gone"), 2), (Flawed("odd"), 2), (Unavailable("gone", carried_out=False), 4), (Busy("full", 1.0), 4)],
)
async def test_what_may_have_been_done_is_asked_for_once_more_and_anything_else_of_all(
    failure: Exception, asked: int
) -> None:
    bench = Bench(4)
    with pytest.raises((ScorerUnavailable, ScorerFailed, Overloaded)):
        await bench.call(dict.fromkeys(range(4), failure))
    assert bench.asked == asked


async def test_what_may_be_done_once_is_asked_once() -> None:
    bench = Bench(2)
    outcomes = dict.fromkeys(range(2), Unavailable("gone"))
    with pytest.raises(ScorerUnavailable, match="gone"):
        await bench.balancer.call_once(lambda peer: bench.ask(peer, outcomes))
    assert (bench.asked, sorted(bench.works)) == (1, [False, True])


async def test_what_takes_long_is_no_trial() -> None:
    bench = Bench(2)
    with suppress(ScorerUnavailable):
        await bench.call(dict.fromkeys(range(2), Unavailable("gone")))
    bench.clock.now += BACKOFF
    upload = asyncio.create_task(bench.balancer.call_once(lambda peer: asyncio.Event().wait()))
    await asyncio.sleep(0)
    assert sorted([await bench.begin(), await bench.begin()]) == [0, 1]
    for task in (upload, *bench.running):
        task.cancel()
    await asyncio.gather(upload, *bench.running, return_exceptions=True)
