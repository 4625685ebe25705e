"""The dialect of Alibaba's DashScope, which LightRAG calls `aliyun`: its fields are in objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

from boundarymorph.api.rerank.dialects import Diagnostics, DocumentsRequest, Ranking, RerankResult, TokenUsage

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
