"""The dialect of NVIDIA's NIM for reranking: `passages` to `rankings`."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from boundarymorph.api.rerank.common import (
    Diagnostics,
    LaxInt,
    LaxText,
    Ranking,
    RerankFormat,
    RerankRequest,
    TokenUsage,
    Wanted,
)
from boundarymorph.api.schemas import Array, Problem, QueryText


class NimText(BaseModel):
    """A text in an object; images are not supported."""

    model_config = ConfigDict(extra="ignore", strict=True)

    text: LaxText = Field(description="what is read")


class NimQuery(NimText):
    """The query in an object."""

    text: QueryText = Field(description="the information need, in plain words")


class NimRequest(RerankRequest):
    """A request in the format of a reranking NIM."""

    query: NimQuery = Field(description="the query")
    passages: Array[NimText] = Field(description="one or more to rank")
    model: str | None = Field(None, description="may name a policy; else ignored, as the service has one model")
    truncate: Literal["NONE", "END"] | None = Field(
        None, description="NONE: passages that are too long for the model are an error; they are cut by default"
    )
    top_n: LaxInt | None = Field(None, ge=0, description="not in NIM's API: how many results; null and 0: all")

    def wanted(self) -> Wanted:
        texts = [passage.text for passage in self.passages]
        return Wanted(self.query.text, texts, top_n=self.top_n, cut=self.truncate != "NONE")

    def answer(self, ranking: Ranking) -> NimAnswer:
        rankings = [NimRank(index=ranked.index, logit=ranked.log_odds) for ranked in ranking.results]
        return NimAnswer(rankings=rankings, usage=ranking.usage, boundarymorph=ranking.diagnostics)


class NimRank(BaseModel):
    """One passage."""

    index: int = Field(description="of the passage in the request, from 0")
    logit: float = Field(description="log-odds of its score in [0, 1], which is the sigmoid of the logit")


class NimAnswer(BaseModel):
    """All passages, best first."""

    rankings: list[NimRank] = Field(description="best first; equal logits in the order of the request")
    usage: TokenUsage = Field(description="estimated")
    boundarymorph: Diagnostics = Field(description="how the ranking was made")


class NimError(BaseModel):
    """An error in NIM's format."""

    object: Literal["error"] = Field("error", description="error")
    message: str = Field(description="what is wrong and what to do about it")
    detail: str = Field(description="the same")
    type: str = Field(description="of the error, in a word")


def refusal(problem: Problem) -> tuple[int, Mapping[str, Any]]:
    """Return status and body."""
    kind = HTTPStatus(problem.status).phrase.lower().replace(" ", "_")
    return problem.status, NimError(message=problem.detail, detail=problem.detail, type=kind).model_dump()


NIM = RerankFormat("passages", NimRequest, NimAnswer, NimError, refusal)
