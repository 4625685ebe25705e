"""Define scorers, which give (query, document) pairs a relevance in [0, 1], and local ones."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from boundarymorph.calibration.calibration import sigmoid
from boundarymorph.errors import BoundaryMorphError, InvalidInput, ScorerFailed, ScorerUnavailable
from boundarymorph.inference.batching import Batcher
from boundarymorph.inference.models import Model, ModelRole, OnnxTextModel, TokenSequence, embedded_cross_encoder
from boundarymorph.reading import blank_positions
from boundarymorph.remote.wire import Span, TokenCounts
from boundarymorph.telemetry import metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Scores:
    """A scorer's answer for n texts.

    Attributes:
        values: (n,) float64 in [0, 1]; NaN if the scorer answered without a score.
        model: The model that gave the scores; None if it cannot change.
        failure: Why the scorer could not give the missing values now; the others are valid.
        tokens: Tokens that a language model read and wrote for them.
        spans: The relevant parts of texts, by text, as far as the scorer names them.
    """

    values: NDArray[np.float64]
    truncated: int = 0
    model: str | None = None
    failure: BoundaryMorphError | None = None
    tokens: TokenCounts | None = None
    spans: Mapping[str, Sequence[Span]] = field(default_factory=dict)


TOLERANCE = 1e-6  # distance by which rounding may move a score out of [0, 1]


def clip_rounding(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return scores, with those that rounding moved out of [0, 1] put back at its edge."""
    near = (values >= -TOLERANCE) & (values <= 1.0 + TOLERANCE)
    return np.where(near, np.clip(values, 0.0, 1.0), values)


def check_scores(scores: Scores, count: int, scorer: str) -> Scores:
    """Return scores for `count` texts, with NaN for those outside [0, 1].

    Raises:
        ScorerFailed: If all are outside, or their number is wrong.
    """
    values = clip_rounding(scores.values)
    if values.shape != (count,):
        raise ScorerFailed(f"{scorer} gave scores of the shape {values.shape} for {count} texts")
    outside = (values < 0.0) | (values > 1.0)
    if not outside.any():
        return replace(scores, values=values)
    wrong = float(values[outside][0])
    message = f"{scorer} gave scores outside [0, 1], such as {wrong!r}, for {outside.sum()} of {count} texts"
    if outside.all():
        raise ScorerFailed(message)
    log.warning("%s; these texts get no score", message)
    return replace(scores, values=np.where(outside, np.nan, values))


async def score_content(texts: Sequence[str], score: Callable[[Sequence[str]], Awaitable[Scores]]) -> Scores:
    """Return the scores of the texts with words, and 0 for the others.

    Cross-encoders are often sure of a text without words, and some servers refuse it.
    """
    without = blank_positions(texts)
    if not without:
        return await score(texts)
    there = np.ones(len(texts), dtype=np.bool_)
    there[without] = False
    values = np.zeros(len(texts))
    if not there.any():
        return Scores(values)
    scores = await score([text for text, has in zip(texts, there, strict=True) if has])
    values[there] = scores.values
    return replace(scores, values=values)


class TakesNoInstruction(InvalidInput):
    """The scorer's model reads no instruction, so that one would change nothing."""

    slug = "invalid-input"

    def __init__(self, scorer: str) -> None:
        super().__init__(f"instruction: the scorer, {scorer}, takes none; leave it out, or put it into the query")


class Scorer(Protocol):
    """f_CE of the paper. The score of a pair does not depend on the other pairs of a call."""

    @property
    def name(self) -> str:
        """Model and precision: the name under which scores may be cached."""

    async def check(self) -> None:
        """Warm up and score a probe. Raises as `score` does."""

    @property
    def max_length(self) -> int | None:
        """The most tokens of a pair that it reads, or None if that is not known."""

    @property
    def takes_instruction(self) -> bool:
        """Whether its model may read an instruction, which says what counts as relevant."""

    async def score(
        self,
        query: str,
        texts: Sequence[str],
        *,
        deadline: float | None = None,
        instruction: str | None = None,
        caller: str = "",
    ) -> Scores:
        """Score n texts against one query, or raise an error if none can be scored.

        Args:
            query: The query.
            texts: The n texts.
            deadline: Seconds on `time.monotonic()`.
            instruction: Replaces the operator's; a language model reads both.
            caller: The caller that the work is for; "" is the service itself.

        Raises:
            Overloaded: Before any work was done.
            DeadlineExceeded: If the scores are late.
            ScorerUnavailable: If no scorer works now.
            ScorerFailed: If another try will not help.
        """

    async def close(self) -> None:
        """Release threads and connections; later calls fail."""


class CrossEncoder(Model, Protocol):
    """A `Model` that returns relevance scores.

    Two with the same name, which includes the prompt, return the same.
    """

    @property
    def takes_instruction(self) -> bool:
        """Whether its prompt has a place for an instruction."""

    def tokenize(self, query: str, texts: Sequence[str], instruction: str | None = None) -> list[TokenSequence]:
        """Tokenize the pairs of n texts with one query.

        Without a place for it in the prompt, an instruction is ignored.

        Raises:
            InvalidInput: If the instruction fills the prompt.
        """

    def run(self, pairs: Sequence[TokenSequence], /) -> NDArray[np.float64]:
        """Return the (n,) relevance scores in [0, 1] of a batch. Raises OutOfMemory or DeviceLost."""


SCORER = ModelRole(
    name="scorer",
    item="pair",
    result="score",
    done="scored",
    dtype=np.float64,
    unavailable=ScorerUnavailable,
    failed=ScorerFailed,
    metrics=metrics.scorer_batches,
)


class BatchingScorer(Batcher[CrossEncoder]):
    """A `Scorer` that batches the pairs of all requests together.

    See `Batcher` for the order and the limits.
    """

    role = SCORER

    async def check(self) -> None:
        """Warm up with a batch of the largest size, then score a probe. Raises as `score` does."""
        await self.score("up", ["warm " * self.model.max_length] * self.full_batch())
        await self.score("probe", ["probe"])

    @property
    def max_length(self) -> int:
        return self.model.max_length

    @property
    def takes_instruction(self) -> bool:
        return self.model.takes_instruction

    async def score(
        self,
        query: str,
        texts: Sequence[str],
        *,
        deadline: float | None = None,
        truncate: bool = True,
        instruction: str | None = None,
        caller: str = "",
    ) -> Scores:
        """Do as `Scorer.score`. With truncate=False, raise TextTooLong before any work."""
        self.check_open()
        if not texts:
            return Scores(np.empty(0))
        if instruction is not None and not self.takes_instruction:
            raise TakesNoInstruction(self.name)
        pairs: list[TokenSequence] = []

        def tokenize() -> list[TokenSequence]:
            pairs.extend(self.model.tokenize(query, texts, instruction))
            return pairs

        results = await self.run(
            tokenize, (len(query) + len(text) for text in texts), deadline=deadline, truncate=truncate, caller=caller
        )
        return Scores(np.where([pair.unknown for pair in pairs], 0.0, results.values), results.truncated)


class OnnxCrossEncoder(OnnxTextModel):
    takes_instruction = False

    @classmethod
    def embedded(cls, *, max_length: int = 512, threads: int | None = None) -> OnnxCrossEncoder:
        return cls(embedded_cross_encoder(), max_length=max_length, threads=threads)

    def tokenize(self, query: str, texts: Sequence[str], instruction: str | None = None) -> list[TokenSequence]:
        return self.encode_pairs(query, texts)

    def run(self, pairs: Sequence[TokenSequence]) -> NDArray[np.float64]:
        return sigmoid(np.array([self.infer(pair.ids, pair.type_ids)[0] for pair in pairs], dtype=np.float64))
