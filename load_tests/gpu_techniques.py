"""What each technique of the scorer gains on a GPU: pairs a second with it over those without, all else being the same.

A technique has the name of its row in the table of docs/performance.md; `filled` puts the gains there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias
from unittest.mock import patch

import numpy as np
import torch

from boundarymorph.inference.batching.batcher import TOKENIZER_THREADS
from boundarymorph.inference.batching.queue import Entry, TokenQueue
from boundarymorph.inference.transformer import packing, transfers
from boundarymorph.inference.transformer.transfers import Integers, Transfers
from boundarymorph.scoring.scorer import Pair
from boundarymorph.scoring.transformer.model import TransformerCrossEncoder
from tests.scoring.transformer import tiny

ROUND = 5  # pairs that a selection has scored at a time
REQUESTS = 16  # that are tokenized
WORDS = (20, 200)  # of a text, drawn evenly
HEAD = "| technique |"  # of the table
Run: TypeAlias = Callable[[], object]
Measure: TypeAlias = "Callable[[Bench], list[float]]"


@dataclass(frozen=True, slots=True)
class Bench:
    """load: opens the model with options; pairs: those of a query in a row; batch_tokens: most of a batch; repeats: of
    what is timed, after one to warm up."""

    load: Callable[..., TransformerCrossEncoder]
    pairs: Sequence[Pair]
    batch_tokens: int
    repeats: int
    device: str

    @contextmanager
    def opened(self, **options: Any) -> Iterator[TransformerCrossEncoder]:
        model = self.load(**options)
        try:
            yield model
        finally:
            model.close()

    def run(self, model: TransformerCrossEncoder, batches: Sequence[Sequence[Pair]] | None = None) -> Run:
        """Return what runs batches in the model's workers. batches: by default those that the queue makes."""
        if batches is None:
            batches = queued(self.pairs, self.batch_tokens, pads=model.pads)

        def run() -> None:
            with ThreadPoolExecutor(model.workers) as threads:
                list(threads.map(model.run, batches))

        return run

    def rates(self, *runs: Run, pairs: int | None = None) -> list[float]:
        """Return the pairs a second of each run at its best. They take turns, as other work on the machine comes and
        goes. pairs: of a run, by default all."""
        times: list[list[float]] = [[] for _ in runs]
        for _ in range(self.repeats + 1):
            for run, seconds in zip(runs, times, strict=True):
                start = time.perf_counter()
                run()
                if self.device.startswith("cuda"):
                    torch.cuda.synchronize()
                seconds.append(time.perf_counter() - start)
        return [(pairs or len(self.pairs)) / min(seconds[1:]) for seconds in times]


def queued(pairs: Sequence[Pair], batch_tokens: int, *, pads: bool) -> list[list[Pair]]:
    """Return the batches that the queue makes of pairs that all wait."""
    queue: TokenQueue[Pair, None] = TokenQueue()
    queue.add(Entry(pair, None, position, due=0.0) for position, pair in enumerate(pairs))
    batches = []
    while batch := queue.take(batch_tokens, pads=pads):
        batches.append([entry.item for entry in batch])
    return batches


def _batches(bench: Bench) -> list[float]:
    with bench.opened() as model:
        return bench.rates(bench.run(model, [[pair] for pair in bench.pairs]), bench.run(model))


def _like_lengths(bench: Bench) -> list[float]:
    with bench.opened(packed=False) as model:
        most = max(1, bench.batch_tokens // max(map(len, bench.pairs)))
        arrived = [bench.pairs[start : start + most] for start in range(0, len(bench.pairs), most)]
        return bench.rates(bench.run(model, arrived), bench.run(model))


def _options(without: Mapping[str, Any], with_it: Mapping[str, Any]) -> Measure:
    """Return what compares a model that is loaded in two ways."""

    def measured(bench: Bench) -> list[float]:
        with bench.opened(**without) as first, bench.opened(**with_it) as second:
            return bench.rates(bench.run(first), bench.run(second))

    return measured


def _patched(target: object, name: str, replacement: object) -> Measure:
    """Return what compares a model with the same one without a part of it."""

    def measured(bench: Bench) -> list[float]:
        with bench.opened() as model:
            run = bench.run(model)

            def without() -> None:
                with patch.object(target, name, replacement):
                    run()

            return bench.rates(without, run)

    return measured


_send = Transfers.send


def sent_one_by_one(
    self: Transfers, arrays: Sequence[Integers], dtype: torch.dtype = torch.int32
) -> list[torch.Tensor]:
    """Do as `Transfers.send`, with a copy for each array."""
    return [tensor for array in arrays for tensor in _send(self, [array], dtype)]


def pageable(shape: int | Sequence[int], dtype: torch.dtype, *, pinned: bool) -> torch.Tensor:
    """Return memory that is never pinned."""
    return torch.empty(shape, dtype=dtype)


def _in_flight(bench: Bench) -> list[float]:
    with bench.opened() as model:
        batches = queued(bench.pairs, bench.batch_tokens, pads=model.pads)

        def one_by_one() -> None:
            for batch in batches:
                model.run(batch)

        return bench.rates(one_by_one, bench.run(model))


def _tokenized_elsewhere(bench: Bench) -> list[float]:
    rng, words = np.random.default_rng(5), " ".join(tiny.TEXTS).split()
    count = max(1, len(bench.pairs) // REQUESTS)
    requests = [[" ".join(rng.choice(words, rng.integers(*WORDS))) for _ in range(count)] for _ in range(REQUESTS)]

    def tokenized(texts: Sequence[str]) -> list[Pair]:
        return model.tokenize(tiny.QUERY, texts)

    def before() -> None:
        for texts in requests:
            model.run(tokenized(texts))

    def elsewhere() -> None:
        for pairs in threads.map(tokenized, requests):
            model.run(pairs)

    with bench.opened() as model, ThreadPoolExecutor(TOKENIZER_THREADS) as threads:
        return bench.rates(before, elsewhere, pairs=REQUESTS * count)


def _captured(bench: Bench) -> list[float]:
    """Compare the launch of a round with the launch of its graph."""
    with bench.opened() as model, torch.inference_mode():
        assert model._forward is not None
        launch = model._forward.prepare(bench.pairs[:ROUND])
        bench.rates(launch)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch()
        return bench.rates(launch, graph.replay, pairs=ROUND)


def _compiled(bench: Bench) -> list[float]:
    with bench.opened() as plain, bench.opened() as model:
        forward: Any = model._forward
        forward.body.body.compile(dynamic=True)
        return bench.rates(bench.run(plain), bench.run(model))


class Technique(NamedTuple):
    """measure: returns pairs a second without it and with it; anywhere: whether it is there without a GPU."""

    measure: Measure
    anywhere: bool = True


TECHNIQUES = {
    "batches across requests": Technique(_batches),
    "half precision": Technique(_options({"packed": False, "precision": "fp32"}, {"packed": False})),
    "no padding": Technique(_options({"packed": False}, {"share_prefix": False})),
    "FlashAttention of variable lengths": Technique(_patched(packing, "has_kernel", lambda *_: False), anywhere=False),
    "shared prefixes": Technique(_options({"share_prefix": False}, {})),
    "batches of like lengths": Technique(_like_lengths),
    "one copy of a batch": Technique(_patched(Transfers, "send", sent_one_by_one), anywhere=False),
    "pinned memory": Technique(_patched(transfers, "empty", pageable), anywhere=False),
    "several batches in flight": Technique(_in_flight, anywhere=False),
    "tokenizing in other threads": Technique(_tokenized_elsewhere),
    "CUDA graph of a round": Technique(_captured, anywhere=False),
    "torch.compile": Technique(_compiled, anywhere=False),
}


def filled(page: str, gains: Mapping[str, Mapping[str, float]]) -> str:
    """Return the table of techniques of a page with its last column filled. gains: by technique and model."""
    _, found, rest = page.partition(HEAD)
    table = []
    for line in (found + rest).splitlines():
        if not line.startswith("|"):
            break
        *cells, _, end = line.split("|")
        of = gains.get(cells[1].strip(), {})
        shown = ", ".join(f"{model} {gain:.2f}" for model, gain in of.items())
        table.append("|".join([*cells, f" {shown} ", end]) if of else line)
    return "\n".join(table) + "\n"
