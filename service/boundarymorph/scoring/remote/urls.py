"""Reading a scorer's address."""

from __future__ import annotations

from boundarymorph.remote import urls
from boundarymorph.remote.urls import Endpoint, Spelling
from boundarymorph.scoring.judge.dialect import OpenAI
from boundarymorph.scoring.remote.dialects import BOUNDARYMORPH, FOREIGN

__all__ = ["Endpoint", "parse"]

_SPELLING = Spelling("a scorer", {**FOREIGN, OpenAI.name: OpenAI()}, BOUNDARYMORPH)


def parse(url: str) -> Endpoint:
    """Read `SCHEME://HOST:PORT/PREFIX?model=NAME`.

    `http` and `https` are scorers of this service; `tei`, `vllm` and `infinity` are servers of that kind over plain
    HTTP; `cohere`, `jina` and `openai` (a chat model that grades) are the hosted services over TLS. `+http` or `+https`
    after one of these six changes that.

    Raises InvalidConfiguration; its message contains no password.
    """
    return urls.parse(url, _SPELLING)
