"""What happens between a batch and its results, on a device without memory (`meta`) and on a stand-in for a GPU.

Nothing can be read on a `meta` device, as nothing can be read on a GPU without waiting for it. So what a model runs
there up to its results waits for nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from boundarymorph.inference.batching.model import TokenSequence
from boundarymorph.inference.transformer import packing, transfers
from boundarymorph.inference.transformer.transfers import Transfers
from boundarymorph.retrieval.encoders.transformer import TransformerDualEncoder
from boundarymorph.scoring.transformer.model import Precision, TransformerCrossEncoder
from tests.scoring.transformer import tiny

WAIT = 30.0  # seconds until a test gives up
BRIEFLY = 0.2  # seconds in which a thread does what it must not do, if it can
CPU, GPU = torch.device("cpu"), torch.device("cuda")
SCORERS = [name for name in [*tiny.CLASSIFIERS, *tiny.GENERATORS] if name != "deberta"]  # which copies constants
PACKED = pytest.mark.parametrize("packed", [True, False])


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations, and copies to the device; other operations may use tensors of the device only."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0
        self.copies: list[bool] = []  # for each, whether it may go on while the host does

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.operations += 1
        places = {leaf.device.type for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        if places == {"cpu"} and str(kwargs.get("device")) == "meta":
            self.copies.append(bool(kwargs.get("non_blocking")))
        assert places != {"cpu", "meta"}, f"{operation} copies one of its arguments"
        checks = operation is torch.ops.aten.segment_reduce.default and not kwargs.get("unsafe")
        assert not checks, f"{operation} looks at the values of its arguments"
        return operation(*args, **kwargs)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The results that were read, from a device where they cannot be."""
    found: list[torch.Tensor] = []

    def read(results: torch.Tensor) -> NDArray[np.float32]:
        found.append(results)
        return np.ones(results.shape, dtype=np.float32)

    monkeypatch.setattr(transfers, "read", read)
    monkeypatch.setattr(packing, "has_kernel", lambda device, dtype: True)
    return found


def on_meta(folder: Path, precision: Precision = "bf16", **options: Any) -> TransformerCrossEncoder:
    return TransformerCrossEncoder.load(str(folder), device="meta", precision=precision, **options)


class TestBatch:
    @PACKED
    @pytest.mark.parametrize("precision", ["bf16", "int8"])
    @pytest.mark.parametrize("name", SCORERS)
    def test_a_scorer_copies_once_and_waits_for_its_results_only(
        self, tmp_path: Path, reads: list[torch.Tensor], name: str, precision: Precision, packed: bool
    ) -> None:
        encoder = on_meta((tiny.CLASSIFIERS | tiny.GENERATORS)[name](tmp_path / name), precision, packed=packed)
        pairs = encoder.tokenize(tiny.QUERY, tiny.TEXTS) + encoder.tokenize(tiny.OTHER_QUERY, tiny.TEXTS)
        with Watch() as watch:
            assert encoder.run(pairs).shape == (len(pairs),)
        assert [(results.device.type, len(results)) for results in reads] == [("meta", len(pairs))]
        assert watch.copies == [True]

    @PACKED
    @pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
    def test_an_encoder_too(self, tmp_path: Path, reads: list[torch.Tensor], pooling: Any, packed: bool) -> None:
        encoder = TransformerDualEncoder.load(
            str(tiny.bert(tmp_path)), device="meta", precision="bf16", pooling=pooling, packed=packed
        )
        texts = encoder.tokenize_documents(tiny.TEXTS)
        with Watch() as watch:
            assert encoder.run(texts).shape == (len(texts), encoder.dimension)
        assert len(reads) == 1
        assert watch.copies == [True]

    def test_the_number_of_operations_does_not_grow_with_the_batch(
        self, tmp_path: Path, reads: list[torch.Tensor]
    ) -> None:
        encoder = TransformerDualEncoder.load(str(tiny.bert(tmp_path)), device="meta", precision="bf16", pooling="mean")
        counts = []
        for size in (2, 8):
            with Watch() as watch:
                encoder.run([TokenSequence(np.arange(5, 9), truncated=False)] * size)
            counts.append(watch.operations)
        assert counts[0] == counts[1]

    @pytest.mark.parametrize("name", ["bert", "modernbert", "Qwen3-Reranker-tiny"])
    def test_one_graph_is_compiled_for_batches_of_any_size(
        self, tmp_path: Path, reads: list[torch.Tensor], name: str
    ) -> None:
        encoder = on_meta((tiny.CLASSIFIERS | tiny.GENERATORS)[name](tmp_path / name))
        forward: Any = encoder._forward
        compiled = []

        def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
            compiled.append(graph)
            return graph.forward

        torch.compiler.reset()
        forward.body.body.compile(dynamic=True, backend=backend, fullgraph=True)
        for size in (3, 5, 7, 4):
            assert encoder.run(encoder.tokenize(tiny.QUERY, tiny.TEXTS[:size])).shape == (size,)
        assert len(compiled) == 1

    def test_what_waits_is_seen(self) -> None:
        states, tokens = torch.zeros(4, device="meta"), torch.tensor([1, 2])
        with pytest.raises(RuntimeError, match="item"):
            states.sum().item()
        with pytest.raises(NotImplementedError):
            states.cpu()
        with pytest.raises((RuntimeError, NotImplementedError)):
            states[states > 0]
        with Watch() as watch, pytest.raises(AssertionError, match="copies"):
            watch.copies.append(bool(states[tokens].sum()))


integers = arrays(
    np.int64, array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=5), elements=st.integers(0, 2**31 - 1)
)


class TestArrays:
    @given(sent=st.lists(integers | st.lists(st.integers(0, 9), min_size=1), min_size=1, max_size=5))
    def test_they_arrive_as_they_were_in_one_piece(self, sent: list[Any]) -> None:
        for dtype in (torch.int32, torch.int64):
            arrived = Transfers(CPU).send(sent, dtype)
            for array, tensor in zip(sent, arrived, strict=True):
                np.testing.assert_array_equal(tensor.numpy(), np.asarray(array))
                assert tensor.dtype == dtype
            assert len({tensor.untyped_storage().data_ptr() for tensor in arrived}) == 1


class Event:
    """An event of a GPU that happens when the test says so."""

    made: list[Event]

    def __init__(self, *, blocking: bool) -> None:
        assert blocking, "a waiting thread must not keep a core busy"
        self.recorded_on: object = None
        self.happened = threading.Event()
        self.awaited = threading.Event()
        self.made.append(self)

    def record(self, stream: object) -> None:
        self.recorded_on = stream

    def synchronize(self) -> None:
        self.awaited.set()
        assert self.happened.wait(WAIT)


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The pinned memory of a stand-in for a GPU, which computes at once on the CPU."""
    found: list[torch.Tensor] = []

    def empty(shape: Any, dtype: torch.dtype, *, pinned: bool) -> torch.Tensor:
        assert pinned
        found.append(torch.zeros(shape, dtype=dtype))
        return found[-1]

    monkeypatch.setattr(transfers, "empty", empty)
    monkeypatch.setattr(Event, "made", [], raising=False)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ("stream", device))
    return found


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads
        for event in Event.made:
            event.happened.set()


class TestGpu:
    def test_batches_are_launched_in_turn_while_others_compute(
        self, pinned: list[torch.Tensor], threads: ThreadPoolExecutor
    ) -> None:
        gpu = Transfers(GPU)
        launching, go_on, second = threading.Event(), threading.Event(), threading.Event()

        def launch_first() -> torch.Tensor:
            launching.set()
            assert go_on.wait(WAIT)
            return torch.tensor([1.0, 2.0])

        def launch_second() -> torch.Tensor:
            second.set()
            return torch.tensor([3.0])

        first_results = threads.submit(gpu.run, launch_first)
        assert launching.wait(WAIT)
        second_results = threads.submit(gpu.run, launch_second)
        assert not second.wait(BRIEFLY), "the kernels of two batches are mixed"
        go_on.set()
        assert second.wait(WAIT), "a batch waits for the results of another"
        for number in (1, 0):
            while len(Event.made) < 2:
                threading.Event().wait(0.01)
            assert Event.made[number].awaited.wait(WAIT)
        assert not first_results.done()
        Event.made[1].happened.set()
        assert second_results.result(WAIT).tolist() == [3.0]
        assert not first_results.done(), "results are read before they are there"
        Event.made[0].happened.set()
        assert first_results.result(WAIT).tolist() == [1.0, 2.0]

    def test_results_come_by_pinned_memory_and_the_event_that_follows(
        self, pinned: list[torch.Tensor], threads: ThreadPoolExecutor
    ) -> None:
        gpu = Transfers(torch.device("cuda:1"))
        results = threads.submit(gpu.run, lambda: torch.tensor([[1.0], [2.0]]))
        while not Event.made:
            threading.Event().wait(0.01)
        assert Event.made[0].awaited.wait(WAIT)
        assert Event.made[0].recorded_on == ("stream", gpu.device)
        pinned[0] += 1  # what arrives until the event happens is the result
        Event.made[0].happened.set()
        assert results.result(WAIT).tolist() == [[2.0], [3.0]]

    def test_a_batch_that_fails_lets_the_next_one_in(
        self, pinned: list[torch.Tensor], threads: ThreadPoolExecutor
    ) -> None:
        gpu = Transfers(GPU)

        def fail() -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory")

        with pytest.raises(torch.OutOfMemoryError):
            gpu.run(fail)
        results = threads.submit(gpu.run, lambda: torch.tensor([5.0]))
        while not Event.made:
            threading.Event().wait(0.01)
        Event.made[0].happened.set()
        assert results.result(WAIT).tolist() == [5.0]

    def test_inputs_leave_from_pinned_memory(self, pinned: list[torch.Tensor]) -> None:
        transfers = Transfers(GPU)
        transfers.device = torch.device("meta")
        first, last = transfers.send([[1, 2], [3]])
        assert (first.shape, last.shape) == ((2,), (1,))
        assert pinned[0].tolist() == [1, 2, 3]
