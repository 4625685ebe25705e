"""The dialect of Weaviate's module reranker-transformers."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, Field

from boundarymorph.api.rerank.dialects import LaxText, Ranking, RerankRequest, Wanted
from boundarymorph.api.schemas import Array, QueryText


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
