"""Batch the work of all callers, so that it keeps one model busy."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import BoundaryMorphError, DeadlineExceeded, LimitExceeded, Overloaded, TextTooLong
from boundarymorph.inference.concurrency import FairExecutor, remaining_share
from boundarymorph.inference.models import DeviceLost, Model, ModelRole, OutOfMemory, Results, TokenSequence

Owner = TypeVar("Owner")
ModelType = TypeVar("ModelType", bound=Model)
Tokenization = Callable[[], Sequence[TokenSequence]]

LOOK_AHEAD = 8  # number of batches whose sequences are searched for similar lengths
TOKENIZER_THREADS = 4
SHUTTING_DOWN = "the model is shutting down"
CHARACTERS_A_TOKEN = 4  # an estimate, used while a request is being tokenized
MEMORY = 0.9  # weight of the past in the running mean of seconds per token
GROW_AFTER = 100  # successful batches before larger ones are tried
_due = attrgetter("due")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class QueueEntry(Generic[Owner]):
    """A waiting sequence: the `position`-th of its owner's request.

    The earlier it is `due`, the more urgent it is.
    """

    item: TokenSequence
    owner: Owner
    position: int
    due: float
    caller: str = ""


@dataclass(slots=True)
class TokenQueue(Generic[Owner]):
    """Waiting sequences, most urgent first, then in order of arrival.

    Callers share each batch evenly.
    """

    callers: Counter[str] = field(default_factory=Counter)  # tokens that wait, by caller
    _led: dict[str, int] = field(default_factory=dict)
    _waiting: list[QueueEntry[Owner]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, entries: Iterable[QueueEntry[Owner]]) -> None:
        for entry in entries:
            insort(self._waiting, entry, key=_due)
            self.callers[entry.caller] += len(entry.item)

    def discard(self, owners: Collection[Owner]) -> int:
        dropped = [entry for entry in self._waiting if entry.owner in owners]
        self._remove(dropped)
        return len(dropped)

    def owners(self) -> set[Owner]:
        return {entry.owner for entry in self._waiting}

    @property
    def tokens(self) -> int:
        return self.callers.total()

    def tokens_due(self, moment: float, caller: str = "", tokens: int = 0) -> int:
        """Return the number of tokens that are computed before new tokens of a caller.

        These are the caller's own tokens that are due by then, and at most as many of each other caller.

        Args:
            moment: The time at which the new tokens are due.
            caller: Their caller.
            tokens: Their number.
        """
        due: Counter[str] = Counter()
        for entry in self._waiting[: bisect_right(self._waiting, moment, key=_due)]:
            due[entry.caller] += len(entry.item)
        own = due.pop(caller, 0)
        return own + sum(min(count, own + tokens) for count in due.values())

    def take(self, batch_tokens: int, *, pads: bool) -> list[QueueEntry[Owner]]:
        """Remove and return the next batch, which contains the most urgent sequence.

        The batch is empty if no sequence waits.

        Args:
            batch_tokens: Most tokens of a batch of several sequences.
            pads: Whether each sequence costs as much as the longest. If so, the lengths in the batch are similar,
                chosen from the most urgent `LOOK_AHEAD` times `batch_tokens`.
        """
        if not self._waiting:
            return []
        if pads:
            batch = _like_lengths(self._front(LOOK_AHEAD * batch_tokens), batch_tokens)
        else:
            batch = self._front(batch_tokens)
        self._remove(batch)
        return batch

    def _remove(self, entries: Sequence[QueueEntry[Owner]]) -> None:
        gone = set(map(id, entries))
        self._waiting = [entry for entry in self._waiting if id(entry) not in gone]
        for entry in entries:
            self.callers[entry.caller] -= len(entry.item)
        self.callers = +self.callers

    def _front(self, tokens: int) -> list[QueueEntry[Owner]]:
        """Return the most urgent sequences with at most this many tokens, evenly of all callers.

        There is at least one sequence.
        """
        entries = self._waiting if len(self.callers) <= 1 else self._by_turns()
        sums = accumulate(len(entry.item) for entry in entries)
        return entries[: max(1, sum(1 for _ in takewhile(lambda total: total <= tokens, sums)))]

    def _by_turns(self) -> list[QueueEntry[Owner]]:
        """Return all entries in an order in which callers take turns by tokens.

        Ties go to the caller whose first turn is oldest.
        """
        before: Counter[str] = Counter()
        places, led = [], []
        for entry in self._waiting:
            places.append(before[entry.caller])
            before[entry.caller] += len(entry.item)
            led.append(self._led.get(entry.caller, 0))
        order = sorted(zip(places, led, self._waiting, strict=True), key=itemgetter(0, 1))
        self._led = {caller: self._led.get(caller, 0) for caller in before}
        self._led[order[0][2].caller] = max(led) + 1
        return [entry for *_, entry in order]


def _like_lengths(entries: list[QueueEntry[Owner]], batch_tokens: int) -> list[QueueEntry[Owner]]:
    """Return the run of similar lengths around the first entry that has the most tokens."""
    by_length = sorted(entries, key=lambda entry: len(entry.item))
    sums = [0, *accumulate(len(entry.item) for entry in by_length)]
    urgent = by_length.index(entries[0])
    best, most = (urgent, urgent + 1), 0
    for end in range(urgent + 1, len(by_length) + 1):
        room = batch_tokens // len(by_length[end - 1].item)
        first = max(0, end - room)
        if first > urgent:
            break
        if sums[end] - sums[first] > most:
            best, most = (first, end), sums[end] - sums[first]
    return by_length[slice(*best)]


class _Job:
    def __init__(self, items: Sequence[TokenSequence], role: ModelRole, arrival: float) -> None:
        self.items = items
        self.arrival = arrival
        self.values: NDArray[Any] = np.empty((len(items), *role.shape), dtype=role.dtype)
        self.missing = len(items)
        self.done: Future[NDArray[Any]] = Future()

    def finish(self, error: BaseException | None = None) -> None:
        """Resolve the future, from any thread."""
        with suppress(InvalidStateError):  # no request waits any more
            if error is None:
                self.done.set_result(self.values)
            else:
                self.done.set_exception(error)


class Batcher(Generic[ModelType]):
    """Runs the requests of many callers on one model in this process.

    Scorers and encoders derive from it. A free device takes waiting items, earliest deadline first, up to the model's
    batch of tokens. Idle workers divide the waiting items among themselves. A request without a deadline is
    due `patience` seconds after its arrival, and its items are due later by the time that they take together, so short
    requests overtake long ones. Callers have equal parts of each batch.

    If the device runs out of memory, later batches are halved, and double again after `GROW_AFTER` successful ones.
    """

    role: ModelRole

    def __init__(
        self,
        model: ModelType,
        *,
        queue_tokens: int = 1_000_000,
        share: float = 1.0,
        patience: float = 30.0,
        on_lost: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the workers. The batcher closes the model.

        Args:
            model: The model that computes.
            queue_tokens: Most tokens that may wait. A request that would exceed them is rejected as a whole.
            share: The part of these tokens that one caller may use, as in `Shares`.
            patience: Seconds after which a request without a deadline is due.
            on_lost: Called if the device is lost for good or a worker ended because of a bug; then every request fails.
            clock: Returns the time in seconds.
        """
        self.queue_tokens = queue_tokens
        self.token_seconds = 0.0  # running mean per token, 0 before the first batch
        self.model = model
        self._share = share
        self._patience = patience
        self._on_lost = on_lost
        self._clock = clock
        self.batch_tokens = model.batch_tokens  # current size limit of a batch
        self._good_batches = 0  # since `batch_tokens` last changed
        self._queue: TokenQueue[_Job] = TokenQueue()
        self._tokenizing: list[tuple[float, int, str]] = []  # the due time, estimated tokens and caller of each request
        self.idle = 0  # workers that wait for a batch
        self._lost: str | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._tokenizer = FairExecutor("tokenizer", threads=TOKENIZER_THREADS, share=share)
        self._metrics = self.role.metrics.for_model(model.name, model.backend, self.waiting)
        self._workers = [
            threading.Thread(target=self._work, name=f"{self.role.name}-{worker}", daemon=True)
            for worker in range(model.workers)
        ]
        for worker in self._workers:
            worker.start()

    @property
    def name(self) -> str:
        return self.model.name

    def waiting(self) -> tuple[int, int]:
        with self._changed:
            return len(self._queue), self._queue.tokens

    def full_batch(self) -> int:
        return max(1, self.batch_tokens // self.model.max_length)

    def check_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"this {self.role.name} is closed")

    async def run(
        self,
        tokenize: Tokenization,
        characters: Iterable[int],
        *,
        deadline: float | None = None,
        patience: float | None = None,
        truncate: bool = True,
        admitted: bool = False,
        caller: str = "",
    ) -> Results:
        """Return the results of all items of a request.

        Args:
            tokenize: Returns the items; it may block.
            characters: The number of characters of each item.
            deadline: Seconds on the clock.
            patience: Replaces the batcher's own.
            truncate: Whether items may be truncated.
            admitted: Whether `enter` has admitted this work.
            caller: The caller whose share the request uses.

        Raises:
            Overloaded: Before any work, if the queue is full.
            LimitExceeded: Before any work, if the request can never fit.
            TextTooLong: Before any work, with truncate=False.
            DeadlineExceeded: If the results are late. Errors of the role are raised as well.
        """
        self.check_open()
        arrival = self._clock()
        lengths = list(characters)
        due = arrival + (self._patience if patience is None else patience) if deadline is None else deadline
        items = await self._tokenize(tokenize, self._guess(lengths), due, deadline, admitted, caller)
        if len(items) != len(lengths):
            given = f"{len(items)} {self.role.item}s of {len(lengths)} texts"
            raise self.role.failed(f"{self.model.name} made {given}; its tokenizer is unusable")
        truncated = [position for position, item in enumerate(items) if item.truncated]
        if truncated and not truncate:
            raise TextTooLong(
                f"text {truncated[0]} (and {len(truncated) - 1} more) does not fit into {self.model.max_length} "
                "tokens, together with any query; shorten it, or allow truncation"
            )
        job, tokens = _Job(items, self.role, arrival), sum(map(len, items))
        with self._changed:
            self._admit(tokens, due, deadline, admitted, caller)
            last = due + tokens * self.token_seconds
            self._queue.add(QueueEntry(item, job, place, last, caller) for place, item in enumerate(items))
            self._changed.notify(len(items))
        self._metrics.truncated.inc(len(truncated))
        try:
            async with asyncio.timeout(None if deadline is None else deadline - self._clock()):
                return Results(await asyncio.wrap_future(job.done), len(truncated))
        except TimeoutError:
            self._drop(job, "deadline")
            raise self._too_late() from None
        except asyncio.CancelledError:
            self._drop(job, "cancelled")
            raise

    def enter(self, characters: Iterable[int], caller: str = "") -> None:
        """Raise the errors that `run` would raise before any work, for items of these characters."""
        with self._changed:
            self._admit(self._guess(characters), self._clock() + self._patience, None, False, caller)

    async def close(self) -> None:
        """Finish the running batches, fail waiting requests, and release the model."""
        with self._changed:
            self._closed = True
            owners = self._queue.owners()
            self._queue.discard(owners)
            self._changed.notify_all()
        for job in owners:
            job.finish(self.role.unavailable(SHUTTING_DOWN))
        for worker in self._workers:
            await asyncio.to_thread(worker.join)
        await self._tokenizer.close()
        await asyncio.to_thread(self.model.close)
        self._metrics.close()

    async def _tokenize(
        self, tokenize: Tokenization, guess: int, due: float, deadline: float | None, admitted: bool, caller: str
    ) -> Sequence[TokenSequence]:
        expected = (due, guess, caller)
        with self._changed:
            self._admit(guess, due, deadline, admitted, caller)
            self._tokenizing.append(expected)
        start = self._clock()
        try:
            async with asyncio.timeout(None if deadline is None else deadline - start):
                return await self._tokenizer.run(tokenize, caller=caller)
        except TimeoutError:
            raise self._too_late() from None
        finally:
            with self._changed:
                self._tokenizing.remove(expected)
            self._metrics.tokenize_seconds.observe(self._clock() - start)

    def _too_late(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"the deadline passed before all {self.role.item}s were {self.role.done}")

    def _guess(self, characters: Iterable[int]) -> int:
        return sum(min(self.model.max_length, count // CHARACTERS_A_TOKEN) for count in characters)

    def _admit(self, tokens: int, due: float, deadline: float | None, admitted: bool, caller: str) -> None:
        """Raise unless this many more tokens, due at this time, may wait. The lock must be held."""
        if self._closed:
            raise self.role.unavailable(SHUTTING_DOWN)
        if self._lost is not None:
            raise self.role.unavailable(self._lost)
        if admitted:
            return
        if tokens > self.queue_tokens:
            limit = f"this {self.role.name}'s limit of {self.queue_tokens:,} tokens"
            raise LimitExceeded(f"texts: over {limit}: {tokens:,}")
        in_time = self._patience if deadline is None else deadline - self._clock()
        if in_time <= 0:
            raise DeadlineExceeded("the deadline passed before the request arrived")
        waiting = self._queue.tokens + sum(guess for _, guess, _ in self._tokenizing)
        own = self._queue.callers[caller] + sum(guess for _, guess, of in self._tokenizing if of == caller)
        excess = tokens - remaining_share(own, waiting, self.queue_tokens, self._share)
        late = (waiting + tokens) * self.token_seconds - in_time
        if late > 0:
            last = due + tokens * self.token_seconds
            ahead = self._queue.tokens_due(last, caller, tokens)
            ahead += sum(guess for due, guess, _ in self._tokenizing if due <= last)
            late = (ahead + tokens) * self.token_seconds - in_time if ahead else 0.0
        if excess > 0 or late > 0:
            self._metrics.refused.inc()
            raise Overloaded(
                f"{waiting:,} tokens are waiting already; try again later, or elsewhere",
                retry_after=max(1.0, late, excess * self.token_seconds),
            )

    def _work(self) -> None:
        batch: list[QueueEntry[_Job]] = []
        try:
            while batch := self._next():
                now = self._clock()
                for entry in batch:
                    self._metrics.wait_seconds.observe(now - entry.owner.arrival)
                self._run(batch)
        except BaseException as error:
            # Without this worker, requests could wait forever: fail all of them, and end the process.
            log.critical("a thread of the %s has ended", self.role.name, exc_info=error)
            self._lose(f"a thread of the {self.role.name} has ended ({type(error).__name__})", batch)

    def _next(self) -> list[QueueEntry[_Job]]:
        """Wait for the next batch; returns an empty one after `close`."""
        with self._changed:
            self.idle += 1
            while not self._queue and not self._closed:
                self._changed.wait()
            tokens = self.batch_tokens
            if self.model.parallel:
                tokens = min(tokens, -(-self._queue.tokens // self.idle))
            batch = self._queue.take(tokens, pads=self.model.pads)
            self.idle -= 1
        return batch

    def _run(self, batch: list[QueueEntry[_Job]]) -> None:
        start = self._clock()
        try:
            values = self._checked(self.model.run([entry.item for entry in batch]), len(batch))
        except DeviceLost as error:
            log.critical("the device of %s is lost: %s", self.model.name, error)
            self._lose(f"the {self.role.name}'s device is lost: {error}", batch)
        except Exception as error:
            # Halves may fit; an item that fails even alone fails only its own request.
            self._note(error, batch)
            if len(batch) == 1:
                self._fail(batch[0].owner, error)
                return
            middle = len(batch) // 2
            self._run(batch[:middle])
            self._run(batch[middle:])
        else:
            self._measure(batch, self._clock() - start)
            self._deliver(batch, values)

    def _checked(self, values: object, count: int) -> NDArray[Any]:
        """Return a model's output for `count` items, or raise an error of the role if it is invalid."""
        role = self.role
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiu":
            raise role.failed(f"{self.model.name} gave {type(values).__name__}, not numbers, as {role.result}s")
        if values.shape != (count, *role.shape):
            raise role.failed(f"{self.model.name} gave {values.shape} {role.result}s for {count} {role.item}s")
        if not np.isfinite(values).all():
            raise role.failed(f"{self.model.name} gave nan or inf for a {role.item}; another precision may help")
        return values

    def _note(self, error: Exception, batch: list[QueueEntry[_Job]]) -> None:
        if not isinstance(error, OutOfMemory):
            log.error("a batch of %d %ss failed", len(batch), self.role.item, exc_info=error)
            return
        tokens = sum(len(entry.item) for entry in batch)
        self._metrics.out_of_memory.inc()
        log.warning("out of memory for a batch of %d %ss, %d tokens", len(batch), self.role.item, tokens)
        with self._changed:
            smaller = max(self.model.max_length, min(self.batch_tokens, tokens // 2))
            self.batch_tokens = min(smaller, self.model.batch_tokens)
            self._good_batches = 0

    def _measure(self, batch: list[QueueEntry[_Job]], seconds: float) -> None:
        lengths = [len(entry.item) for entry in batch]
        tokens = sum(lengths)
        last = seconds / tokens / len(self._workers)
        with self._changed:
            self.token_seconds = MEMORY * self.token_seconds + (1 - MEMORY) * last if self.token_seconds else last
            self._good_batches += 1
            if self._good_batches >= GROW_AFTER and self.batch_tokens < self.model.batch_tokens:
                self.batch_tokens = min(2 * self.batch_tokens, self.model.batch_tokens)
                self._good_batches = 0
        self._metrics.compute_seconds.observe(seconds)
        self._metrics.batch_items.observe(len(batch))
        self._metrics.batch_tokens.observe(tokens)
        self._metrics.padding.observe(1 - tokens / (max(lengths) * len(lengths)) if self.model.pads else 0.0)

    def _deliver(self, batch: list[QueueEntry[_Job]], values: NDArray[Any]) -> None:
        finished = []
        with self._changed:
            for entry, value in zip(batch, values, strict=True):
                job = entry.owner
                job.values[entry.position] = value
                job.missing -= 1
                if not job.missing:
                    finished.append(job)
        for job in finished:
            job.finish()

    def _fail(self, job: _Job, error: Exception) -> None:
        item = self.role.item
        if isinstance(error, OutOfMemory):
            longest = max(map(len, job.items))
            message = f"the device has no memory for a single {item} of {longest} tokens; use a shorter max_length"
        else:
            message = f"{self.model.name} fails on a {item} ({type(error).__name__}); the log has the details"
        if not isinstance(error, BoundaryMorphError):
            failed = self.role.failed(message)
            failed.__cause__, error = error, failed
        self._drop(job, "failed")
        job.finish(error)

    def _lose(self, reason: str, batch: list[QueueEntry[_Job]]) -> None:
        with self._changed:
            first, self._lost = self._lost is None, reason
            jobs = self._queue.owners() | {entry.owner for entry in batch}
            dropped = self._queue.discard(jobs)
        try:
            if first:
                self._on_lost()
        finally:
            for job in jobs:
                job.finish(self.role.unavailable(reason))
        self._metrics.dropped("failed", dropped)

    def _drop(self, job: _Job, reason: str) -> None:
        with self._changed:
            dropped = self._queue.discard([job])
        self._metrics.dropped(reason, dropped)
