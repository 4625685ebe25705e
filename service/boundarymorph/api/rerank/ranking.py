"""Define rerank requests and rankings in terms that all dialects share."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import to_json

from boundarymorph.api.boosts import BoostRule
from boundarymorph.api.schemas import AnswerWarning, Array, DistinctBy, LanguageModelUsage, QueryText, earlier_name
from boundarymorph.api.select_answers import PassageOfDocument, ReasonName, StatusName
from boundarymorph.api.select_schemas import ListBudget, Rounds
from boundarymorph.errors import InvalidInput
from boundarymorph.notices import Notice
from boundarymorph.remote.wire import Span
from boundarymorph.retrieval.boosts import MAX_RULES
from boundarymorph.settings.sections import RelevanceKind

CERTAIN = 1e-15  # least distance of a score from 0 and 1 when its log-odds are computed
# Fields that leave an answer as it is. Weaviate's module sends an empty `property`.
HARMLESS = ("user", "priority", "request_id", "encoding_format", "metadata", "property")
CHARACTERS_PER_TOKEN = 4  # characters per token of English text with usual tokenizers
UNIT = 100  # documents that Cohere counts as one search
NAME_SHOWN, NAMES_SHOWN = 64, 8  # most characters of an unknown field's name, and most names, in a warning
TEXT = "text"  # the field of a document that is read by default


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
LaxText = Annotated[str, BeforeValidator(_as_text)]  # some clients send numbers, and null for an empty text
LaxDocument = Annotated[str | dict[str, Any], BeforeValidator(_as_text)]


class NoDocuments(InvalidInput):
    """The list of documents is empty."""


class RerankRequest(BaseModel):
    """The fields that every dialect takes. Unknown fields are ignored with a warning."""

    model_config = ConfigDict(extra="ignore", strict=True)

    query: QueryText = Field(description="The information need, in plain words.")
    documents: Any = Field(description="One or more texts.")
    top_n: LaxInt | None = Field(None, ge=0, description="The number of results. All are returned for null and 0.")
    budget: ListBudget | None = Field(
        None,
        description='B: the most calls, or "auto". Below 1, it is a share of the documents. The default is the '
        "setting rerank.budget.",
    )
    rounds: Rounds | None = Field(
        None,
        description="The most requests to the scorer, with a budget. With 1, the first documents of the list and the "
        "best by words are scored, and all other scores are expected ones.",
    )
    k: LaxInt | None = Field(
        None,
        ge=1,
        description="The number of documents that calls should find as a set, with a budget. By default, calls go to "
        "the order of all.",
    )
    min_relevance: float | None = Field(
        None, ge=0, le=1, description="The least score, known or expected, of a result."
    )
    distinct: DistinctBy = Field(
        None,
        validation_alias=AliasChoices("distinct", "group_by"),
        description="With true, no two results have the same text. With the name of a field of documents that are "
        "objects, each of its values has one result, the best. An object sets the number of results.",
    )
    relevance: RelevanceKind | None = Field(
        None,
        description="The kind of scores. 'scorer', the default without a budget, is the scorer's own. 'human', the "
        "default with a budget, is the judgement expected of people, as in POST /select.",
    )
    boost: Array[BoostRule] | None = Field(
        None,
        max_length=MAX_RULES,
        description="Rules that multiply relevance, as in POST /select, by the fields of documents that are objects. "
        "Scores are then the products, and may exceed 1.",
    )
    calibration: bool | None = Field(
        None, description="Whether the service's calibration of pools, if it has one, makes scores probabilities."
    )
    passages: LaxBool | None = Field(
        None,
        description="Whether documents that are longer than the model's window become passages, of which the best "
        "counts and is returned. The default is true where such documents are not an error. Calls, by default one "
        "for each document, are spent on passages.",
    )
    instruction: str | None = Field(
        None,
        validation_alias=AliasChoices("instruction", "instruct"),
        description="An explanation of relevance for a scorer that takes an instruction. For others, a warning says "
        "that it had no effect.",
    )
    deadline_ms: float | None = Field(
        None, gt=0, le=86_400_000, description="The deadline, in milliseconds from the arrival of the request."
    )
    on_failure: Literal["error", "degrade"] = Field(
        "error", description="The answer if scores are missing: an error, or expected scores in their place."
    )

    @property
    def most_results(self) -> int | None:
        """The number of results; None and 0 stand for all."""
        return self.top_n

    @property
    def cuts_texts(self) -> bool:
        """Whether texts that are too long for the model are cut instead of refused."""
        return True

    @property
    def makes_passages(self) -> bool:
        """Whether long documents become passages."""
        return self.cuts_texts if self.passages is None else self.passages

    @property
    def returns_log_odds(self) -> bool:
        """Whether results have log-odds in place of scores."""
        return False

    @property
    def returns_documents(self) -> bool:
        """Whether results have their documents."""
        return False

    def texts(self) -> list[str]:
        """Return the text of each document that the scorer reads. Raises InvalidInput."""
        return list(self.documents)

    def document(self, index: int) -> Any:
        """Return a document in the form that results have."""
        return self.documents[index]

    @property
    def wants_spans(self) -> bool:
        """Whether results have the spans of documents that the scorer found relevant."""
        return False

    def chosen_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        """Return the relevant spans of a document that the request asks for."""
        return spans


def names_of(request: type[RerankRequest]) -> dict[str, list[str]]:
    """Return the names under which a body may have each field."""
    return {
        name: [str(choice) for choice in alias.choices] if isinstance(alias, AliasChoices) else [str(alias or name)]
        for name, alias in ((name, field.validation_alias) for name, field in request.model_fields.items())
    }


def unknown_field_warnings(given: Mapping[str, Any], request: type[RerankRequest]) -> list[Notice]:
    """Return a warning that names the fields of `given` without an effect, if any."""
    known = {*HARMLESS, *(name for names in names_of(request).values() for name in names)}
    return no_effect_warnings(
        "fields", [name for name, value in given.items() if value is not None and name not in known]
    )


def no_effect_warnings(what: str, names: Sequence[str]) -> list[Notice]:
    """Return a warning about these names, if any; `what` is their kind, such as 'fields'."""
    if not names:
        return []
    shown = ", ".join(repr(name[:NAME_SHOWN]) for name in names[:NAMES_SHOWN])
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return [Notice("no-effect", f"{what} that are not known here had no effect: {shown}{more}")]


def texts_of(documents: Sequence[str | Mapping[str, Any]], place: str, rank_fields: Sequence[str] | None) -> list[str]:
    """Return the texts of documents; `place` is the name of their list. Raises InvalidInput."""
    fields = list(dict.fromkeys(rank_fields or [TEXT]))
    return [text_of(document, f"{place}.{number}", fields) for number, document in enumerate(documents)]


def text_of(document: str | Mapping[str, Any], place: str, fields: Sequence[str]) -> str:
    """Return the text of a document; an object has a field per line. Raises InvalidInput."""
    if isinstance(document, str):
        return document
    found = [document[field] for field in fields if document.get(field) is not None]
    if not any(field in document for field in fields):
        raise InvalidInput(
            f"{place}: the object has no {' or '.join(map(repr, fields))}; name the fields to read in 'rank_fields'"
        )
    return "\n".join(value if isinstance(value, str) else to_json(value).decode() for value in found)


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """A document with its score.

    Attributes:
        index: The position of the document in the request.
        score: The score in [0, 1], or its log-odds.
        group: The value of the field of `distinct`.
        document: The document, if the request asks for it.
        passage: The best passage of a long document.
        relevant_spans: The relevant spans, if the request asks for them.
    """

    index: int
    score: float
    group: Any = None
    document: Any = None
    passage: PassageOfDocument | None = None
    relevant_spans: Sequence[Span] | None = None


def log_odds(score: float) -> float:
    """Return the log-odds of a score, which is the sigmoid of the result."""
    score = min(max(score, CERTAIN), 1 - CERTAIN)
    return math.log(score / (1 - score))


class Diagnostics(BaseModel):
    """The cost and the circumstances of a ranking."""

    status: StatusName = Field(
        description='The completeness of the scores. With "on_failure": "degrade", some or all may be missing.'
    )
    stop_reason: ReasonName = Field(description="The reason why no more calls were made.")
    documents: int = Field(description="The number of documents in the request.")
    budget: int = Field(description="The budget B in force.")
    cross_encoder_calls: int = Field(description="Documents that the cross-encoder scored for this request.")
    cached_scores: int = Field(description="Scores from the cache, or from another request at the same time.")
    reused_scores: int = Field(description="Scores known from earlier requests, which replaced as many calls.")
    scorer_requests: int = Field(description="Requests to the scorer.")
    inferred: list[int] = Field(description="Indexes of the results whose score is expected, not the cross-encoder's.")
    relevance: dict[int, float] | None = Field(
        None, description="The relevance without boosts, by index, with 'boost'."
    )
    expected_loss: float = Field(
        description="The share of the best k documents' relevance that is expected to be missed."
    )
    calibration: str | None = Field(None, description="The time when the calibration in use was made.")
    policy: str = Field(description="The policy in force, whose defaults the request has.")
    timings_ms: dict[str, float] = Field(description="Milliseconds by stage, and in total.")
    language_model: LanguageModelUsage | None = Field(None, description="The tokens of a language model that scores.")
    warnings: list[AnswerWarning] = Field(description="Warnings for the caller.")

    @earlier_name("scorer_requests")
    def trips(self) -> int:
        return self.scorer_requests


class TokenUsage(BaseModel):
    """Tokens that the cross-encoder read, estimated at four characters each."""

    prompt_tokens: int = Field(description="Tokens of queries and documents.")
    total_tokens: int = Field(description="The same number.")


@dataclass(frozen=True, slots=True)
class Ranking:
    """The content of an answer in common terms.

    Attributes:
        request: The request.
        texts: The texts of all documents.
        id: The id of the answer.
        model: The name of the model that scored the documents.
        results: The requested results, best first.
        tokens: Estimated number of tokens that the model read.
        diagnostics: The cost and the circumstances of the ranking.
    """

    request: RerankRequest
    texts: Sequence[str]
    id: str
    model: str
    results: Sequence[RankedDocument]
    tokens: int
    diagnostics: Diagnostics

    @property
    def usage(self) -> TokenUsage:
        """The tokens in the format of most dialects."""
        return TokenUsage(prompt_tokens=self.tokens, total_tokens=self.tokens)

    @property
    def query(self) -> str:
        """The request's query."""
        return self.request.query

    @property
    def returns_documents(self) -> bool:
        """Whether results have their documents."""
        return self.request.returns_documents

    @property
    def output(self) -> dict[str, Any]:
        """The object in which DashScope returns its results."""
        return {"results": self.results}

    @property
    def data(self) -> Sequence[RankedDocument]:
        """The results under Voyage's name."""
        return self.results

    @property
    def created(self) -> int:
        """The present time in seconds since 1970."""
        return int(time.time())

    @property
    def count(self) -> int:
        """The number of results."""
        return len(self.results)

    @property
    def in_order(self) -> list[RankedDocument]:
        """All documents in the order of the request; those without a result have a score of 0."""
        scores = {ranked.index: ranked.score for ranked in self.results}
        return [RankedDocument(index, scores.get(index, 0.0), document=text) for index, text in enumerate(self.texts)]

    @property
    def meta(self) -> dict[str, Any]:
        """Figures about the request that clients of Cohere read."""
        return {
            "api_version": {"version": getattr(self.request, "api_version", "1")},
            "billed_units": {"search_units": math.ceil(len(self.texts) / UNIT)},
            "tokens": {"input_tokens": self.tokens, "output_tokens": 0},
            "warnings": [warning.message for warning in self.diagnostics.warnings] or None,
        }


class Answer(BaseModel):
    """An answer, or a part of it, whose fields are read from a `Ranking` or its parts."""

    model_config = ConfigDict(from_attributes=True)


class DiagnosedAnswer(Answer):
    """An answer that also reports its usage, and the cost of the ranking."""

    usage: TokenUsage = Field(description="Estimated tokens.")
    boundarymorph: Diagnostics = Field(
        validation_alias="diagnostics", description="The cost and the circumstances of the ranking."
    )
