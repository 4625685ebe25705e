"""The dialect of Cohere, and of Jina, Infinity, vLLM and Voyage, which share its paths: `documents` to `results`."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field
from pydantic_core import to_json

from boundarymorph.api.rerank.common import (
    CHARACTERS_PER_TOKEN,
    Diagnostics,
    LaxBool,
    LaxDocument,
    LaxInt,
    Ranked,
    Ranking,
    RerankFormat,
    RerankRequest,
    TokenUsage,
    Wanted,
)
from boundarymorph.api.schemas import Array, Problem, QueryText
from boundarymorph.errors import InvalidInput

TEXT = "text"  # the field to read by default if a document is an object
VOYAGE_MODEL = re.compile(r"rerank-(lite-)?\d")  # Cohere's names have a word or a v there
DOCUMENTS_A_UNIT = 100  # per search unit of Cohere


class DocumentsRequest(RerankRequest):
    """A request in the format of Cohere (v1 and v2), Jina, Infinity, vLLM or Voyage."""

    query: QueryText = Field(description="the information need, in plain words")
    documents: Array[LaxDocument] = Field(
        description="one or more texts, or objects with a 'text' or with the rank_fields"
    )
    model: str | None = Field(None, description="may name a policy; else ignored, as the service has one model")
    top_n: LaxInt | None = Field(None, ge=0, description="how many results to return; null and 0: all")
    top_k: LaxInt | None = Field(None, ge=1, description="Voyage's name for top_n")
    truncation: LaxBool | None = Field(
        None, description="Voyage's: false: texts that are too long for the model are an error; they are cut by default"
    )
    return_documents: LaxBool | None = Field(None, description="return each document with its result")
    rank_fields: Array[str] | None = Field(
        None, max_length=64, description="for documents that are objects: the fields to read, in this order"
    )
    max_tokens_per_doc: LaxInt | None = Field(
        None, ge=1, description="the most tokens to read of a document, at four characters a token"
    )
    max_chunks_per_doc: LaxInt | None = Field(
        None, ge=1, description="the most passages to read of a long text, which is ranked by its best one"
    )
    raw_scores: LaxBool | None = Field(None, description="return log-odds instead of scores in [0, 1]")
    use_activation: LaxBool | None = Field(None, description="vLLM's name for it: false is the same as raw_scores true")

    api_version: ClassVar[str] = "1"
    _bare: ClassVar[bool] = (
        False  # Infinity returns documents as strings; its clients send raw_scores with each request
    )

    def wanted(self) -> Wanted:
        wanted = wanted_of(self.query, self.documents, "documents", self.rank_fields, self.top_n or self.top_k)
        longest = None if self.max_tokens_per_doc is None else CHARACTERS_PER_TOKEN * self.max_tokens_per_doc
        texts = [text[:longest] for text in wanted.texts]
        return replace(wanted, texts=texts, cut=self.truncation is not False, ignored=self._ignored())

    @property
    def _voyage(self) -> bool:
        """Whether this is from a client of Voyage, as far as its fields and the name of the model tell."""
        named = self.model is not None and VOYAGE_MODEL.match(self.model)
        return bool(named) or self.top_k is not None or self.truncation is not None

    def answer(self, ranking: Ranking) -> RerankAnswer:
        results = [self._result(ranked) for ranked in ranking.results]
        return RerankAnswer(
            id=ranking.id,
            model=ranking.model,
            created=int(time.time()),
            results=results,
            data=results if self._voyage else None,
            meta=Meta(
                api_version=ApiVersion(version=self.api_version),
                billed_units=BilledUnits(search_units=math.ceil(len(self.documents) / DOCUMENTS_A_UNIT)),
                tokens=Tokens(input_tokens=ranking.tokens, output_tokens=0),
                warnings=ranking.diagnostics.warnings or None,
            ),
            usage=ranking.usage,
            boundarymorph=ranking.diagnostics,
        )

    def _result(self, ranked: Ranked) -> RerankResult:
        raw = self.raw_scores or self.use_activation is False
        document = self._document(ranked.index) if self.return_documents else None
        score = ranked.log_odds if raw else ranked.score
        return RerankResult(index=ranked.index, relevance_score=score, document=document, group=ranked.group)

    def _document(self, index: int) -> dict[str, Any] | str:
        document = self.documents[index]
        if self._bare or self._voyage or self.raw_scores is not None:
            return (
                document
                if isinstance(document, str)
                else text_of(document, f"documents.{index}", self.rank_fields or [TEXT])
            )
        return {TEXT: document} if isinstance(document, str) else document

    @property
    def most_passages(self) -> int | None:
        return 1 if self.long_texts else self.max_chunks_per_doc or 1

    def _ignored(self) -> Sequence[str]:
        return ()


class CohereV2Request(DocumentsRequest):
    """A request of version 2 of Cohere's API."""

    relevant_spans: dict[str, Any] | None = Field(None, description="ignored: this service finds no spans")

    api_version: ClassVar[str] = "2"

    def _ignored(self) -> Sequence[str]:
        spans = ["relevant_spans has no effect: no spans are found here"] if self.relevant_spans else []
        return [*super()._ignored(), *spans]


class InfinityRequest(DocumentsRequest):
    """A request of Infinity, answered in its format whatever fields it has."""

    _bare: ClassVar[bool] = True


class VoyageRequest(DocumentsRequest):
    """A request of Voyage, answered in its format whatever fields it has."""

    @property
    def _voyage(self) -> bool:
        return True


class RerankResult(BaseModel):
    """One document."""

    index: int = Field(description="of the document in the request, from 0")
    relevance_score: float = Field(description="in [0, 1], the cross-encoder's or expected; log-odds with raw_scores")
    document: dict[str, Any] | str | None = Field(
        None, description="with return_documents; Infinity's and Voyage's is the bare text"
    )
    group: Any = Field(None, description="with 'distinct' by a field: its value, if the document has one")


class ApiVersion(BaseModel):
    """The version of Cohere's API."""

    version: str = Field(description="1 or 2")


class BilledUnits(BaseModel):
    """The units that Cohere would bill."""

    search_units: int = Field(description="one for each hundred documents")


class Tokens(BaseModel):
    """Tokens read and written, estimated at four characters a token."""

    input_tokens: int = Field(description="that the cross-encoder read")
    output_tokens: int = Field(description="none")


class Meta(BaseModel):
    """What Cohere's clients read besides the results."""

    api_version: ApiVersion = Field(description="of the path")
    billed_units: BilledUnits = Field(description="by Cohere's rule; nothing is billed")
    tokens: Tokens = Field(description="estimated")
    warnings: list[str] | None = Field(None, description="what a caller should know, in words")


class RerankAnswer(BaseModel):
    """The results, best first, with the fields that clients of each dialect expect."""

    id: str = Field(description="of this answer")
    object: Literal["rerank"] = Field("rerank", description="rerank")
    model: str = Field(description="the cross-encoder, with everything that its scores depend on")
    created: int = Field(description="seconds since 1970")
    results: list[RerankResult] = Field(description="best first; equal scores in the order of the request")
    data: list[RerankResult] | None = Field(None, description="the same, for clients of Voyage")
    meta: Meta = Field(description="for clients of Cohere")
    usage: TokenUsage = Field(description="for clients of Jina, Infinity, vLLM and Voyage")
    boundarymorph: Diagnostics = Field(description="how the ranking was made")


class RerankError(BaseModel):
    """An error in the format of each dialect: `message` is Cohere's, `detail` Jina's, `error` vLLM's and Infinity's."""

    message: str = Field(description="what is wrong and what to do about it")
    detail: str = Field(description="the same")
    error: dict[str, Any] = Field(description="message, type, param, and code: the status")
    type: str = Field(description="stable; urn:boundarymorph:problem: and a name")


def refusal(problem: Problem) -> tuple[int, Mapping[str, Any]]:
    """Return status and body. In these dialects an invalid request is 400."""
    status = HTTPStatus.BAD_REQUEST if problem.status == HTTPStatus.UNPROCESSABLE_ENTITY else HTTPStatus(problem.status)
    kind = status.phrase.title().replace(" ", "").removesuffix("Error") + "Error"
    error = {"message": problem.detail, "type": kind, "param": None, "code": status.value}
    body = RerankError(message=problem.detail, detail=problem.detail, error=error, type=problem.type)
    return status, body.model_dump()


COHERE_V1 = RerankFormat("documents", DocumentsRequest, RerankAnswer, RerankError, refusal)
COHERE_V2 = RerankFormat("documents", CohereV2Request, RerankAnswer, RerankError, refusal)
VOYAGE = RerankFormat("documents", VoyageRequest, RerankAnswer, RerankError, refusal)
INFINITY = RerankFormat("documents", InfinityRequest, RerankAnswer, RerankError, refusal)


def wanted_of(
    query: str,
    documents: Sequence[str | Mapping[str, Any]],
    place: str,
    rank_fields: Sequence[str] | None,
    top_n: int | None,
) -> Wanted:
    """Return what is asked of documents that are texts or objects. place: the name of their field. Raises
    InvalidInput."""
    fields = list(dict.fromkeys(rank_fields or [TEXT]))
    texts = [text_of(document, f"{place}.{number}", fields) for number, document in enumerate(documents)]
    return Wanted(query, texts, top_n, objects=[{} if isinstance(each, str) else each for each in documents])


def text_of(document: str | Mapping[str, Any], place: str, fields: Sequence[str]) -> str:
    """Return the text of a document: for an object its fields, one per line. Raises InvalidInput."""
    if isinstance(document, str):
        return document
    found = [_plain(document[field]) for field in fields if document.get(field) is not None]
    if not any(field in document for field in fields):
        raise InvalidInput(
            f"{place}: the object has no {' or '.join(map(repr, fields))}; name what is to be read of it in "
            "'rank_fields'"
        )
    return "\n".join(found)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else to_json(value).decode()
