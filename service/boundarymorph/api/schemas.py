"""The wire format of the native routes: what callers send and what they get; of `POST /select`, in `select_schemas`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from boundarymorph.scoring.bill import Bill


class Message(BaseModel):
    """Unknown fields are refused by name, so that a misspelt option never passes for a default; so is a value of
    another type than the one described, such as "5" or true for a number."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _decimal(id: object) -> object:
    """An integer id as the string that an upload makes of it."""
    return str(id) if isinstance(id, int) and not isinstance(id, bool) and -(2**63) <= id < 2**64 else id


Id = Annotated[
    str,
    Field(min_length=1, max_length=512),
    BeforeValidator(_decimal, json_schema_input_type=Annotated[str, Field(min_length=1, max_length=512)] | int),
]


NO_ENCODER = "none"


class LanguageModelUsage(BaseModel):
    """What a language model that grades took for a request; 0 where every grade was known."""

    input_tokens: int = Field(description="read, as the model's server counts them")
    output_tokens: int = Field(description="written")
    cost: float = Field(description="by the service's prices, in their currency; also of what was sent in vain")

    @classmethod
    def of(cls, bill: Bill | None) -> LanguageModelUsage | None:
        """None where the scorer is none."""
        if bill is None:
            return None
        return cls(input_tokens=bill.usage.read, output_tokens=bill.usage.written, cost=bill.spent.cost)


class CreateIndex(Message):
    """An index has vectors of the service's encoder, its users' own of a given dimension, or none."""

    encoder: str | None = Field(
        None,
        description="the encoder that the service runs, which is the default; or 'none' for an index without vectors, "
        "whose documents are found by BM25",
    )
    dimension: int | None = Field(None, ge=1, description="own vectors of this dimension, without an encoder")
    kind: str | None = Field(
        None,
        description="how it is searched: exactly (flat, the default), or faster and nearly so (ivf; in Milvus also "
        "hnsw, diskann and autoindex)",
    )
    lexical: bool = Field(True, description="keep the words too, for BM25 and hybrid search")
    metric: str = Field("cosine", description="cosine: every vector is brought to unit length")

    @field_validator("metric")
    @classmethod
    def _cosine(cls, metric: str) -> str:
        if metric != "cosine":
            raise ValueError(
                f"there is no metric {metric!r}, only 'cosine': all vectors are brought to unit length, so that what "
                "their lengths mean is lost; of vectors that have it already, 'cosine' is the inner product"
            )
        return metric

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.encoder is not None and self.dimension is not None:
            raise ValueError("give 'encoder' or 'dimension', not both: the encoder knows its dimension")
        if self.encoder == NO_ENCODER and (self.kind is not None or not self.lexical):
            raise ValueError("an index without an encoder has its words alone: leave out 'kind' and 'lexical'")
        return self


class StructureDescription(BaseModel):
    """What an index of kind ivf was trained with."""

    count: int = Field(description="documents")
    sequence: int = Field(description="of the last change before it")
    clusters: int = Field(description="lists of vectors")
    recall: dict[int, float] = Field(description="by depth, measured on its own vectors")


class IndexDescription(BaseModel):
    """An index at a glance."""

    name: str = Field(description="in the URLs of its routes")
    count: int = Field(description="documents")
    dimension: int = Field(description="of its vectors; 0 where it has none")
    encoder: str | None = Field(description="null for an index of own vectors, or without vectors")
    created: str = Field(description="UTC, ISO 8601")
    bytes: int = Field(description="on disk")
    kind: str = Field(description="how it is searched: flat, ivf, words; in Milvus flat or hnsw")
    metric: Literal["cosine"] = Field("cosine", description="vectors are brought to unit length")
    structure: StructureDescription | None = Field(None, description="null where it is searched exactly")


class IndexList(BaseModel):
    """All indexes by name."""

    indexes: list[IndexDescription] = Field(description="by name")


class UploadedDocument(BaseModel):
    """A document as an upload takes it; other fields are counted in the report, and refused where it is strict."""

    id: Annotated[str, Field(min_length=1, max_length=512)] | int = Field(description="unique in the index")
    text: str = Field(description="what the models read, after the title")
    title: str | None = Field(None, description="read by the models before the text")
    metadata: dict[str, Any] | None = Field(None, description="what filters go by")
    embedding: list[float] | None = Field(None, description="encoded by the service if absent")


class StoredDocument(BaseModel):
    """A document as an index holds it."""

    id: str = Field(description="unique in the index")
    text: str = Field(description="as it was uploaded")
    title: str | None = Field(description="null if it has none")
    metadata: dict[str, Any] = Field(description="as it was uploaded")


class UploadProblem(BaseModel):
    """A line of an upload (or a position in its array), counted from 1, that was skipped, and why."""

    line: int = Field(description="counted from 1")
    reason: str = Field(description="what is wrong with it")


class UploadReport(BaseModel):
    """What became of an upload. All that is counted as added or updated is on disk."""

    added: int = Field(description="documents that are new")
    updated: int = Field(description="documents that replaced one of the same id")
    unchanged: int = Field(description="documents that were there already")
    superseded: int = Field(description="earlier documents of an id that came again")
    skipped: int = Field(description="lines that are no document")
    truncated: int = Field(description="documents cut to the encoder's maximum length to be embedded")
    problems: list[UploadProblem] = Field(description="the first of what was skipped")
    unknown_fields: dict[str, int] = Field(
        description="fields that mean nothing here, and how many documents had them: perhaps misspelt ones"
    )


class UploadProgress(BaseModel):
    """How an upload goes, as of its last batch, all of which is on disk."""

    documents: int = Field(description="dealt with, whatever became of them")
    added: int = Field(description="documents that are new")
    updated: int = Field(description="documents that replaced one of the same id")
    unchanged: int = Field(description="documents that were there already")
    skipped: int = Field(description="lines that are no document")
    documents_per_second: float = Field(description="over the last 30 seconds")
    seconds_left: float | None = Field(description="null where the length of the upload is not known")


class DeleteDocuments(Message):
    """Which documents to delete: those of some ids, or those whose metadata pass a filter."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["ids"], "properties": {"ids": {"type": "array"}, "filter": {"type": "null"}}},
                {"required": ["filter"], "properties": {"filter": {"type": "object"}, "ids": {"type": "null"}}},
            ]
        }
    )

    ids: list[Id] | None = Field(None, description="of the documents to delete; unknown ones are ignored")
    filter: dict[str, Any] | None = Field(None, description="as of a selection; {} is passed by all documents")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.ids is None) == (self.filter is None):
            raise ValueError("give exactly one of 'ids' and 'filter'")
        return self


class DeleteReport(BaseModel):
    """How many documents were there and are gone."""

    deleted: int = Field(description="documents that were there")


class ScoreRequest(Message):
    """Texts to be scored against one query."""

    query: str = Field(description="what the texts are to be relevant to")
    texts: list[str] = Field(description="to be scored")
    deadline_ms: float | None = Field(None, gt=0, le=86_400_000, description="from now; what is late is not begun")
    truncate: bool = Field(True, description="cut what is too long for the model; false refuses it")


class ScoreResponse(BaseModel):
    """scores: in [0, 1], in the order of the texts; truncated: how many were cut to fit."""

    model: str = Field(description="with revision, precision, length and prompt")
    scores: list[float] = Field(description="in [0, 1], in the order of the texts")
    truncated: int = Field(description="texts that were cut to fit the model")


class ScorerInfo(BaseModel):
    """A cross-encoder and its bounds."""

    model: str = Field(description="with revision, precision, length and prompt")
    backend: str = Field(description="what runs it")
    max_length: int = Field(description="tokens of a query and a text together")
    max_texts: int = Field(description="in one call")
    batch_tokens: int = Field(description="of a batch now; fewer than configured after one did not fit the device")
    queue_tokens: int = Field(description="that may wait; what is over it is refused")


class Health(BaseModel):
    """status: "ok", "starting", "unready", "draining" or "failed"."""

    status: str = Field(description="ok, starting, unready, draining or failed")
    detail: str | None = Field(None, description="why it is not ok")


class PartHealth(BaseModel):
    """Whether a part answered its last probe; since: when it began to answer, or ceased to."""

    status: Literal["ok", "away"] = Field(description="whether it answered its last probe")
    since: datetime = Field(description="when that began")
    detail: str | None = Field(None, description="why it is away, for those who may read it")


class Ready(Health):
    """Whether the process can serve, and which part behind it does not answer. What is paid by the request is not
    asked, and not among the parts."""

    parts: dict[str, PartHealth] = Field(
        default_factory=dict, description="by name, those that the process cannot work without"
    )


class Problem(BaseModel):
    """RFC 9457 problem details; `type` is stable, `detail` says what to do."""

    type: str = Field(description="stable; urn:boundarymorph:problem: and a name")
    title: str = Field(description="the type in words")
    status: int = Field(description="of the HTTP answer")
    detail: str = Field(description="what is wrong and what to do about it")
    instance: str | None = Field(None, description="the path of the request")
    errors: list[dict[str, str]] | None = Field(None, description="where in the body, and what")
