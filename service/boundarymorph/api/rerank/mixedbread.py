"""The dialect of Mixedbread: `input` to `data`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from boundarymorph.api.rerank.common import (
    Diagnostics,
    LaxBool,
    LaxDocument,
    LaxInt,
    Ranking,
    RerankFormat,
    RerankRequest,
    TokenUsage,
    Wanted,
)
from boundarymorph.api.rerank.documents import RerankError, refusal, wanted_of
from boundarymorph.api.schemas import Array, QueryText


class MixedbreadRequest(RerankRequest):
    """A request in the format of Mixedbread."""

    query: QueryText = Field(description="the information need, in plain words")
    input: Array[LaxDocument] = Field(description="one or more texts, or objects with a 'text' or with the rank_fields")
    model: str | None = Field(None, description="may name a policy; else ignored, as the service has one model")
    top_k: LaxInt | None = Field(None, ge=0, description="how many results to return; null and 0: all")
    return_input: LaxBool = Field(False, description="return each document with its result")
    rank_fields: Array[str] | None = Field(
        None, max_length=64, description="for documents that are objects: the fields to read, in this order"
    )

    def wanted(self) -> Wanted:
        return wanted_of(self.query, self.input, "input", self.rank_fields, self.top_k)

    def answer(self, ranking: Ranking) -> MixedbreadAnswer:
        return MixedbreadAnswer(
            model=ranking.model,
            data=[
                MixedbreadRank(
                    index=ranked.index,
                    score=ranked.score,
                    input=self.input[ranked.index] if self.return_input else None,
                    group=ranked.group,
                )
                for ranked in ranking.results
            ],
            top_k=len(ranking.results),
            return_input=self.return_input,
            usage=ranking.usage,
            boundarymorph=ranking.diagnostics,
        )


class MixedbreadRank(BaseModel):
    """One document."""

    index: int = Field(description="of the document in the request, from 0")
    score: float = Field(description="in [0, 1], the cross-encoder's or expected")
    input: str | dict[str, Any] | None = Field(None, description="with return_input")
    group: Any = Field(None, description="with 'distinct' by a field: its value, if the document has one")


class MixedbreadAnswer(BaseModel):
    """The results, best first."""

    object: Literal["list"] = Field("list", description="list")
    model: str = Field(description="the cross-encoder, with everything that its scores depend on")
    data: list[MixedbreadRank] = Field(description="best first; equal scores in the order of the request")
    top_k: int = Field(description="the number of results")
    return_input: bool = Field(description="as in the request")
    usage: TokenUsage = Field(description="estimated")
    boundarymorph: Diagnostics = Field(description="how the ranking was made")


MIXEDBREAD = RerankFormat("input", MixedbreadRequest, MixedbreadAnswer, RerankError, refusal)
