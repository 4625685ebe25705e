"""What a memory has learned, in numbers and words for people."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from boundarymorph.memory.memory import LEAST_AHEAD, Memory
from boundarymorph.memory.store import Memories


@dataclass(frozen=True, slots=True)
class Learned:
    """requests: of all times; remembered: of these; ahead: nats a request by which it predicts better than the default,
    of late. level: expected log-odds of an average candidate; by_rank, by_similarity, by_words: log-odds more for each
    standard deviation; amplitude: standard deviation of what these do not explain. None before it has learned."""

    scorer: str
    vectors: str
    tenant: str
    requests: int
    remembered: int
    in_force: bool
    ahead: float | None = None
    level: float | None = None
    by_rank: float | None = None
    by_similarity: float | None = None
    by_words: float | None = None
    amplitude: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def described(memories: Memories) -> list[Learned]:
    """Return all of a file. Raises as `Memories.all` does."""
    return [_described(key, memory) for key, memory in memories.all().items()]


def _described(key: str, memory: Memory) -> Learned:
    _, scorer, vectors, tenant = orjson.loads(key)
    whose = scorer, vectors, tenant, memory.requests, len(memory.told), memory.in_force
    if (prior := memory.prior) is None:
        return Learned(*whose)
    amplitude = math.sqrt(prior.scale)
    ahead = memory.ahead / memory.weight if memory.weight else None
    by_rank, by_similarity, by_words = (amplitude * prior.slopes).tolist()
    return Learned(*whose, ahead, prior.level, by_rank, by_similarity, by_words, amplitude)


def in_words(learned: Learned) -> str:
    """Return a paragraph."""
    lines = [f"{learned.scorer}, vectors of {learned.vectors}{f', tenant {learned.tenant}' if learned.tenant else ''}"]
    if learned.level is None or learned.by_rank is None or learned.ahead is None:
        return f"{lines[0]}\n  {learned.requests:,} requests, too few to learn from"
    lines.append(f"  learned from the last {learned.remembered:,} of {learned.requests:,} requests")
    state = "in force" if learned.in_force else f"not in force, for which {LEAST_AHEAD:g} is needed"
    lines.append(f"  predicts scores better than the default by {learned.ahead:+.1f} nats a request: {state}")
    lines.append(f"  an average candidate is expected to score {1 / (1 + math.exp(-learned.level)):.2g}")
    slopes = {"rank": learned.by_rank, "similarity": learned.by_similarity, "words (BM25)": learned.by_words}
    lines.append("  one standard deviation more multiplies the odds of a score by")
    most = max(1e-9, *(abs(slope or 0.0) for slope in slopes.values()))
    for what, slope in slopes.items():
        bar = "█" * round(20 * abs(slope or 0.0) / most)
        lines.append(f"    {what:<13}{math.exp(slope or 0.0):5.2f}  {bar}")
    return "\n".join(lines)
