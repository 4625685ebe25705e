"""The dialects of frameworks: of DashScope, which LightRAG calls `aliyun`, and of Weaviate's module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, Field

from boundarymorph.api.rerank.dialects import (
    Diagnostics,
    DocumentsRequest,
    LaxText,
    Ranking,
    RerankRequest,
    RerankResult,
    TokenUsage,
    Wanted,
)
from boundarymorph.api.schemas import Array, QueryText

NESTED = ("input", "parameters")  # objects whose fields count as those of the request


def flattened(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body with the fields of its objects beside its own."""
    inner = [data[name] for name in NESTED if isinstance(data.get(name), dict)]
    own = {name: value for name, value in data.items() if name not in NESTED}
    return {name: value for fields in (own, *inner) for name, value in fields.items()}


class AliyunRequest(DocumentsRequest):
    """A request of DashScope's text-rerank, flattened: on the wire `query` and `documents` are in `input`, and the
    others but `model` in `parameters`."""

    def answer(self, ranking: Ranking) -> AliyunAnswer:  # type: ignore[override]
        return AliyunAnswer(
            output=AliyunOutput(results=[self._result(ranked) for ranked in ranking.results]),
            usage=ranking.usage,
            request_id=ranking.id,
            boundarymorph=ranking.diagnostics,
        )


class AliyunOutput(BaseModel):
    """What DashScope puts its results into."""

    results: list[RerankResult] = Field(description="best first; equal scores in the order of the request")


class AliyunAnswer(BaseModel):
    """The results, best first."""

    output: AliyunOutput = Field(description="the results")
    usage: TokenUsage = Field(description="estimated")
    request_id: str = Field(description="of this answer")
    boundarymorph: Diagnostics = Field(description="how the ranking was made")


class WeaviateRequest(RerankRequest):
    """A request of the module, which sends up to 32 documents, and a `property` that is empty."""

    query: QueryText = Field(description="the information need, in plain words")
    documents: Array[LaxText] = Field(description="one or more texts")
    property: str | None = Field(description="not read; a request with it is answered in this format")

    return_documents: ClassVar[bool] = True

    def wanted(self) -> Wanted:
        return Wanted(self.query, self.documents)

    def answer(self, ranking: Ranking) -> WeaviateAnswer:
        known = {ranked.index: ranked.score for ranked in ranking.results}
        scores = [
            WeaviateScore(document=text, score=known.get(index, 0.0)) for index, text in enumerate(self.documents)
        ]
        return WeaviateAnswer(query=self.query, scores=scores)


class WeaviateScore(BaseModel):
    """One document."""

    document: str = Field(description="its text")
    score: float = Field(
        description="in [0, 1], the cross-encoder's or expected; 0 if min_relevance or distinct left it out"
    )


class WeaviateAnswer(BaseModel):
    """The scores of all documents in the order of the request, by which the module reads them."""

    query: str = Field(description="as in the request")
    scores: list[WeaviateScore] = Field(description="one for each document")
