"""What hosted scorers take, as published. Resellers and compatible servers have prices of their own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from boundarymorph.remote.urls import Endpoint
from boundarymorph.scoring.remote.dialects import Cohere, Decisions, Jina, SystemOne, Voyage
from boundarymorph.scoring.trips import Price

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
