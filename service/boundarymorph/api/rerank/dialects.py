"""Define the dialects of rerank requests, each with its paths, request, answer, and errors.

Pydantic models declare requests and answers with the names of the dialect. An alias names the field of `RerankRequest`
or of `Ranking` that a field stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, RootModel
from pydantic_core import CoreSchema, core_schema

from boundarymorph import errors
from boundarymorph.api.rerank.ranking import (
    CHARACTERS_PER_TOKEN,
    TEXT,
    Answer,
    DiagnosedAnswer,
    LaxBool,
    LaxDocument,
    LaxInt,
    LaxText,
    NoDocuments,
    Ranking,
    RerankRequest,
    names_of,
    text_of,
    texts_of,
)
from boundarymorph.api.schemas import Array, Problem, QueryText, RelevantSpan
from boundarymorph.api.select_answers import PassageOfDocument
from boundarymorph.remote.wire import Span

NESTED = ("input", "parameters")  # objects of DashScope, whose fields count as fields of the request


# The shape of Cohere: a list of documents, and an object with results.


class DocumentsRequest(RerankRequest):
    """A request in the format of Cohere v1, Jina or vLLM."""

    documents: Array[LaxDocument] = Field(
        description="One or more texts, or objects with a 'text' or with the rank_fields."
    )
    model: str | None = Field(
        None, description="The name of a policy. Other names are ignored, as the service has one model."
    )
    top_k: LaxInt | None = Field(None, ge=1, description="Another name for top_n.")
    truncation: LaxBool | None = Field(
        None,
        description="Whether texts that are too long for the model are cut, as by default. If false, they are an "
        "error.",
    )
    return_documents: LaxBool | None = Field(None, description="Whether to return each document with its result.")
    rank_fields: Array[str] | None = Field(
        None, max_length=64, description="The fields to read of documents that are objects, in this order."
    )
    max_tokens_per_doc: LaxInt | None = Field(
        None, ge=1, description="The most tokens that are read of a document, at four characters per token."
    )
    raw_scores: LaxBool | None = Field(None, description="Whether to return log-odds instead of scores in [0, 1].")
    use_activation: LaxBool | None = Field(None, description="vLLM's name: false means the same as raw_scores true.")

    api_version: ClassVar[str] = "1"
    returns_strings: ClassVar[bool] = False  # whether documents come back as strings

    @property
    def most_results(self) -> int | None:
        return self.top_n or self.top_k

    @property
    def cuts_texts(self) -> bool:
        return self.truncation is not False

    @property
    def returns_log_odds(self) -> bool:
        return bool(self.raw_scores) or self.use_activation is False

    @property
    def returns_documents(self) -> bool:
        return bool(self.return_documents)

    def texts(self) -> list[str]:
        longest = None if self.max_tokens_per_doc is None else CHARACTERS_PER_TOKEN * self.max_tokens_per_doc
        return [text[:longest] for text in texts_of(self.documents, "documents", self.rank_fields)]

    def document(self, index: int) -> Any:
        document = self.documents[index]
        if self.returns_strings:
            return text_of(document, f"documents.{index}", self.rank_fields or [TEXT])
        return {TEXT: document} if isinstance(document, str) else document


class WantedSpans(BaseModel):
    """The spans that a result has, if the scorer names spans."""

    model_config = ConfigDict(extra="ignore")

    mode: Literal["enabled", "disabled"] = Field("enabled", description="Whether results have spans.")
    threshold: float = Field(0.1, description="The least score of a span.")
    max_spans: int | None = Field(None, ge=1, description="The most spans of a document.")


class CohereV2Request(DocumentsRequest):
    """A request of version 2 of Cohere's API."""

    relevant_spans: WantedSpans | None = Field(
        None, description="The spans to return, if the scorer names relevant spans. Known scores have no spans."
    )

    api_version: ClassVar[str] = "2"

    @property
    def wants_spans(self) -> bool:
        return self.relevant_spans is not None and self.relevant_spans.mode == "enabled"

    def chosen_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        wanted = self.relevant_spans or WantedSpans()
        return [span for span in spans if span.score >= wanted.threshold][: wanted.max_spans]


class BareRequest(DocumentsRequest):
    """A request of Infinity or Voyage, whose documents come back as strings."""

    returns_strings: ClassVar[bool] = True


class RerankResult(Answer):
    """One document."""

    index: int = Field(description="The position of the document in the request, from 0.")
    relevance_score: float = Field(
        validation_alias="score",
        description="The cross-encoder's score, or the expected score, in [0, 1]. With raw_scores it is in log-odds.",
    )
    document: dict[str, Any] | str | None = Field(
        None, description="The document, with return_documents. For Infinity and Voyage it is the bare text."
    )
    group: Any = Field(None, description="The value of the field of 'distinct', if the document has it.")
    passage: PassageOfDocument | None = Field(
        None, description="The best passage of a document that is longer than the window."
    )
    relevant_spans: list[RelevantSpan] | None = Field(
        None, description="The most relevant parts of the text that was read, best first, with relevant_spans."
    )


class ApiVersion(BaseModel):
    """The version of Cohere's API."""

    version: str = Field(description="The version, 1 or 2.")


class BilledUnits(BaseModel):
    """The units that Cohere would bill."""

    search_units: int = Field(description="The number of searches, one for each hundred documents.")


class Tokens(BaseModel):
    """Tokens that were read and written, estimated at four characters per token."""

    input_tokens: int = Field(description="Tokens that the cross-encoder read.")
    output_tokens: int = Field(description="Always 0.")


class Meta(BaseModel):
    """Figures about the request that clients of Cohere read."""

    api_version: ApiVersion = Field(description="The version of the path.")
    billed_units: BilledUnits = Field(description="The units by Cohere's rule. Nothing is billed.")
    tokens: Tokens = Field(description="Estimated tokens.")
    warnings: list[str] | None = Field(None, description="Warnings for the caller.")


class RerankAnswer(DiagnosedAnswer):
    """The results, best first, with the fields that clients of each dialect expect."""

    id: str = Field(description="The id of this answer.")
    object: Literal["rerank"] = Field("rerank", description="Always rerank.")
    model: str = Field(description="The cross-encoder, with everything that its scores depend on.")
    created: int = Field(description="The time of the answer, in seconds since 1970.")
    results: list[RerankResult] = Field(
        description="The results, best first. Equal scores are in the order of the request."
    )
    meta: Meta = Field(description="Figures for clients of Cohere.")


class VoyageAnswer(RerankAnswer):
    """The results, best first, also under the name that clients of Voyage read."""

    data: list[RerankResult] = Field(description="The same results.")


class AliyunOutput(Answer):
    """The object in which DashScope returns its results."""

    results: list[RerankResult] = Field(
        description="The results, best first. Equal scores are in the order of the request."
    )


class AliyunAnswer(DiagnosedAnswer):
    """The results, best first."""

    output: AliyunOutput = Field(description="The results.")
    request_id: str = Field(validation_alias="id", description="The id of this answer.")


def flattened(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body of DashScope in which the fields of its inner objects stand beside its own."""
    inner = [data[name] for name in NESTED if isinstance(data.get(name), dict)]
    own = {name: value for name, value in data.items() if name not in NESTED}
    return {name: value for fields in (own, *inner) for name, value in fields.items()}


class RerankError(BaseModel):
    """An error in every format: Cohere's `message`, Jina's `detail`, vLLM's `error`."""

    message: str = Field(description="The problem, and what to do about it.")
    detail: str = Field(description="The same sentence.")
    error: dict[str, Any] = Field(description="`message`, `type`, and `param` of the error, and its status as `code`.")
    type: str = Field(description="The kind of problem, which is stable: urn:boundarymorph:problem: and a name.")


def documents_refusal(problem: Problem) -> tuple[int, Mapping[str, Any]]:
    """Return status and body of a refusal. In these dialects an invalid request is 400."""
    status = HTTPStatus.BAD_REQUEST if problem.status == HTTPStatus.UNPROCESSABLE_ENTITY else HTTPStatus(problem.status)
    kind = status.phrase.title().replace(" ", "").removesuffix("Error") + "Error"
    error = {"message": problem.detail, "type": kind, "param": None, "code": status.value}
    body = RerankError(message=problem.detail, detail=problem.detail, error=error, type=problem.type)
    return status, body.model_dump()


# The shape of lists: objects in `data`.


class MixedbreadRequest(RerankRequest):
    """A request in the format of Mixedbread."""

    documents: Array[LaxDocument] = Field(
        alias="input", description="One or more texts, or objects with a 'text' or with the rank_fields."
    )
    top_n: LaxInt | None = Field(
        None, alias="top_k", ge=0, description="The number of results. All are returned for null and 0."
    )
    model: str | None = Field(
        None, description="The name of a policy. Other names are ignored, as the service has one model."
    )
    return_input: LaxBool = Field(False, description="Whether to return each document with its result.")
    rank_fields: Array[str] | None = Field(
        None, max_length=64, description="The fields to read of documents that are objects, in this order."
    )

    @property
    def returns_documents(self) -> bool:
        return self.return_input

    def texts(self) -> list[str]:
        return texts_of(self.documents, "input", self.rank_fields)


class MixedbreadRank(Answer):
    """One document."""

    index: int = Field(description="The position of the document in the request, from 0.")
    score: float = Field(description="The cross-encoder's score, or the expected score, in [0, 1].")
    input: str | dict[str, Any] | None = Field(
        None, validation_alias="document", description="The document, with return_input."
    )
    group: Any = Field(None, description="The value of the field of 'distinct', if the document has it.")
    passage: PassageOfDocument | None = Field(
        None, description="The best passage of a document that is longer than the window."
    )


class MixedbreadAnswer(DiagnosedAnswer):
    """The results, best first."""

    object: Literal["list"] = Field("list", description="Always list.")
    model: str = Field(description="The cross-encoder, with everything that its scores depend on.")
    data: list[MixedbreadRank] = Field(
        validation_alias="results", description="The results, best first. Equal scores are in the order of the request."
    )
    top_k: int = Field(validation_alias="count", description="The number of results.")
    return_input: bool = Field(validation_alias="returns_documents", description="As in the request.")


@dataclass(frozen=True, slots=True)
class TextField:
    """Mark a string that is read from the `text` of an object with this model."""

    model: type[BaseModel]

    def __get_pydantic_core_schema__(self, source: type[str], handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(attrgetter("text"), handler.generate_schema(self.model))


class NimText(BaseModel):
    """A text in an object. Images are not supported."""

    model_config = ConfigDict(extra="ignore", strict=True)

    text: LaxText = Field(description="The text to score.")


class NimQuery(NimText):
    """The query in an object."""

    text: QueryText = Field(description="The information need, in plain words.")


class NimRequest(RerankRequest):
    """A request in the format of a NIM."""

    query: Annotated[str, TextField(NimQuery)] = Field(description="The query.")
    documents: Array[Annotated[str, TextField(NimText)]] = Field(
        alias="passages", description="One or more texts to rank."
    )
    passages: LaxBool | None = Field(
        None, alias="best_passages", description="The same as 'passages' of the other formats."
    )
    model: str | None = Field(
        None, description="The name of a policy. Other names are ignored, as the service has one model."
    )
    truncate: Literal["NONE", "END"] | None = Field(
        None,
        description="Whether passages that are too long for the model are cut, as by default. With NONE, they are an "
        "error.",
    )

    @property
    def cuts_texts(self) -> bool:
        return self.truncate != "NONE"

    @property
    def returns_log_odds(self) -> bool:
        return True


class NimRank(Answer):
    """One passage."""

    index: int = Field(description="The position of the passage in the request, from 0.")
    logit: float = Field(validation_alias="score", description="Log-odds of the score.")


class NimAnswer(DiagnosedAnswer):
    """All passages, best first."""

    rankings: list[NimRank] = Field(
        validation_alias="results",
        description="The passages, best first. Equal logits are in the order of the request.",
    )


class NimError(BaseModel):
    """An error in NIM's format."""

    object: Literal["error"] = Field("error", description="Always error.")
    message: str = Field(description="The problem, and what to do about it.")
    detail: str = Field(description="The same sentence.")
    type: str = Field(description="The kind of error, in a word.")


def nim_refusal(problem: Problem) -> tuple[int, Mapping[str, Any]]:
    """Return status and body of a refusal."""
    kind = HTTPStatus(problem.status).phrase.lower().replace(" ", "_")
    return problem.status, NimError(message=problem.detail, detail=problem.detail, type=kind).model_dump()


# The shape of Text Embeddings Inference: a list of texts, and a bare list of scores.


class TeiRequest(RerankRequest):
    """A request in TEI's format."""

    documents: Array[LaxText] = Field(alias="texts", description="One or more texts to rank.")
    raw_scores: LaxBool = Field(False, description="Whether to return log-odds instead of scores in [0, 1].")
    return_text: LaxBool = Field(False, description="Whether to return each text with its score.")
    truncate: LaxBool | None = Field(
        None, description="Whether texts that are too long for the model are cut. If false, they are an error."
    )
    truncation_direction: Literal["Right", "right", "Left", "left"] = Field(
        "Right", description="The end at which texts are cut. With Left, texts that are too long are an error."
    )

    @property
    def cuts_texts(self) -> bool:
        return self.truncate is not False and self.truncation_direction.lower() == "right"

    @property
    def returns_log_odds(self) -> bool:
        return self.raw_scores

    @property
    def returns_documents(self) -> bool:
        return self.return_text


class TeiRank(Answer):
    """One text."""

    index: int = Field(description="The position of the text in the request, from 0.")
    score: float = Field(
        description="The cross-encoder's score, or the expected score, in [0, 1]. With raw_scores it is in log-odds."
    )
    text: str | None = Field(None, validation_alias="document", description="The text, with return_text.")


class TeiAnswer(RootModel[list[TeiRank]]):
    """All texts, best first; equal scores in the order of the request."""


class WeaviateRequest(RerankRequest):
    """A request of Weaviate's module, which sends up to 32 documents."""

    documents: Array[LaxText] = Field(description="One or more texts.")

    @property
    def returns_documents(self) -> bool:
        return True


class WeaviateScore(Answer):
    """One document."""

    document: str = Field(description="The text of the document.")
    score: float = Field(
        description="The cross-encoder's score, or the expected score, in [0, 1]. It is 0 if min_relevance or "
        "distinct left the document out."
    )


class WeaviateAnswer(Answer):
    """The scores of all documents, in the order of the request."""

    query: str = Field(description="The query of the request.")
    scores: list[WeaviateScore] = Field(validation_alias="in_order", description="A score for each document.")


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


class TeiError(BaseModel):
    """An error in TEI's format."""

    error: str = Field(description="The problem, and what to do about it.")
    error_type: ErrorType = Field(description="The kind of error, in TEI's terms.")


def tei_refusal(problem: Problem) -> tuple[int, Mapping[str, Any]]:
    """Return status and body of a refusal.

    In this dialect an empty list is 400, and a failure or delay of the cross-encoder is 424.
    """
    status = HTTPStatus(problem.status)
    if problem.type == errors.PROBLEM_TYPE + NoDocuments.slug:
        status = HTTPStatus.BAD_REQUEST
    status = STATUS.get(status, status)
    kind = ERROR_TYPES.get(status, "Backend" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "Validation")
    return status, TeiError(error=problem.detail, error_type=kind).model_dump()


@dataclass(frozen=True, slots=True)
class Dialect:
    """One wire format.

    Attributes:
        name: The names of the services that have the format.
        paths: The paths of its routes. Dialects with a common path have different names for the list of documents.
        request: The model of a request.
        answer: The model of an answer.
        error: The model of an error.
        refusal: A function that returns status and body of the response to a request with a problem.
        content: A function that returns the part of a ranking that the answer is made of.
        flatten: A function that returns a body whose query and documents are not within other objects.
    """

    name: str
    paths: Sequence[str]
    request: type[RerankRequest]
    answer: type[BaseModel]
    error: type[BaseModel] = RerankError
    refusal: Callable[[Problem], tuple[int, Mapping[str, Any]]] = documents_refusal
    content: Callable[[Ranking], Any] = lambda ranking: ranking
    flatten: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda data: data

    @property
    def documents(self) -> str:
        """The name of the list of documents."""
        return names_of(self.request)["documents"][0]

    @property
    def takes_warnings(self) -> bool:
        """Whether answers have a place for warnings."""
        return issubclass(self.answer, DiagnosedAnswer)


RERANKING = ("/v1/reranking", "/reranking")
TEI = Dialect(
    "Text Embeddings Inference", ["/rerank"], TeiRequest, TeiAnswer, TeiError, tei_refusal, attrgetter("results")
)
DIALECTS = (
    Dialect("Cohere v1, Jina, vLLM", ["/v1/rerank", "/rerank", *RERANKING], DocumentsRequest, RerankAnswer),
    Dialect("Cohere v2", ["/v2/rerank"], CohereV2Request, RerankAnswer),
    TEI,
    Dialect("Infinity", ["/infinity/rerank"], BareRequest, RerankAnswer),
    Dialect("Voyage AI", ["/voyage/v1/rerank"], BareRequest, VoyageAnswer),
    Dialect("Weaviate", ["/weaviate/rerank"], WeaviateRequest, WeaviateAnswer, TeiError, tei_refusal),
    Dialect("NVIDIA NIM", ["/v1/ranking", *RERANKING], NimRequest, NimAnswer, NimError, nim_refusal),
    Dialect("Mixedbread", RERANKING, MixedbreadRequest, MixedbreadAnswer),
    Dialect(
        "Alibaba Cloud's DashScope",
        ["/api/v1/services/rerank/text-rerank/text-rerank"],
        DocumentsRequest,
        AliyunAnswer,
        flatten=flattened,
    ),
)
PATHS = {path: [dialect for dialect in DIALECTS if path in dialect.paths] for one in DIALECTS for path in one.paths}
