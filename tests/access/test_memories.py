"""What a process records of selections: together, in the background, all of it at its end."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from boundarymorph.access import learned
from boundarymorph.access.learned import MemoriesInUse, digest
from boundarymorph.errors import RetrieverUnavailable
from boundarymorph.memory.memory import MOST_AT_ONCE, Audited, Observation
from boundarymorph.retrieval.interfaces import MemoryKey, Recalled
from boundarymorph.selection.pool import Evidence
from tests.metrics import counted

KEY, OTHER = (MemoryKey(index, "", "scorer", "vectors", "") for index in ("one", "other"))


class Source:
    """A `MemorySource` that keeps the callers of what is recorded, call by call, and fails where it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[MemoryKey, list[str]]] = []
        self.fails = False

    async def recall(self, key: MemoryKey) -> Recalled:
        return Recalled()

    async def record(self, key: MemoryKey, observations: Sequence[Observation]) -> None:
        self.calls.append((key, [one.caller for one in observations]))
        if self.fails:
            raise RetrieverUnavailable("gone")

    async def record_audit(self, key: MemoryKey, audited: Audited) -> None:
        raise AssertionError


def evidence() -> Evidence:
    return Evidence(np.eye(4), np.zeros(4), 1.0, 5)


def left_out() -> float:
    return counted("boundarymorph_memory_requests_total", outcome="left_out")


async def test_requests_of_a_memory_are_recorded_together_and_the_rest_at_the_end() -> None:
    source, used = Source(), MemoriesInUse()
    for number in range(MOST_AT_ONCE + 2):
        used.record(source, KEY, evidence(), str(number))
    used.record(source, OTHER, evidence(), "a")
    assert not source.calls
    await used.close()
    everyone = [digest(str(number)) for number in range(MOST_AT_ONCE + 2)]
    assert source.calls == [
        (KEY, everyone[:MOST_AT_ONCE]),
        (KEY, everyone[MOST_AT_ONCE:]),
        (OTHER, [digest("a")]),
    ]
    await used.close()
    assert len(source.calls) == 3


async def test_one_request_alone_is_recorded_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned, "FIRST_GATHERING", 0.01)
    monkeypatch.setattr(learned, "LONGEST_GATHERING", 0.02)
    source, used = Source(), MemoriesInUse()
    for number in range(3):
        used.record(source, KEY, evidence(), "a")
        while len(source.calls) <= number:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert source.calls == [(KEY, [digest("a")])] * 3


async def test_of_too_many_some_are_left_out_until_there_is_room_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned, "UNRECORDED", 3)
    source, used, before = Source(), MemoriesInUse(), left_out()
    source.fails = True
    for turn in range(1, 3):
        for _ in range(5):
            used.record(source, KEY, evidence(), "a")
        assert left_out() == before + 2 * turn
        await used.close()
    assert [len(callers) for _, callers in source.calls] == [3, 3]
