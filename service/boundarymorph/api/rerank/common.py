"""What all rerank dialects have in common: requests, rankings, and our diagnostics."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from boundarymorph.api.passages import DESCRIPTION, OF, LongTexts, cut
from boundarymorph.api.schemas import DistinctBy, LanguageModelUsage, Problem
from boundarymorph.api.select_schemas import Budget, CalibrationName
from boundarymorph.errors import InvalidInput
from boundarymorph.retrieval.document import Document
from boundarymorph.selection import StopReason
from boundarymorph.selector.task import Interruption, Status

CERTAIN = 1e-15  # the least distance of scores from 0 and 1 for their log-odds
HARMLESS = ("user", "priority", "request_id", "encoding_format", "metadata")  # fields that leave an answer as it is
NAME_SHOWN, NAMES_SHOWN = 64, 8  # of unknown fields: characters of a name, and names in a warning
CHARACTERS_PER_TOKEN = 4  # of English text under the usual tokenizers


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

    budget: Budget | None = Field(
        None,
        description='B: cross-encoder calls at most, or "auto"; by default one per document for lists up to '
        "rerank.full_documents, and rerank.share of longer lists",
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
    long_texts: LongTexts | None = Field(None, description=DESCRIPTION)
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

    @property
    def most_passages(self) -> int | None:
        """The most passages to read of a document: 1 for its beginning."""
        return 1

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
    unknown = [name[:NAME_SHOWN] for name, value in given.items() if value is not None and name not in known]
    if not unknown:
        return []
    more = f" and {len(unknown) - NAMES_SHOWN} more" if len(unknown) > NAMES_SHOWN else ""
    return [f"fields that are not known here had no effect: {', '.join(map(repr, unknown[:NAMES_SHOWN]))}{more}"]


@dataclass(frozen=True, slots=True)
class RerankFormat:
    """A wire format.

    documents: the name of their field, which distinguishes dialects at one path. answer, error: models of its
    responses. refusal: returns status and body of its response to a request that has a problem.
    """

    documents: str
    request: type[RerankRequest]
    answer: type[BaseModel]
    error: type[BaseModel]
    refusal: Callable[[Problem], tuple[int, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request asks for. texts: of the documents, in their order. top_n: the number of results, None or 0 for
    all. cut: whether texts that are too long for the model are cut instead of refused. ignored: warnings about fields
    that have no effect here. objects: the documents, where they are objects, whose fields may tell their groups.
    owners: where the texts are passages, the places of their documents."""

    query: str
    texts: Sequence[str]
    top_n: int | None = None
    cut: bool = True
    ignored: Sequence[str] = ()
    objects: Sequence[Mapping[str, Any]] = ()
    owners: Sequence[int] = ()

    @property
    def count(self) -> int:
        """How many documents there are in the request."""
        return len(set(self.owners)) or len(self.texts)

    def cut_up(self, length: int, most: int | None) -> Wanted:
        """Return the same for passages of at most `length` characters, `most` of a document."""
        whole = [Document(str(number), text) for number, text in enumerate(self.texts)]
        parts = cut(whole, length, most)
        objects = [part.metadata for part in parts]
        return replace(self, texts=[part.text for part in parts], objects=objects, owners=[of[OF] for of in objects])

    def document(self, number: int) -> Document:
        return Document(str(number), self.texts[number], metadata=self.objects[number] if self.objects else {})


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
    inferred: list[int] = Field(description="indexes of the results whose score is expected, not the cross-encoder's")
    expected_loss: float = Field(description="share of the best k documents' relevance that is expected to be missed")
    calibration: str | None = Field(None, description="by which scores are probabilities")
    policy: str = Field(description="the policy in force, whose defaults the request has")
    timings_ms: dict[str, float] = Field(description="by stage, and in total")
    language_model: LanguageModelUsage | None = Field(
        None, description="tokens and cost, if a language model is the scorer"
    )
    warnings: list[str] = Field(description="what a caller should know, in words")


class ModelCard(BaseModel):
    """What a request may name as its `model`."""

    id: str = Field(description="its name")
    object: Literal["model"] = Field("model", description="model")
    created: int = Field(0, description="unknown: 0")
    owned_by: Literal["boundarymorph"] = Field("boundarymorph", description="boundarymorph")
    capabilities: list[str] = Field(["rerank"], description="rerank")


class Models(BaseModel):
    """The cross-encoder and the policies, in the format of OpenAI's API."""

    object: Literal["list"] = Field("list", description="list")
    data: list[ModelCard] = Field(description="the cross-encoder first")


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


def tokens_of(query: str, texts: Sequence[str]) -> int:
    """Estimate the tokens that the cross-encoder reads: the query with each text."""
    characters = len(texts) * len(query) + sum(map(len, texts))
    return math.ceil(characters / CHARACTERS_PER_TOKEN)
