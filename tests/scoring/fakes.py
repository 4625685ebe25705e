"""A cheap scorer: a pair's score is drawn from a generator that is seeded with the pair."""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from boundarymorph.scoring.scorer import Scores


def score_of(query: str, text: str) -> float:
    seed = int.from_bytes(blake2b(f"{query}\0{text}".encode(), digest_size=8).digest())
    return float(np.random.default_rng(seed).uniform())


class SeededScorer:
    """A `Scorer` that understands nothing, keeps its rounds, and counts over 100 characters as truncated."""

    name = "seeded"

    def __init__(self) -> None:
        self.rounds: list[list[str]] = []

    async def score(self, query: str, texts: Sequence[str]) -> Scores:
        self.rounds.append(list(texts))
        values = np.array([score_of(query, text) for text in texts], dtype=np.float64)
        return Scores(values, truncated=sum(len(text) > 100 for text in texts))

    async def close(self) -> None:
        pass
