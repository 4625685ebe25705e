"""The dialect of text-embeddings-inference (TEI): `texts` to a bare array, and `/info`."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Literal

from pydantic import BaseModel, Field, RootModel

from boundarymorph import __version__, errors
from boundarymorph.api.rerank.common import (
    LaxBool,
    LaxInt,
    LaxText,
    NoDocuments,
    Ranking,
    RerankFormat,
    RerankRequest,
    Wanted,
)
from boundarymorph.api.schemas import Array, Problem, QueryText

ErrorType = Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]
ERROR_TYPES: dict[int, ErrorType] = {
    HTTPStatus.BAD_REQUEST: "Empty",
    HTTPStatus.SERVICE_UNAVAILABLE: "Unhealthy",
    HTTPStatus.TOO_MANY_REQUESTS: "Overloaded",
    HTTPStatus.UNPROCESSABLE_ENTITY: "Validation",
    HTTPStatus.FAILED_DEPENDENCY: "Backend",
}
STATUS = {
    HTTPStatus.BAD_GATEWAY: HTTPStatus.FAILED_DEPENDENCY,
    HTTPStatus.GATEWAY_TIMEOUT: HTTPStatus.FAILED_DEPENDENCY,
}


class TeiRequest(RerankRequest):
    """A request in TEI's format."""

    query: QueryText = Field(description="the information need, in plain words")
    texts: Array[LaxText] = Field(description="one or more to rank")
    raw_scores: LaxBool = Field(False, description="return log-odds instead of scores in [0, 1]")
    return_text: LaxBool = Field(False, description="return each text with its score")
    truncate: LaxBool | None = Field(None, description="false: texts that are too long for the model are an error")
    truncation_direction: Literal["Right", "right", "Left", "left"] = Field(
        "Right", description="the end of a text is cut; with Left, texts that are too long for the model are an error"
    )
    top_n: LaxInt | None = Field(None, ge=0, description="not in TEI's API: how many results; null and 0: all")

    def wanted(self) -> Wanted:
        return Wanted(
            self.query,
            self.texts,
            top_n=self.top_n,
            cut=self.truncate is not False and self.truncation_direction.lower() == "right",
        )

    def answer(self, ranking: Ranking) -> TeiAnswer:
        return TeiAnswer(
            [
                TeiRank(
                    index=ranked.index,
                    score=ranked.log_odds if self.raw_scores else ranked.score,
                    text=self.texts[ranked.index] if self.return_text else None,
                )
                for ranked in ranking.results
            ]
        )


class TeiRank(BaseModel):
    """One text."""

    index: int = Field(description="of the text in the request, from 0")
    score: float = Field(description="in [0, 1], the cross-encoder's or expected; log-odds with raw_scores")
    text: str | None = Field(None, description="with return_text")


class TeiAnswer(RootModel[list[TeiRank]]):
    """All texts, best first; equal scores in the order of the request."""


class TeiError(BaseModel):
    """An error in TEI's format."""

    error: str = Field(description="what is wrong and what to do about it")
    error_type: ErrorType = Field(description="as TEI has it")


class TeiInfo(BaseModel):
    """What clients of TEI ask for before their first request."""

    model_id: str = Field(description="the cross-encoder, with everything that its scores depend on")
    model_sha: str | None = Field(None, description="part of model_id, if known")
    model_dtype: str = Field("unknown", description="part of model_id, if known")
    model_type: dict[str, dict[str, Any]] = Field(description="reranker, with its only label")
    max_concurrent_requests: int = Field(description="that may run or wait")
    max_input_length: int = Field(description="tokens of a query and a text together")
    max_batch_tokens: int = Field(description="tokens of a full batch of pairs")
    max_batch_requests: int | None = Field(None, description="no limit of its own")
    max_client_batch_size: int = Field(description="texts in one request")
    auto_truncate: bool = Field(True, description="texts that are too long are cut")
    tokenization_workers: int = Field(1, description="one")
    version: str = Field(__version__, description="of this service")


RERANKER: dict[str, dict[str, Any]] = {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}


def refusal(problem: Problem) -> tuple[int, Mapping[str, Any]]:
    """Return status and body. In this dialect an empty list is 400; a failure or delay of the cross-encoder is 424."""
    status = HTTPStatus(problem.status)
    if problem.type == errors.PROBLEM_TYPE + NoDocuments.slug:
        status = HTTPStatus.BAD_REQUEST
    status = STATUS.get(status, status)
    kind = ERROR_TYPES.get(status, "Backend" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "Validation")
    return status, TeiError(error=problem.detail, error_type=kind).model_dump()


TEI = RerankFormat("texts", TeiRequest, TeiAnswer, TeiError, refusal)
