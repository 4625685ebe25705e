"""The path of a GPU on a CPU: its attention by the documentation, its events when the test says so, the same scores."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from boundarymorph.inference.transformer import device, packing
from boundarymorph.inference.transformer.transfers import Transfers
from boundarymorph.scoring.batching import BatchingScorer
from boundarymorph.scoring.transformer.model import TransformerCrossEncoder
from tests.inference.transformer.test_packing import kernel
from tests.inference.transformer.test_transfers import GPU, SCORERS, Event, pinned
from tests.patience import until_async
from tests.scoring.transformer.conftest import Folder, Opened
from tests.scoring.transformer.tiny import OTHER_QUERY, QUERY, TEXTS

__all__ = ["pinned"]
BATCHES = 4


class StandIn(Transfers):
    """A GPU's pinned memory, turns and events over the memory of the host."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(GPU)
        self.device = device


@pytest.mark.parametrize("name", SCORERS)
def test_the_kernel_of_a_gpu_gives_the_same_scores(monkeypatch: pytest.MonkeyPatch, opened: Opened, name: str) -> None:
    encoder = opened(name, "fp32", None)
    pairs = encoder.tokenize(QUERY, TEXTS) + encoder.tokenize(OTHER_QUERY, TEXTS)
    expected = encoder.run(pairs)
    calls: list[int] = []

    def counted(*arguments: Any, **options: Any) -> torch.Tensor:
        calls.append(len(arguments[3]) - 1)
        return kernel(*arguments, **options)

    monkeypatch.setattr(packing, "varlen_attn", counted)
    monkeypatch.setattr(packing, "has_kernel", lambda device, dtype: True)
    np.testing.assert_allclose(encoder.run(pairs), expected, rtol=0, atol=1e-5)
    assert len(calls) == 3, "one call per layer"
    assert min(calls) >= len(pairs), "for all sequences"


@pytest.fixture
def alone(opened: Opened) -> dict[str, NDArray[np.float64]]:
    """The scores of pairs that are run one by one, by query."""
    encoder = opened("bert", "fp32", None)
    return {
        query: np.concatenate([encoder.run([pair]) for pair in encoder.tokenize(query, TEXTS)])
        for query in (QUERY, OTHER_QUERY)
    }


async def test_two_batches_are_in_flight_and_every_caller_gets_its_scores(
    alone: dict[str, NDArray[np.float64]],
    pinned: list[torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
    folder: Folder,
) -> None:
    monkeypatch.setattr(device, "Transfers", StandIn)
    encoder = TransformerCrossEncoder.load(str(folder("bert")), device="cpu", threads=2)
    encoder.parallel = False
    encoder.batch_tokens = sum(len(pair) for query in alone for pair in encoder.tokenize(query, TEXTS)) // BATCHES
    scorer = BatchingScorer(encoder)
    asked = {query: asyncio.create_task(scorer.score(query, TEXTS)) for query in alone}
    await until_async(lambda: len(Event.made) == 2 and all(event.awaited.is_set() for event in Event.made))
    while not all(task.done() for task in asked.values()):
        for event in reversed(Event.made):
            event.happened.set()
        await asyncio.sleep(0.001)
    for query, task in asked.items():
        np.testing.assert_allclose((await task).values, alone[query], rtol=0, atol=1e-5)
    assert len(Event.made) >= BATCHES
    assert len(pinned) == 2 * len(Event.made), "one piece of memory there and one back for each batch"
    await scorer.close()
