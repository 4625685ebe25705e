"""Scores from other processes and other machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import numpy as np

from boundarymorph.errors import ScorerFailed, ScorerUnavailable
from boundarymorph.remote.model import Options, RemoteModel
from boundarymorph.remote.role import Role
from boundarymorph.remote.urls import Endpoint
from boundarymorph.scoring.scorer import Scores

_ROLE = Role("scorer", "scores", "scored", ScorerUnavailable, ScorerFailed)


class RemoteScorer:
    """A `Scorer` over HTTP, in front of one server or several that serve the same model."""

    def __init__(self, endpoints: Sequence[Endpoint], **options: Unpack[Options]) -> None:
        """options: as of `RemoteModel`; timeout is that of a call of `score`. Raises InvalidConfiguration."""
        self._model = RemoteModel(endpoints, _ROLE, **options)

    @property
    def identity(self) -> str | None:
        """The model in use, as its servers name it; None before one has answered. It can change."""
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
        return Scores(answer.values, answer.truncated, model=answer.served)

    async def close(self) -> None:
        await self._model.close()
