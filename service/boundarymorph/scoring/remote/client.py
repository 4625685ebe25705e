"""Scores from other processes and other machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from boundarymorph.errors import ScorerFailed, ScorerUnavailable
from boundarymorph.remote.client import Observer, RemoteModel
from boundarymorph.remote.role import Role
from boundarymorph.remote.urls import Endpoint
from boundarymorph.scoring.scorer import Scores

_ROLE = Role("scorer", "scores", "scored", ScorerUnavailable, ScorerFailed)


class RemoteScorer:
    """A `Scorer` over HTTP, in front of one server or several that serve the same model."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        api_key: str | None = None,
        timeout: float = 30.0,
        attempt_timeout: float = 10.0,
        connections: int = 64,
        clock: Callable[[], float] = time.monotonic,
        seed: int = 0,
        observe: Observer | None = None,
    ) -> None:
        """api_key: sent to all servers as a Bearer token; timeout: seconds for a call of `score` without a deadline;
        attempt_timeout: seconds for one request; observe: called with the server's base URL, the outcome and the
        seconds of each request for scores.

        Raises InvalidConfiguration.
        """
        self._model = RemoteModel(
            endpoints,
            _ROLE,
            api_key=api_key,
            timeout=timeout,
            attempt_timeout=attempt_timeout,
            connections=connections,
            clock=clock,
            seed=seed,
            observe=observe,
        )

    @property
    def identity(self) -> str | None:
        """The model as its server names it; None before one has answered."""
        return self._model.identity

    @property
    def name(self) -> str:
        return self._model.name

    async def connect(self) -> None:
        """Ask all servers side by side what they are; one that fits is enough.

        Raises ScorerUnavailable, Overloaded or ScorerFailed.
        """
        await self._model.connect()

    async def check(self) -> None:
        """Score a canary. Raises what `score` does."""
        await self.score("canary", ["canary"])

    async def score(self, query: str, texts: Sequence[str], *, deadline: float | None = None) -> Scores:
        self._model.check_open()
        if not texts:
            return Scores(np.empty(0))
        answer = await self._model.call(query, texts, deadline=deadline)
        return Scores(answer.values, answer.truncated)

    async def close(self) -> None:
        await self._model.close()
