"""Define the wire format of the native routes, except `POST /select` (see `select_schemas`)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    computed_field,
    field_validator,
    model_validator,
)

from boundarymorph.reading import Id, readable
from boundarymorph.retrieval.interfaces import IndexDescription
from boundarymorph.selection.pool import Trust

Element = TypeVar("Element")


def earlier_name(field: str) -> Callable[[Callable[[Any], Any]], property]:
    """Return a decorator for a method that repeats a field under the name of the last release."""
    description = f"The same as '{field}'. The next release leaves this name out."
    repeat = computed_field(description=description, json_schema_extra={"deprecated": True})
    return lambda method: repeat(property(method))


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

    slug: str = Field(description="The kind of warning, for programs. docs/api.md lists all.")
    message: str = Field(description="A sentence, for people.")


class LanguageModelUsage(BaseModel):
    """The tokens of a language model that grades, for one request."""

    input_tokens: int = Field(description="The tokens that were read, as the model's server counts them.")
    output_tokens: int = Field(description="The tokens that were written.")


class RelevantSpan(BaseModel):
    """A part of a text that the scorer found relevant."""

    model_config = ConfigDict(from_attributes=True)

    start: int = Field(description="The position of its first character, counted from 0.")
    end: int = Field(description="The position after its last character.")
    score: float = Field(description="Its relevance in [0, 1].")


class CreateIndex(Message):
    """The configuration of an index: the encoder's vectors, your own vectors, or none."""

    encoder: str | None = Field(
        None,
        description="The name of the service's encoder, which is the default, or 'none' for an index without vectors, "
        "which BM25 searches.",
    )
    dimension: int | None = Field(None, ge=1, description="The dimension of vectors of your own, without an encoder.")
    kind: str | None = Field(
        None,
        description="The kind of search. 'flat', the default, is exact. 'ivf', or 'hnsw' in a store, is approximate "
        "and faster.",
    )
    lexical: bool = Field(True, description="Whether to keep the words too, for BM25 and hybrid search.")
    metric: str = Field(
        "cosine", description="The metric, which is always cosine: every vector is normalised to unit length."
    )

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
        max_length=2_000, description="The description, which replaces an earlier one. An empty one removes it."
    )


class IndexArtifacts(Message):
    """Data of an index beside its documents."""

    description: str | None = Field(
        None, max_length=2_000, description="A description, for people and language models that choose an index."
    )
    distinct: str | None = Field(
        None,
        description="A field of the metadata. Selections have one document for each of its values, unless a request "
        "says otherwise.",
    )
    calibration: dict[str, Any] | None = Field(
        None, description="The map from relevance to a probability, as `boundarymorph calibrate` makes it."
    )


class UnreadableIndex(BaseModel):
    """An index that exists and cannot be read."""

    name: str = Field(description="The name of the index, as in the URLs of its routes.")
    type: str = Field(description="The type of the problem that its routes answer with.")
    detail: str = Field(description="The problem.")


class IndexList(BaseModel):
    """All indexes that the key may use."""

    indexes: list[IndexDescription] = Field(description="The indexes in the order of their names.")
    unreadable: list[UnreadableIndex] = Field(
        default=[], description="Indexes that exist and cannot be read now. No other index is missing."
    )


class StoredDocument(BaseModel):
    """A document in an index."""

    id: str = Field(description="The document's id, unique in the index.")
    text: str = Field(description="The text as it was uploaded.")
    title: str | None = Field(description="The title, or null if the document has no title.")
    metadata: dict[str, Any] = Field(description="The metadata as it was uploaded.")


class DocumentPage(BaseModel):
    """Documents of an index in the order of their ids."""

    documents: list[StoredDocument] = Field(description="The documents of this page.")
    next: str | None = Field(description="The 'after' of the next page, or null for the last one.")


class FieldStatistics(BaseModel):
    """A field of the metadata in a sample of documents."""

    documents: int = Field(description="The number of documents in the sample that have the field.")
    values: int = Field(description="The number of different values in the sample.")
    examples: list[Any] = Field(description="At most five of its values.")


class IndexStatistics(IndexDescription):
    """An index, and statistics of a sample of its documents."""

    sampled: int = Field(
        description="The number of documents in the sample. These are the first by id or, in a store, any documents."
    )
    characters_mean: float = Field(description="The mean length of title and text in the sample, or 0 if it is empty.")
    characters_most: int = Field(description="The length of the longest title and text in the sample.")
    fields: dict[str, FieldStatistics] = Field(description="The most frequent fields of the metadata in the sample.")


class UploadProblem(BaseModel):
    """A skipped line of an upload, or element of its array, and the reason."""

    line: int = Field(description="The number of the line or element, counted from 1.")
    reason: str = Field(description="The reason why it was skipped.")


class UploadReport(BaseModel):
    """The result of an upload. Documents counted as added or updated are on disk."""

    added: int = Field(description="New documents.")
    updated: int = Field(description="Documents that replaced one with the same id.")
    unchanged: int = Field(description="Documents that existed already with the same content.")
    superseded: int = Field(description="Documents whose id came again later in the upload.")
    skipped: int = Field(description="Lines that are not a valid document.")
    truncated: int = Field(description="Documents cut to the encoder's maximum length for embedding.")
    problems: list[UploadProblem] = Field(description="The first skipped lines.")
    unknown_fields: dict[str, int] = Field(
        description="Unknown fields, which may be misspelled, and the number of documents with them."
    )


class UploadProgress(BaseModel):
    """The progress of an upload up to its last batch, which is on disk."""

    documents: int = Field(description="The documents that were processed, with any outcome.")
    added: int = Field(description="New documents.")
    updated: int = Field(description="Documents that replaced one with the same id.")
    unchanged: int = Field(description="Documents that existed already with the same content.")
    skipped: int = Field(description="Lines that are not a valid document.")
    position: int = Field(description="The bytes of the upload that were processed, without white space in an array.")


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

    ids: Array[Id] | None = Field(None, description="The ids of the documents to delete. Unknown ids are ignored.")
    filter: dict[str, Any] | None = Field(None, description="A filter as in a selection. It must not match everything.")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.ids is None) == (self.filter is None):
            raise ValueError("give exactly one of 'ids' and 'filter'")
        return self


class DeleteReport(BaseModel):
    """The result of a deletion."""

    deleted: int = Field(description="The number of documents that existed and are deleted.")


class ScoreRequest(Message):
    """Texts to score against one query."""

    query: QueryText = Field(description="The query that the texts are scored against.")
    texts: Array[str] = Field(description="The texts to score.")
    deadline_ms: float | None = Field(
        None, gt=0, le=86_400_000, description="The deadline, in milliseconds from now. Late texts are not scored."
    )
    truncate: bool = Field(
        True, description="Whether texts that are too long for the model are cut. If false, they are refused."
    )
    instruction: str | None = Field(
        None, min_length=1, description="An explanation of relevance, for a model that takes an instruction."
    )


class ScoreResponse(BaseModel):
    """The scores of all texts of a request."""

    model: str = Field(description="The name of the model, with revision, precision, length, and prompt.")
    scores: list[float] = Field(description="Scores in [0, 1], in the order of the texts.")
    truncated: int = Field(description="The number of texts that were cut to fit the model.")


class ScorerInfo(BaseModel):
    """A cross-encoder and its limits."""

    model: str = Field(description="The name of the model, with revision, precision, length, and prompt.")
    backend: str = Field(description="The software that runs it.")
    max_length: int = Field(description="The most tokens of a query and a text together.")
    max_texts: int = Field(description="The most texts in one call.")
    batch_tokens: int = Field(
        description="The tokens of a batch. There are fewer than configured after a batch did not fit the device."
    )
    queue_tokens: int = Field(description="The tokens that may wait. Further requests are refused.")
    instructed: bool = Field(False, description="Whether it takes an instruction with a request.")


class Health(BaseModel):
    """The state of the process."""

    status: str = Field(description="The status: ok, starting, unready, draining, or failed.")
    detail: str | None = Field(None, description="The reason why the process does not work.")


class PartHealth(BaseModel):
    """The state of a part of the process."""

    status: Literal["ok", "away"] = Field(description="Whether the part answered its last probe.")
    since: datetime = Field(description="The time since which the part has this status.")
    detail: str | None = Field(
        None, description="The reason why the part does not answer, for callers that may read it."
    )


class ScorerInUse(BaseModel):
    """A scorer and the trust in its scores."""

    model: str | None = Field(description="The full name of its model, or null while it is unknown.")
    trust: Trust = Field(
        description="The trust in its scores beside similarity and words. docs/models.md says what it changes."
    )


class Ready(Health):
    """Whether the process can serve, and which of its parts do not answer.

    Services that charge per request are not probed and not listed.
    """

    parts: dict[str, PartHealth] = Field(default_factory=dict, description="The parts that the process needs, by name.")
    scorer: ScorerInUse | None = Field(None, description="The scorer in use, for callers that may read details.")


class Problem(BaseModel):
    """RFC 9457 problem details; `type` is stable, `detail` says what to do."""

    type: str = Field(description="The kind of problem, which is stable: urn:boundarymorph:problem: and a name.")
    title: str = Field(description="The type in words.")
    status: int = Field(description="The status code of the HTTP response.")
    detail: str = Field(description="The problem, and what to do about it.")
    instance: str | None = Field(None, description="The path of the request.")
    errors: list[dict[str, str]] | None = Field(None, description="The invalid fields of the body, and the reasons.")


class Distinct(Message):
    """A limit on the documents with the same value or text."""

    by: str = Field(
        "text",
        min_length=1,
        max_length=1_024,
        description="'text' for title and text, or a field of the metadata. Dots lead into objects. A document "
        "without the field, or with null in it, has nothing in common with any other.",
    )
    at_most: int = Field(1, ge=1, description="The most documents with the same value.")
    k_counts: Literal["documents", "groups"] = Field(
        "documents",
        description="The unit of k. With 'groups', there are k groups, ranked by their best document, each with its "
        "best 'at_most' documents.",
    )


def _shortly(value: object) -> object:
    return {"by": value} if isinstance(value, str) else {} if value is True else None if value is False else value


DistinctBy = Annotated[Distinct | None, BeforeValidator(_shortly, json_schema_input_type=bool | str | Distinct | None)]
