"""A scorer in other processes or on other machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import numpy as np

from boundarymorph.errors import ScorerFailed, ScorerUnavailable
from boundarymorph.remote.balancer import Role
from boundarymorph.remote.model import Options, RemoteModel
from boundarymorph.remote.urls import Endpoint
from boundarymorph.remote.wire import Context
from boundarymorph.scoring.scorer import Scores

_ROLE = Role("scorer", ScorerUnavailable, ScorerFailed, "scored", "scores")


class RemoteScorer(RemoteModel):
    """A `Scorer` over HTTP, behind one or more servers that serve the same model."""

    def __init__(self, endpoints: Sequence[Endpoint], **options: Unpack[Options]) -> None:
        """Raises InvalidConfiguration if the endpoints do not fit together or lack the name of a model."""
        super().__init__(endpoints, _ROLE, **options)

    async def check(self) -> None:
        """Score a short pair. Raises as `score` does."""
        await self.score("probe", ["probe"])

    @property
    def takes_instruction(self) -> bool:
        """Whether a server says so; assumed while none has described itself."""
        said = [description.instructed for description in self.descriptions]
        return any(said) or not said

    async def score(
        self, query: str, texts: Sequence[str], *, deadline: float | None = None, instruction: str | None = None
    ) -> Scores:
        self.check_open()
        if not texts:
            return Scores(np.empty(0))
        answer = await self.call(Context(query, instruction), texts, deadline=deadline)
        return Scores(answer.values, answer.truncated, model=answer.served, server=answer.server)
