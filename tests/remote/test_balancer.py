"""Which model is in use, who is probed, and which error callers get, without any I/O."""

import asyncio
from collections.abc import Mapping

import pytest

from boundarymorph.errors import Overloaded, ScorerFailed, ScorerUnavailable, TextTooLong
from boundarymorph.remote.balancer import Balancer, Role
from boundarymorph.remote.peer import Busy, Flawed, Peer, Unavailable
from tests.clocks import Clock

Outcomes = Mapping[int, Exception]
ROLE = Role("scorer", ScorerUnavailable, ScorerFailed)


class Bench:
    """A balancer over servers that are never called.

    works: as the balancer reports it; proves: what a probe returns; probes, asked: how many there were.
    """

    def __init__(self, count: int) -> None:
        self.clock, self.proves, self.probes, self.asked = Clock(), True, 0, 0
        self.changes: dict[str, bool] = {}
        self.peers = [Peer(f"http://{number}", "scorer") for number in range(count)]
        self.balancer = Balancer(
            self.peers, ROLE, requests=4, probe=self._probe, clock=self.clock, on_change=self.changes.__setitem__
        )

    @property
    def works(self) -> list[bool]:
        return list(self.changes.values())

    async def ask(self, peer: Peer, outcomes: Outcomes) -> str:
        self.asked += 1
        if failure := outcomes.get(self.peers.index(peer)):
            raise failure
        return peer.base

    async def call(self, outcomes: Outcomes) -> str:
        return await self.balancer.call(lambda peer: self.ask(peer, outcomes))

    async def eject(self, index: int) -> None:
        while self.works[index]:
            await self.call({index: Unavailable("gone")})

    async def probed(self) -> None:
        await asyncio.gather(*(member.probe for member in self.balancer._members if member.probe is not None))

    async def _probe(self, _: Peer) -> bool:
        self.probes += 1
        return self.proves


def test_the_model_in_use_is_that_of_most_servers_which_have_worked() -> None:
    bench = Bench(3)
    first, second, third = bench.peers
    for peer, model in ((first, "b"), (second, "b"), (third, "a")):
        bench.balancer.serves(peer, model)
    assert (bench.balancer.model, bench.works) == ("b", [True, True, True])
    bench.balancer.serves(third, "a", proven=True)
    assert (bench.balancer.model, bench.works) == ("a", [False, False, True])
    bench.balancer.serves(first, "b", proven=True)
    assert bench.balancer.model == "a", "in a tie it stays the same"
    bench.balancer.serves(second, "b", proven=True)
    assert (bench.balancer.model, bench.works) == ("b", [True, True, False])
    bench.balancer.serves(first, "a", proven=True)
    assert (bench.balancer.model, bench.works) == ("a", [True, False, True])


async def test_an_answer_shows_that_a_server_works() -> None:
    bench = Bench(3)
    for peer, model in zip(bench.peers, "bba", strict=True):
        bench.balancer.serves(peer, model)
    assert await bench.call(dict.fromkeys(range(2), Busy("full", 1.0))) == bench.peers[2].base
    assert bench.balancer.model == "a"


@pytest.mark.parametrize("proves", [True, False])
async def test_only_a_probe_that_proves_it_shows_that_a_server_works_again(proves: bool) -> None:
    bench = Bench(2)
    await bench.eject(0)
    bench.clock.now += 1
    bench.proves = proves
    await bench.call({})
    await bench.probed()
    assert (bench.probes, bench.works) == (1, [proves, True])


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
        with pytest.raises(Overloaded) as raised:
            await Bench(count).call(busy)
        assert (raised.value.public, raised.value.retry_after) == (public, pause)


async def test_what_all_say_of_a_call_is_not_held_against_them() -> None:
    bench = Bench(2)
    with pytest.raises(TextTooLong, match="odd"):
        await bench.call(dict.fromkeys(range(2), Flawed("odd", kind=TextTooLong)))
    assert (bench.asked, bench.works) == (2, [True, True])


async def test_what_may_be_done_once_is_asked_once() -> None:
    bench = Bench(2)
    outcomes = dict.fromkeys(range(2), Unavailable("gone"))
    with pytest.raises(ScorerUnavailable, match="gone"):
        await bench.balancer.call_once(lambda peer: bench.ask(peer, outcomes))
    assert (bench.asked, sorted(bench.works)) == (1, [False, True])
