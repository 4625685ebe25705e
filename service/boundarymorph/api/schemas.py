"""Define the wire format of the native routes, except `POST /select` (see `select_schemas`)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from boundarymorph.reading import Id, readable
from boundarymorph.retrieval.interfaces import IndexDescription
from boundarymorph.selection.pool import Trust

Element = TypeVar("Element")


QueryText = Annotated[str, Field(min_length=1, pattern=r"\S"), AfterValidator(readable)]
"""A query in plain words."""
Array = Annotated[list[Element], Field(fail_fast=True)]
"""A list in a request, which is checked up to its first mistake, as many errors would take much memory."""
MOST_FIELDS = 100  # most fields of an object in a request, more than any object has
NO_ENCODER = "none"


class Message(BaseModel):
    """The base of request bodies.

    Unknown fields are refused by name, so that a misspelled option does not silently become a default. Values of
    another type are refused, too, such as "5" or true for a number.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _countable(cls, value: object) -> object:
        if isinstance(value, dict) and len(value) > MOST_FIELDS:
            raise ValueError(f"it has {len(value):,} fields, most of them unknown")
        return value


class AnswerWarning(BaseModel):
    """What a caller should know about an answer."""

    model_config = ConfigDict(from_attributes=True)

    slug: str = Field(description="the kind of warning, for programs; docs/api.md lists all")
    message: str = Field(description="a sentence, for people")


class LanguageModelUsage(BaseModel):
    """The tokens of a language model that grades, for one request."""

    input_tokens: int = Field(description="tokens read, as counted by the model's server")
    output_tokens: int = Field(description="tokens written")


class RelevantSpan(BaseModel):
    """A part of a text that the scorer found relevant."""

    model_config = ConfigDict(from_attributes=True)

    start: int = Field(description="the position of its first character, counted from 0")
    end: int = Field(description="the position after its last character")
    score: float = Field(description="its relevance in [0, 1]")


class CreateIndex(Message):
    """The configuration of an index: the encoder's vectors, your own vectors, or none."""

    encoder: str | None = Field(
        None,
        description="the name of the service's encoder, the default; or 'none' for an index without vectors, searched "
        "by BM25",
    )
    dimension: int | None = Field(None, ge=1, description="dimension of your own vectors, without an encoder")
    kind: str | None = Field(
        None,
        description="how it is searched: exactly (flat, the default), or approximately and faster (ivf; in a store "
        "hnsw)",
    )
    lexical: bool = Field(True, description="keep the words too, for BM25 and hybrid search")
    metric: str = Field("cosine", description="only cosine: every vector is normalised to unit length")

    @field_validator("metric")
    @classmethod
    def _cosine(cls, metric: str) -> str:
        if metric != "cosine":
            raise ValueError(
                f"there is no metric {metric!r}, only 'cosine': all vectors are normalised to unit length, so that "
                "their lengths do not count; for vectors of unit length, 'cosine' is the inner product"
            )
        return metric

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.encoder is not None and self.dimension is not None:
            raise ValueError("give 'encoder' or 'dimension', not both: the encoder knows its dimension")
        if self.encoder == NO_ENCODER and (self.kind is not None or not self.lexical):
            raise ValueError("an index without an encoder has only its words: leave out 'kind' and 'lexical'")
        return self


class Describe(Message):
    """A description of an index, for people and language models that choose an index."""

    description: str = Field(
        max_length=2_000, description="the description, which replaces an earlier one; empty to remove it"
    )


class IndexArtifacts(Message):
    """Data of an index beside its documents."""

    description: str | None = Field(
        None, max_length=2_000, description="a description, for people and language models that choose an index"
    )
    distinct: str | None = Field(
        None, description="selections have one document for each value of this field, unless a request says otherwise"
    )
    calibration: dict[str, Any] | None = Field(
        None, description="the map from relevance to a probability, as `boundarymorph calibrate` makes it"
    )


class UnreadableIndex(BaseModel):
    """An index that exists and cannot be read."""

    name: str = Field(description="the name of the index, as in the URLs of its routes")
    type: str = Field(description="the type of the problem that its routes answer with")
    detail: str = Field(description="the problem")


class IndexList(BaseModel):
    """All indexes that the key may use."""

    indexes: list[IndexDescription] = Field(description="the indexes in the order of their names")
    unreadable: list[UnreadableIndex] = Field(
        default=[], description="indexes that exist and cannot be read now; no other index is missing"
    )


class StoredDocument(BaseModel):
    """A document in an index."""

    id: str = Field(description="the document's id, unique in the index")
    text: str = Field(description="the text as it was uploaded")
    title: str | None = Field(description="the title; null if the document has none")
    metadata: dict[str, Any] = Field(description="the metadata as it was uploaded")


class DocumentPage(BaseModel):
    """Documents of an index in the order of their ids."""

    documents: list[StoredDocument] = Field(description="the documents of this page")
    next: str | None = Field(description="the 'after' of the next page; null for the last one")


class FieldStatistics(BaseModel):
    """A field of the metadata in a sample of documents."""

    documents: int = Field(description="number of documents in the sample that have the field")
    values: int = Field(description="number of different values in the sample")
    examples: list[Any] = Field(description="at most five of its values")


class IndexStatistics(IndexDescription):
    """An index, and statistics of a sample of its documents."""

    sampled: int = Field(description="number of documents in the sample: the first by id; in a store, any documents")
    characters_mean: float = Field(description="mean length of title and text in the sample; 0 if it is empty")
    characters_most: int = Field(description="length of the longest title and text in the sample")
    fields: dict[str, FieldStatistics] = Field(description="the most frequent fields of the metadata in the sample")


class UploadProblem(BaseModel):
    """A skipped line of an upload, or element of its array, and the reason."""

    line: int = Field(description="number of the line or element, counted from 1")
    reason: str = Field(description="the reason why it was skipped")


class UploadReport(BaseModel):
    """The result of an upload. Documents counted as added or updated are on disk."""

    added: int = Field(description="new documents")
    updated: int = Field(description="documents that replaced one with the same id")
    unchanged: int = Field(description="documents that existed already with the same content")
    superseded: int = Field(description="documents whose id came again later in the upload")
    skipped: int = Field(description="lines that are not a valid document")
    truncated: int = Field(description="documents cut to the encoder's maximum length for embedding")
    problems: list[UploadProblem] = Field(description="the first skipped lines")
    unknown_fields: dict[str, int] = Field(
        description="unknown fields, perhaps misspelled, and how many documents had them"
    )


class UploadProgress(BaseModel):
    """The progress of an upload up to its last batch, which is on disk."""

    documents: int = Field(description="documents processed, with any outcome")
    added: int = Field(description="new documents")
    updated: int = Field(description="documents that replaced one with the same id")
    unchanged: int = Field(description="documents that existed already with the same content")
    skipped: int = Field(description="lines that are not a valid document")
    position: int = Field(description="bytes of the upload processed; of an array without white space")


class DeleteDocuments(Message):
    """The documents to delete: by their ids, or by a filter on their metadata."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["ids"], "properties": {"ids": {"type": "array"}, "filter": {"type": "null"}}},
                {
                    "required": ["filter"],
                    "properties": {"filter": {"type": "object", "minProperties": 1}, "ids": {"type": "null"}},
                },
            ]
        }
    )

    ids: Array[Id] | None = Field(None, description="ids of the documents to delete; unknown ids are ignored")
    filter: dict[str, Any] | None = Field(None, description="a filter as in a selection; it must not match everything")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.ids is None) == (self.filter is None):
            raise ValueError("give exactly one of 'ids' and 'filter'")
        return self


class DeleteReport(BaseModel):
    """The result of a deletion."""

    deleted: int = Field(description="number of documents that existed and are deleted")


class ScoreRequest(Message):
    """Texts to score against one query."""

    query: QueryText = Field(description="the query that the texts are scored against")
    texts: Array[str] = Field(description="the texts to score")
    deadline_ms: float | None = Field(
        None, gt=0, le=86_400_000, description="milliseconds from now; late texts are not scored"
    )
    truncate: bool = Field(True, description="cut texts that are too long for the model; false refuses them")
    instruction: str | None = Field(
        None, min_length=1, description="what counts as relevant, for a model that takes an instruction"
    )


class ScoreResponse(BaseModel):
    """The scores of all texts of a request."""

    model: str = Field(description="name of the model, with revision, precision, length, and prompt")
    scores: list[float] = Field(description="scores in [0, 1], in the order of the texts")
    truncated: int = Field(description="number of texts that were cut to fit the model")


class ScorerInfo(BaseModel):
    """A cross-encoder and its limits."""

    model: str = Field(description="name of the model, with revision, precision, length, and prompt")
    backend: str = Field(description="the software that runs it")
    max_length: int = Field(description="most tokens of a query and a text together")
    max_texts: int = Field(description="most texts in one call")
    batch_tokens: int = Field(
        description="tokens per batch; fewer than configured after a batch did not fit the device"
    )
    queue_tokens: int = Field(description="tokens that may wait; requests beyond are refused")
    instructed: bool = Field(False, description="whether it takes an instruction with a request")


class Health(BaseModel):
    """The state of the process."""

    status: str = Field(description="ok, starting, unready, draining or failed")
    detail: str | None = Field(None, description="the reason why it does not work")


class PartHealth(BaseModel):
    """The state of a part of the process."""

    status: Literal["ok", "away"] = Field(description="whether it answered its last probe")
    since: datetime = Field(description="time since which it has this status")
    detail: str | None = Field(None, description="the reason why it does not answer, for callers that may read it")


class ScorerInUse(BaseModel):
    """A scorer and the trust in its scores."""

    model: str | None = Field(description="the full name of its model; null while it is unknown")
    trust: Trust = Field(
        description="how far its scores are trusted beside similarity and words; docs/models.md says what it changes"
    )


class Ready(Health):
    """Whether the process can serve, and which of its parts do not answer.

    Services that charge per request are not probed and not listed.
    """

    parts: dict[str, PartHealth] = Field(default_factory=dict, description="the parts that the process needs, by name")
    scorer: ScorerInUse | None = Field(None, description="the scorer in use, for callers that may read details")


class Problem(BaseModel):
    """RFC 9457 problem details; `type` is stable, `detail` says what to do."""

    type: str = Field(description="the kind of problem, which is stable: urn:boundarymorph:problem: and a name")
    title: str = Field(description="the type in words")
    status: int = Field(description="the status code of the HTTP response")
    detail: str = Field(description="the problem, and what to do about it")
    instance: str | None = Field(None, description="the path of the request")
    errors: list[dict[str, str]] | None = Field(None, description="the invalid fields of the body, and the reasons")


class Distinct(Message):
    """A limit on the documents with the same value or text."""

    by: str = Field(
        "text",
        min_length=1,
        max_length=1_024,
        description="'text' for title and text, or a field of the metadata; dots lead into objects. A document without "
        "the field has nothing in common with any other",
    )
    at_most: int = Field(1, ge=1, description="the most documents with the same value")
    k_counts: Literal["documents", "groups"] = Field(
        "documents",
        description="'groups': return k groups, ranked by their best document, each with its best 'at_most' documents",
    )


def _shortly(value: object) -> object:
    return {"by": value} if isinstance(value, str) else {} if value is True else None if value is False else value


DistinctBy = Annotated[Distinct | None, BeforeValidator(_shortly, json_schema_input_type=bool | str | Distinct | None)]
