"""Reading a scorer's address."""

from __future__ import annotations

from dataclasses import replace
from typing import cast, get_args

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.remote import urls
from boundarymorph.remote.urls import Endpoint, Spelling
from boundarymorph.scoring.judge.dialect import OpenAI
from boundarymorph.scoring.remote.dialects import (
    BOUNDARYMORPH,
    FOREIGN,
    Activation,
    Jina,
    ListwiseJina,
    RerankServer,
)

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
