"""Batches across requests: keeps one cross-encoder busy with what all callers ask."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import (
    DeadlineExceeded,
    LimitExceeded,
    Overloaded,
    ScorerFailed,
    ScorerUnavailable,
    TextTooLong,
)
from boundarymorph.scoring.cross_encoder import CrossEncoder, DeviceLost, OutOfMemory, Pair
from boundarymorph.scoring.queue import Entry, PairQueue, padding
from boundarymorph.scoring.scorer import Scores
from boundarymorph.telemetry import metrics

TOKENIZER_THREADS = 2
CHARACTERS_A_TOKEN = 4  # a guess, in force while a request is being tokenised
MEMORY = 0.9  # of the seconds a token took lately, against those of the last batch
log = logging.getLogger(__name__)


class _Job:
    """One request on its way: the scores that are there, and how many are missing."""

    def __init__(self, pairs: Sequence[Pair], arrival: float, deadline: float | None) -> None:
        self.pairs = pairs
        self.arrival = arrival
        self.deadline = deadline
        self.values = np.empty(len(pairs), dtype=np.float64)
        self.missing = len(pairs)
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[NDArray[np.float64]] = self.loop.create_future()

    def finish(self, error: BaseException | None = None) -> None:
        """Wake who waits, from any thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self.loop.call_soon_threadsafe(self._resolve, error)

    def _resolve(self, error: BaseException | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(self.values)
        else:
            self.done.set_exception(error)


class BatchingScorer:
    """A `Scorer` over a cross-encoder in this process.

    Whenever the device is free it takes what waits, the earliest deadline first, up to the model's batch of tokens;
    nothing ever waits for a batch to fill, and lanes that are idle side by side share what there is. Requests without a
    deadline count as due `patience` seconds after they came, and the later pairs of a long request as due later by the
    time that those before them take, so that short requests get between.

    queue_tokens: what may wait; a request that would be over it, or could not be answered in time, is refused whole.
    on_lost: called when the device is gone for good; every request fails from then on.
    """

    def __init__(
        self,
        model: CrossEncoder,
        *,
        queue_tokens: int = 1_000_000,
        patience: float = 30.0,
        on_lost: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model
        self.queue_tokens = queue_tokens
        self._patience = patience
        self._on_lost = on_lost
        self._clock = clock
        self._batch_tokens = model.batch_tokens
        self._queue: PairQueue[_Job] = PairQueue()
        self._tokenizing = 0  # tokens of requests that are being tokenised, as guessed
        self._token_seconds = 0.0
        self._idle = 0  # lanes that wait for a batch
        self._lost: str | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._tokenizer = ThreadPoolExecutor(TOKENIZER_THREADS, thread_name_prefix="tokenizer")
        self._metrics = metrics.ScorerMetrics(model.name, model.backend, self.waiting)
        self._lanes = [
            threading.Thread(target=self._work, name=f"scorer-{lane}", daemon=True) for lane in range(model.lanes)
        ]
        for lane in self._lanes:
            lane.start()

    @property
    def name(self) -> str:
        return self.model.name

    def waiting(self) -> tuple[int, int]:
        """Pairs and tokens that wait now."""
        with self._changed:
            return len(self._queue), self._queue.tokens

    async def check(self) -> None:
        """Warm up with a batch as large as they get, then score a canary. Raises what `score` does."""
        longest = "warm " * self.model.max_length
        await self.score("up", [longest] * max(1, self._batch_tokens // self.model.max_length))
        canary = (await self.score("canary", ["canary"])).values
        if not np.isfinite(canary).all():
            raise ScorerFailed(
                f"{self.name} answers {canary[0]} to a canary; its weights or its precision are unusable"
            )

    async def score(
        self, query: str, texts: Sequence[str], *, deadline: float | None = None, truncate: bool = True
    ) -> Scores:
        """As `Scorer.score`. With truncate=False, raises TextTooLong if anything would be cut, before any work."""
        if self._closed:
            raise RuntimeError("this scorer is closed")
        if not texts:
            return Scores(np.empty(0))
        arrival = self._clock()
        pairs = await self._tokenize(query, texts, deadline)
        truncated = [position for position, pair in enumerate(pairs) if pair.truncated]
        if truncated and not truncate:
            raise TextTooLong(
                f"text {truncated[0]} (and {len(truncated) - 1} more) does not fit into {self.model.max_length} tokens "
                "with its query; shorten it, or allow it to be cut"
            )
        job = _Job(pairs, arrival, deadline)
        with self._changed:
            self._admit(sum(map(len, pairs)), deadline)
            self._queue.add(self._entries(job))
            self._changed.notify(len(pairs))
        self._metrics.truncated.inc(len(truncated))
        try:
            async with asyncio.timeout(None if deadline is None else deadline - self._clock()):
                return Scores(await job.done, len(truncated))
        except TimeoutError:
            self._drop([job], "deadline")
            raise DeadlineExceeded("the deadline was over before all pairs were scored") from None
        except asyncio.CancelledError:
            self._drop([job], "cancelled")
            raise

    async def close(self) -> None:
        """Finish the batches under way, give up what waits, release the model."""
        with self._changed:
            self._closed = True
            owners = self._queue.owners()
            self._queue.discard(owners)
            self._changed.notify_all()
        for job in owners:
            job.finish(ScorerUnavailable("the scorer is shutting down"))
        for lane in self._lanes:
            await asyncio.to_thread(lane.join)
        await asyncio.to_thread(self._tokenizer.shutdown)
        await asyncio.to_thread(self.model.close)
        self._metrics.close()

    async def _tokenize(self, query: str, texts: Sequence[str], deadline: float | None) -> list[Pair]:
        most = self.model.max_length
        guess = sum(min(most, (len(query) + len(text)) // CHARACTERS_A_TOKEN) for text in texts)
        with self._changed:
            self._admit(guess, deadline)
            self._tokenizing += guess
        start = self._clock()
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._tokenizer, self.model.tokenize, query, texts)
        finally:
            with self._changed:
                self._tokenizing -= guess
            self._metrics.tokenize_seconds.observe(self._clock() - start)

    def _admit(self, tokens: int, deadline: float | None) -> None:
        """Raise unless so many more tokens may wait. The lock is held."""
        if self._closed:
            raise ScorerUnavailable("the scorer is shutting down")
        if self._lost is not None:
            raise ScorerUnavailable(self._lost)
        if tokens > self.queue_tokens:
            raise LimitExceeded(f"texts: over this scorer's limit of {self.queue_tokens:,} tokens: {tokens:,}")
        ahead = self._queue.tokens + self._tokenizing
        in_time = self._patience if deadline is None else deadline - self._clock()
        if in_time <= 0:
            raise DeadlineExceeded("the deadline was over before the request came")
        late = (ahead + tokens) * self._token_seconds - in_time
        excess = ahead + tokens - self.queue_tokens
        if excess > 0 or (ahead and late > 0):
            self._metrics.refused.inc()
            raise Overloaded(
                f"{ahead:,} tokens are waiting already; try again later, or elsewhere",
                retry_after=max(1.0, late, excess * self._token_seconds),
            )

    def _entries(self, job: _Job) -> Iterable[Entry[_Job]]:
        due = job.arrival + self._patience if job.deadline is None else job.deadline
        before = accumulate((len(pair) for pair in job.pairs), initial=0)
        for position, (pair, tokens) in enumerate(zip(job.pairs, before, strict=False)):
            yield Entry(pair, job, position, due + tokens * self._token_seconds)

    def _work(self) -> None:
        while batch := self._next():
            self._run(batch)

    def _next(self) -> list[Entry[_Job]]:
        """Wait for the next batch; none when this is closed."""
        with self._changed:
            self._idle += 1
            while not self._queue and not self._closed:
                self._changed.wait()
            now = self._clock()
            tokens = self._batch_tokens
            if self.model.side_by_side:
                tokens = min(tokens, -(-self._queue.tokens // self._idle))
            batch = self._queue.take(tokens, pads=self.model.pads)
            self._idle -= 1
        for entry in batch:
            self._metrics.wait_seconds.observe(now - entry.owner.arrival)
        return batch

    def _run(self, batch: list[Entry[_Job]]) -> None:
        start = self._clock()
        try:
            values = self.model.run([entry.pair for entry in batch])
            if values.shape != (len(batch),):
                raise ScorerFailed(f"{self.name} gave {values.shape} scores for {len(batch)} pairs")
        except DeviceLost as error:
            self._lose(error, batch)
        except Exception as error:
            # Halves may fit, and a pair that no batch survives fails its own request only.
            self._note(error, batch)
            if len(batch) == 1:
                self._fail(batch[0].owner, error)
            else:
                middle = len(batch) // 2
                self._run(batch[:middle])
                self._run(batch[middle:])
        else:
            self._measure(batch, self._clock() - start)
            self._deliver(batch, values)

    def _note(self, error: Exception, batch: list[Entry[_Job]]) -> None:
        tokens = sum(len(entry.pair) for entry in batch)
        if not isinstance(error, OutOfMemory):
            log.error("a batch of %d pairs failed", len(batch), exc_info=error)
            return
        self._metrics.out_of_memory.inc()
        log.warning("out of memory for a batch of %d pairs, %d tokens", len(batch), tokens)
        with self._changed:
            self._batch_tokens = max(self.model.max_length, min(self._batch_tokens, tokens // 2))

    def _measure(self, batch: list[Entry[_Job]], seconds: float) -> None:
        lengths = [len(entry.pair) for entry in batch]
        tokens = sum(lengths)
        last = seconds / tokens / len(self._lanes)
        with self._changed:
            self._token_seconds = MEMORY * self._token_seconds + (1 - MEMORY) * last if self._token_seconds else last
        self._metrics.compute_seconds.observe(seconds)
        self._metrics.batch_pairs.observe(len(batch))
        self._metrics.batch_tokens.observe(tokens)
        self._metrics.padding.observe(padding(lengths, pads=self.model.pads))

    def _deliver(self, batch: list[Entry[_Job]], values: NDArray[np.float64]) -> None:
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
        if isinstance(error, OutOfMemory):
            longest = max(map(len, job.pairs))
            error = ScorerFailed(
                f"the device has no memory for a single pair of {longest} tokens; use a shorter max_length"
            )
        self._drop([job], "failed")
        job.finish(error)

    def _lose(self, error: DeviceLost, batch: list[Entry[_Job]]) -> None:
        log.critical("the device of %s is lost: %s", self.name, error)
        with self._changed:
            first, self._lost = self._lost is None, f"the scorer's device is lost: {error}"
            jobs = self._queue.owners() | {entry.owner for entry in batch}
        self._drop(jobs, "failed")
        for job in jobs:
            job.finish(ScorerUnavailable(self._lost))
        if first:
            self._on_lost()

    def _drop(self, jobs: Iterable[_Job], reason: str) -> None:
        with self._changed:
            dropped = self._queue.discard(set(jobs))
        self._metrics.dropped(reason, dropped)
