"""Test that a selection counts its memory, and drops texts that it only compares."""

import pytest

from boundarymorph.errors import LimitExceeded, Overloaded
from boundarymorph.inference.concurrency import Shares
from boundarymorph.retrieval.document import Document
from boundarymorph.selection.pool import footprint
from boundarymorph.selector.documents import Grouping, MemoryLimits
from tests.fakes.scorer import SeededScorer
from tests.selector.fakes import IDS, MakeSelector, changed, own_pool, task
from tests.selector.test_copies import TWENTY, Copying

pytestmark = pytest.mark.strangers
LONG = [f"{text} ".ljust(1_000, "x") for text in TWENTY]


@pytest.mark.parametrize("distinct", [None, Grouping()])
async def test_texts_of_unscored_copies_are_not_kept(selector_of: MakeSelector, distinct: Grouping | None) -> None:
    taken: list[int] = []
    wanted = changed(task(budget=11, k=21, rounds=3), memory=MemoryLimits(charge=taken.append), distinct=distinct)
    result = await selector_of(Copying(LONG), SeededScorer()).select(wanted)
    assert result.calls == 11
    assert len(result.documents) <= 12  # two copies may be requested before their texts are known
    assert sum(taken) - footprint(result.pool, 11) == 1_000 * len(result.documents)


async def test_texts_over_bytes_in_flight_are_refused(selector_of: MakeSelector) -> None:
    selector = selector_of(Copying(LONG), SeededScorer())
    with Shares(5_500, 1.0, what="bytes").reserve("") as take:
        wanted = changed(task(budget=11, k=4, rounds=6), memory=MemoryLimits(charge=take))
        with pytest.raises(LimitExceeded, match="5,500 bytes"):
            await selector.select(wanted)


@pytest.mark.parametrize("where", ["index", "request"])
async def test_texts_of_an_answer_are_counted_against_its_limit(selector_of: MakeSelector, where: str) -> None:
    wanted = task(budget=4, k=4, rounds=1)
    if where == "request":
        documents = [Document(id, text) for id, text in zip(IDS, LONG, strict=True)]
        wanted = changed(wanted, source=own_pool(documents))
    selector = selector_of(Copying(LONG), SeededScorer())
    for returned, answer, refused in ((True, 4_000, False), (True, 3_999, True), (False, 0, False)):
        asked = changed(wanted, return_documents=returned, memory=MemoryLimits(answer=answer))
        if refused:
            with pytest.raises(LimitExceeded, match=r"limits\.body_bytes"):
                await selector.select(asked)
        else:
            assert len((await selector.select(asked)).selection.documents) == 4


async def test_session_memory_is_reserved_before_the_first_call(selector_of: MakeSelector) -> None:
    def full(size: int) -> None:
        taken.append(size)
        raise Overloaded("full")

    taken: list[int] = []
    scorer = SeededScorer()
    selector = selector_of(Copying(TWENTY), scorer)
    pool = (await selector.select(task(budget=0))).pool
    with pytest.raises(Overloaded, match="full"):
        await selector.select(changed(task(budget=5), memory=MemoryLimits(charge=full)))
    assert taken == [footprint(pool, 5)]
    assert not scorer.rounds
    await selector.select(changed(task(budget=30, k=30), goal="scores", memory=MemoryLimits(charge=full)))
