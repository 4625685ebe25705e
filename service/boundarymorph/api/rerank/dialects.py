"""The dialects of rerank requests: what each asks, answers, and says of errors."""

from __future__ import annotations

import math
import re
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, RootModel
from pydantic_core import to_json

from boundarymorph import errors
from boundarymorph.api.schemas import Array, DistinctBy, LanguageModelUsage, Problem, QueryText, Relevance
from boundarymorph.api.select_schemas import CalibrationName, ListBudget, Rounds
from boundarymorph.errors import InvalidInput
from boundarymorph.selection import StopReason
from boundarymorph.selector.task import Interruption, Status

CERTAIN = 1e-15  # the least distance of scores from 0 and 1 for their log-odds
HARMLESS = ("user", "priority", "request_id", "encoding_format", "metadata")  # fields that leave an answer as it is
CHARACTERS_PER_TOKEN = 4  # of English text under the usual tokenizers
UNIT = 100  # documents that Cohere counts as one search
NAME_SHOWN, NAMES_SHOWN = 64, 8  # of unknown fields: characters of a name, and names in a warning
TEXT = "text"  # the field to read by default if a document is an object
VOYAGE_MODEL = re.compile(r"rerank-(lite-)?\d")  # Cohere's names have a word or a v there


def _as_text(value: object) -> object:
    if value is None:
        return ""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _no_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be an integer")
    return value


LaxBool = Annotated[bool, Field(strict=False)]  # some clients send "true"
LaxInt = Annotated[int, BeforeValidator(_no_boolean), Field(strict=False)]  # some clients send 2.0 or "2"
LaxText = Annotated[str, BeforeValidator(_as_text)]  # some clients send null for no text, and numbers
LaxDocument = Annotated[str | dict[str, Any], BeforeValidator(_as_text)]


class NoDocuments(InvalidInput):
    """The list of documents is empty."""


class RerankRequest(BaseModel):
    """Our own fields, which every dialect takes. Unknown fields are ignored, as in other servers, with a warning."""

    model_config = ConfigDict(extra="ignore", strict=True)

    budget: ListBudget | None = Field(
        None,
        description='B: calls at most, below 1 a share of the documents, or "auto"; rerank.budget by default',
    )
    rounds: Rounds | None = Field(
        None,
        description="with a budget: trips to the scorer at most; with 1 the first documents of the list, and the best "
        "by words, are scored, and the scores of all others are expected ones",
    )
    k: LaxInt | None = Field(
        None, ge=1, description="with a budget: find the k best as a set; by default calls go to the order of all"
    )
    min_relevance: float | None = Field(
        None, ge=0, le=1, description="leave out results with a lower score, known or expected"
    )
    distinct: DistinctBy = Field(
        None,
        validation_alias=AliasChoices("distinct", "group_by"),
        description="true: no two results with the same text. The name of a field of the documents, which are then "
        "objects: the best result for each of its values. An object: as many as it says",
    )
    relevance: Relevance = Field(
        "scorer", description="what scores are: the scorer's, or what 'people' are expected to find, as in POST /select"
    )
    calibration: CalibrationName = Field(
        None, description="by which scores are probabilities; by default that of the key, if it has one; false: none"
    )
    instruction: str | None = Field(
        None,
        validation_alias=AliasChoices("instruction", "instruct"),
        description="what counts as relevant, in words, for a scorer that takes an instruction; else a warning says so",
    )
    deadline_ms: float | None = Field(None, gt=0, le=86_400_000, description="from the arrival of the request")
    on_failure: Literal["error", "degrade"] = Field(
        "error", description="if not all scores can be had: answer with an error, or with expected scores for the rest"
    )

    @abstractmethod
    def wanted(self) -> Wanted:
        """Return the request in the common terms of all dialects. Raises InvalidInput."""

    @abstractmethod
    def answer(self, ranking: Ranking) -> BaseModel:
        """Return the answer of this dialect."""


def unknown_fields(given: Mapping[str, Any], request: type[RerankRequest]) -> list[str]:
    """Return a warning that names the fields without an effect, if there are any. given: the body."""
    known = set(HARMLESS)
    for name, field in request.model_fields.items():
        alias = field.validation_alias
        known |= {str(choice) for choice in alias.choices} if isinstance(alias, AliasChoices) else {name}
    unknown = [name for name, value in given.items() if value is not None and name not in known]
    return without_effect("fields", unknown)


def without_effect(what: str, names: Sequence[str]) -> list[str]:
    """Return a warning, if there are any names. what: the names are of fields, for example."""
    if not names:
        return []
    shown = ", ".join(repr(name[:NAME_SHOWN]) for name in names[:NAMES_SHOWN])
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return [f"{what} that are not known here had no effect: {shown}{more}"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request asks for. texts: of the documents, in their order. top_n: the number of results, None or 0 for
    all. cut: whether texts that are too long for the model are cut instead of refused. ignored: warnings about fields
    that have no effect here. objects: the documents, where they are objects, whose fields may tell their groups.
    whole: whether the number of results stays: what a policy would leave out comes last, with a score of 0."""

    query: str
    texts: Sequence[str]
    top_n: int | None = None
    cut: bool = True
    ignored: Sequence[str] = ()
    objects: Sequence[Mapping[str, Any]] = ()
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document by its position in the request, its score in [0, 1], and with `distinct` by a field its value."""

    index: int
    score: float
    group: Any = None

    @property
    def log_odds(self) -> float:
        """The raw score, of which the score is the sigmoid."""
        score = min(max(self.score, CERTAIN), 1 - CERTAIN)
        return math.log(score / (1 - score))


class Diagnostics(BaseModel):
    """How a ranking was made."""

    status: Literal[*map(str, Status)] = Field(  # type: ignore[valid-type]
        description='partial and retrieval_only: with "on_failure": "degrade", not all scores could be had'
    )
    stop_reason: Literal[*map(str, (*StopReason, *Interruption))] = Field(  # type: ignore[valid-type]
        description="why no more calls were made"
    )
    documents: int = Field(description="in the request")
    budget: int = Field(description="B in force")
    cross_encoder_calls: int = Field(description="documents that the cross-encoder scored for this request")
    cached_scores: int = Field(description="from the cache, or computed for another request at the same time")
    reused_scores: int = Field(description="known from earlier requests; they replaced as many calls")
    trips: int = Field(description="calls of the scorer")
    inferred: list[int] = Field(description="indexes of the results whose score is expected, not the cross-encoder's")
    expected_loss: float = Field(description="share of the best k documents' relevance that is expected to be missed")
    calibration: str | None = Field(None, description="by which scores are probabilities")
    policy: str = Field(description="the policy in force, whose defaults the request has")
    timings_ms: dict[str, float] = Field(description="by stage, and in total")
    language_model: LanguageModelUsage | None = Field(None, description="if a language model was asked for scores")
    warnings: list[str] = Field(description="what a caller should know, in words")


class TokenUsage(BaseModel):
    """Tokens that the cross-encoder read, estimated at four characters each."""

    prompt_tokens: int = Field(description="of queries and documents")
    total_tokens: int = Field(description="the same")


@dataclass(frozen=True, slots=True)
class Ranking:
    """The requested results, best first. model: that scored them; tokens: an estimate of what it read."""

    id: str
    model: str
    results: Sequence[Ranked]
    tokens: int
    diagnostics: Diagnostics

    @property
    def usage(self) -> TokenUsage:
        """The tokens in the format of most dialects."""
        return TokenUsage(prompt_tokens=self.tokens, total_tokens=self.tokens)


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
        return replace(wanted, texts=texts, cut=self.truncation is not False)

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
                billed_units=BilledUnits(search_units=math.ceil(len(self.documents) / UNIT)),
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


class CohereV2Request(DocumentsRequest):
    """A request of version 2 of Cohere's API."""

    relevant_spans: dict[str, Any] | None = Field(None, description="ignored: this service finds no spans")

    api_version: ClassVar[str] = "2"

    def wanted(self) -> Wanted:
        spans = ["relevant_spans has no effect: no spans are found here"] if self.relevant_spans else []
        return replace(super().wanted(), ignored=spans)


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


def documents_refusal(problem: Problem) -> tuple[int, Mapping[str, Any]]:
    """Return status and body. In these dialects an invalid request is 400."""
    status = HTTPStatus.BAD_REQUEST if problem.status == HTTPStatus.UNPROCESSABLE_ENTITY else HTTPStatus(problem.status)
    kind = status.phrase.title().replace(" ", "").removesuffix("Error") + "Error"
    error = {"message": problem.detail, "type": kind, "param": None, "code": status.value}
    body = RerankError(message=problem.detail, detail=problem.detail, error=error, type=problem.type)
    return status, body.model_dump()


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
    found = [document[field] for field in fields if document.get(field) is not None]
    if not any(field in document for field in fields):
        raise InvalidInput(
            f"{place}: the object has no {' or '.join(map(repr, fields))}; name what is to be read of it in "
            "'rank_fields'"
        )
    return "\n".join(value if isinstance(value, str) else to_json(value).decode() for value in found)


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


def nim_refusal(problem: Problem) -> tuple[int, Mapping[str, Any]]:
    """Return status and body."""
    kind = HTTPStatus(problem.status).phrase.lower().replace(" ", "_")
    return problem.status, NimError(message=problem.detail, detail=problem.detail, type=kind).model_dump()


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


def tei_refusal(problem: Problem) -> tuple[int, Mapping[str, Any]]:
    """Return status and body. In this dialect an empty list is 400; a failure or delay of the cross-encoder is 424."""
    status = HTTPStatus(problem.status)
    if problem.type == errors.PROBLEM_TYPE + NoDocuments.slug:
        status = HTTPStatus.BAD_REQUEST
    status = STATUS.get(status, status)
    kind = ERROR_TYPES.get(status, "Backend" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "Validation")
    return status, TeiError(error=problem.detail, error_type=kind).model_dump()
