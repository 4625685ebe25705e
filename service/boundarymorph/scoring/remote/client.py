"""A scorer in other processes or on other machines: its address, its price, and calls of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Unpack, cast, get_args

import numpy as np

from boundarymorph.errors import InvalidConfiguration, ScorerFailed, ScorerUnavailable
from boundarymorph.remote import urls
from boundarymorph.remote.balancer import Role
from boundarymorph.remote.model import Options, RemoteModel
from boundarymorph.remote.urls import Endpoint, Spelling
from boundarymorph.remote.wire import Context
from boundarymorph.scoring.costs import Price
from boundarymorph.scoring.judge.dialect import OpenAI
from boundarymorph.scoring.remote.dialects import (
    BOUNDARYMORPH,
    FOREIGN,
    Activation,
    Cohere,
    Decisions,
    Jina,
    ListwiseJina,
    RerankServer,
    SystemOne,
    Voyage,
)
from boundarymorph.scoring.scorer import Scores

__all__ = ["Endpoint", "parse"]

_SPELLING = Spelling("a scorer", {**FOREIGN, OpenAI.name: OpenAI()}, BOUNDARYMORPH, get_args(Activation))


def parse(url: str) -> Endpoint:
    """Read `SCHEME://HOST:PORT/PREFIX?model=NAME&activation=sigmoid`.

    `http` and `https` are scorers of this service; `tei`, `vllm`, `infinity` and `llamacpp` are servers of that kind
    over plain HTTP; `cohere`, `jina`, `voyage`, `systemone`, `decisions` (decision models) and `openai` (a chat model
    that grades) are the hosted services over TLS. `+http` or `+https` after one of these ten changes that. activation:
    of rerank servers of others: their results are logits (`sigmoid`), cosines (`cosine`), or relevances in [0, 1]
    (`none`).

    Raises InvalidConfiguration; its message contains no password.
    """
    endpoint = urls.parse(url, _SPELLING)
    if type(endpoint.dialect) is Jina and ListwiseJina.family in str(endpoint.model):
        endpoint = replace(endpoint, dialect=ListwiseJina())
    if endpoint.activation is None:
        return endpoint
    if not isinstance(endpoint.dialect, RerankServer):
        raise InvalidConfiguration(f"activation: {endpoint.dialect.name} gives relevances in [0, 1]; leave it out")
    return replace(endpoint, dialect=endpoint.dialect.activated(cast(Activation, endpoint.activation)))


log = logging.getLogger(__name__)


class Published(NamedTuple):
    """A price in US dollars. home: where the service is; model: how the names of those with this price begin; source:
    the page that says so, and when."""

    home: str | None
    model: str
    price: Price
    source: str


def _a_million(dollars: float) -> Price:
    return Price(tokens=dollars / 1_000)


_COHERE = "developer.puter.com/tutorials/cohere-api-pricing, of June 2026; a search is up to 100 documents"
_VOYAGE = "docs.voyageai.com/docs/pricing as quoted by usagepricing.com/blueprint/voyage-ai, of 2026"
_LIST = "getmaxim.ai/bifrost/llm-cost-calculator, read in November 2026"
PUBLISHED = (
    Published(Cohere.home, "rerank-v4.0-fast", Price(unit=0.0020), _COHERE),
    Published(Cohere.home, "rerank-v4.0-pro", Price(unit=0.0025), _COHERE),
    Published(Cohere.home, "rerank-v3.5", Price(unit=0.0020), "docs.memberjunction.org, of April 2026"),
    Published(Voyage.home, "rerank-2.5", _a_million(0.05), _VOYAGE),
    Published(Voyage.home, "rerank-2.5-lite", _a_million(0.02), _VOYAGE),
    Published(Jina.home, "jina-reranker-m0", _a_million(0.05), _LIST),
    Published(SystemOne.home, "jev-", _a_million(0.042), "zuplo.com/docs/ai-gateway/jev, read in November 2026"),
    Published(Decisions.home, "pplx-decider-v1.2", _a_million(0.02), _LIST),
    Published(Decisions.home, "pplx-decider-v1.3", _a_million(0.02), _LIST),
    Published(Decisions.home, "pplx-decider-flash-", _a_million(0.01), _LIST),
)


def published(endpoints: Sequence[Endpoint]) -> Price:
    """Return the price that all these have in common; one of 0 if there is none or it is not known."""
    found = {_best(endpoint) for endpoint in endpoints}
    known = found.pop()
    if found or known is None:
        return Price()
    log.info("prices of %s in US dollars: %s; scorer.price replaces them", known.model, known.source)
    return known.price


def _best(endpoint: Endpoint) -> Published | None:
    """Return the entry whose name fits best."""
    fitting = [one for one in PUBLISHED if one.home == endpoint.base and str(endpoint.model).startswith(one.model)]
    return max(fitting, key=lambda one: len(one.model), default=None)


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
