"""The wire format of the native routes, except that of `POST /select`, which is in `select_schemas`."""

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
"""What somebody wants to know."""
Array = Annotated[list[Element], Field(fail_fast=True)]
"""A list of a request, checked up to its first mistake: errors take more memory than the body that has them."""
MOST_FIELDS = 100  # of a request's object: more than any has
NO_ENCODER = "none"


class Message(BaseModel):
    """The base of request bodies. Unknown fields are refused by name, so that a misspelt option does not silently
    become a default; so are values of another type, such as "5" or true for a number."""

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
    output_tokens: int = Field(description="written")


class RelevantSpan(BaseModel):
    """A part of a text that the scorer found relevant."""

    model_config = ConfigDict(from_attributes=True)

    start: int = Field(description="its first character, counted from 0")
    end: int = Field(description="the place after its last character")
    score: float = Field(description="its relevance in [0, 1]")


class CreateIndex(Message):
    """The configuration of an index: with vectors of the service's encoder, vectors of your own, or none."""

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
    """What the documents of an index are, for people and language models who choose among indexes."""

    description: str = Field(max_length=2_000, description="in place of an earlier one; empty for none")


class IndexArtifacts(Message):
    """Data that belong to an index and are not documents."""

    description: str | None = Field(
        None, max_length=2_000, description="what its documents are, for people and language models who choose an index"
    )
    distinct: str | None = Field(
        None, description="selections have one document for each value of this field, unless a request says otherwise"
    )
    calibration: dict[str, Any] | None = Field(
        None, description="by which relevance is a probability, as `boundarymorph calibrate` makes it"
    )


class UnreadableIndex(BaseModel):
    """An index that exists and cannot be read."""

    name: str = Field(description="as in the URLs of its routes")
    type: str = Field(description="of the problem that its routes answer with")
    detail: str = Field(description="the problem")


class IndexList(BaseModel):
    """The indexes by name."""

    indexes: list[IndexDescription] = Field(description="by name")
    unreadable: list[UnreadableIndex] = Field(
        default=[], description="indexes that exist and cannot be read now; no other index is missing"
    )


class StoredDocument(BaseModel):
    """A document in an index."""

    id: str = Field(description="unique in the index")
    text: str = Field(description="as it was uploaded")
    title: str | None = Field(description="null if it has none")
    metadata: dict[str, Any] = Field(description="as it was uploaded")


class DocumentPage(BaseModel):
    """Documents of an index in the order of their ids."""

    documents: list[StoredDocument] = Field(description="of this page")
    next: str | None = Field(description="the 'after' of the next page; null for the last one")


class FieldStatistics(BaseModel):
    """A field of the metadata, as far as a sample tells."""

    documents: int = Field(description="of the sample that have it")
    values: int = Field(description="different ones in the sample")
    examples: list[Any] = Field(description="of its values, at most five")


class IndexStatistics(IndexDescription):
    """An index, and what some of its documents look like."""

    sampled: int = Field(description="documents looked at: the first by id, in a store any")
    characters_mean: float = Field(description="of title and text in the sample; 0 if it is empty")
    characters_most: int = Field(description="the same of the longest one")
    fields: dict[str, FieldStatistics] = Field(description="of the metadata in the sample, the most frequent ones")


class UploadProblem(BaseModel):
    """A skipped line of an upload, or position in its array, counted from 1, and the reason."""

    line: int = Field(description="counted from 1")
    reason: str = Field(description="why it was skipped")


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
        description="unknown fields, perhaps misspelt, and how many documents had them"
    )


class UploadProgress(BaseModel):
    """The progress of an upload after its last batch, all of which is on disk."""

    documents: int = Field(description="documents processed, with any outcome")
    added: int = Field(description="new documents")
    updated: int = Field(description="documents that replaced one with the same id")
    unchanged: int = Field(description="documents that existed already with the same content")
    skipped: int = Field(description="lines that are not a valid document")
    position: int = Field(description="bytes of the upload processed; of an array without white space")


class DeleteDocuments(Message):
    """The documents to delete: those with these ids, or those whose metadata match a filter."""

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

    ids: Array[Id] | None = Field(None, description="of the documents to delete; unknown ids are ignored")
    filter: dict[str, Any] | None = Field(None, description="as in a selection, but not one that matches everything")

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
    texts: Array[str] = Field(description="to be scored")
    deadline_ms: float | None = Field(None, gt=0, le=86_400_000, description="from now; late texts are not scored")
    truncate: bool = Field(True, description="cut texts that are too long for the model; false refuses them")
    instruction: str | None = Field(
        None, min_length=1, description="what counts as relevant, for a model that takes an instruction"
    )


class ScoreResponse(BaseModel):
    """The scores of all texts of a request."""

    model: str = Field(description="with revision, precision, length and prompt")
    scores: list[float] = Field(description="in [0, 1], in the order of the texts")
    truncated: int = Field(description="texts that were cut to fit the model")


class ScorerInfo(BaseModel):
    """A cross-encoder and its limits."""

    model: str = Field(description="with revision, precision, length and prompt")
    backend: str = Field(description="what runs it")
    max_length: int = Field(description="tokens of a query and a text together")
    max_texts: int = Field(description="in one call")
    batch_tokens: int = Field(description="now per batch; fewer than configured after one did not fit the device")
    queue_tokens: int = Field(description="that may wait; requests beyond are refused")
    instructed: bool = Field(False, description="whether it takes an instruction with a request")


class Health(BaseModel):
    """The state of the process."""

    status: str = Field(description="ok, starting, unready, draining or failed")
    detail: str | None = Field(None, description="why it is not ok")


class PartHealth(BaseModel):
    """The state of a part of the process."""

    status: Literal["ok", "away"] = Field(description="whether it answered its last probe")
    since: datetime = Field(description="since when")
    detail: str | None = Field(None, description="why it does not answer, for callers that may read it")


class ScorerInUse(BaseModel):
    """A scorer, and how far it is trusted."""

    model: str | None = Field(description="its full name; null while it is unknown")
    trust: Trust = Field(
        description="how far its scores are trusted beside similarity and words; docs/models.md says what it changes"
    )


class Ready(Health):
    """Whether the process can serve, and which of its parts do not answer. Services that charge per request are not
    probed and not listed."""

    parts: dict[str, PartHealth] = Field(default_factory=dict, description="by name, the parts that the process needs")
    scorer: ScorerInUse | None = Field(None, description="for callers that may read details")


class Problem(BaseModel):
    """RFC 9457 problem details; `type` is stable, `detail` says what to do."""

    type: str = Field(description="stable; urn:boundarymorph:problem: and a name")
    title: str = Field(description="the type in words")
    status: int = Field(description="of the HTTP response")
    detail: str = Field(description="the problem, and what to do about it")
    instance: str | None = Field(None, description="the path of the request")
    errors: list[dict[str, str]] | None = Field(None, description="the invalid fields of the body, and why")


class Distinct(Message):
    """A limit on documents with the same value or text."""

    by: str = Field(
        "text",
        min_length=1,
        max_length=1_024,
        description="'text': title and text; or a field of the metadata, dots lead into objects. A document without "
        "the field has nothing in common with any other",
    )
    at_most: int = Field(1, ge=1, description="documents with the same value")
    k_counts: Literal["documents", "groups"] = Field(
        "documents",
        description="'groups': return k groups, ranked by their best document, each with its best 'at_most' documents",
    )


def _shortly(value: object) -> object:
    return {"by": value} if isinstance(value, str) else {} if value is True else None if value is False else value


DistinctBy = Annotated[Distinct | None, BeforeValidator(_shortly, json_schema_input_type=bool | str | Distinct | None)]
