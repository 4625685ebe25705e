"""What selections have learned, for people."""

from __future__ import annotations

import math

import orjson

from boundarymorph.api.schemas import LearnedMemory
from boundarymorph.memory.memory import Memory
from boundarymorph.memory.store import Memories


def described_memories(memories: Memories) -> list[LearnedMemory]:
    """Return all of a file. Raises as `Memories.all` does."""
    return [_described(key, memory) for key, memory in memories.all().items()]


def _described(key: str, memory: Memory) -> LearnedMemory:
    _, scorer, vectors, tenant = orjson.loads(key)
    prior = memory.prior
    amplitude = None if prior is None else math.sqrt(prior.scale)
    slopes = [None] * 3 if prior is None or amplitude is None else (amplitude * prior.slopes).tolist()
    return LearnedMemory(
        scorer=scorer,
        vectors=vectors,
        tenant=tenant,
        requests=memory.requests,
        remembered=len(memory.told),
        in_force=memory.in_force,
        ahead=memory.ahead / memory.weight if memory.weight else None,
        level=None if prior is None else prior.level,
        by_rank=slopes[0],
        by_similarity=slopes[1],
        by_words=slopes[2],
        amplitude=amplitude,
    )
