"""The wire format of `POST /select`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)
from pydantic.config import JsonDict

from boundarymorph.api.distinct import DistinctBy
from boundarymorph.api.schemas import Array, Id, LanguageModelUsage, Message
from boundarymorph.retrieval.retriever import VectorSource
from boundarymorph.selection import StopReason
from boundarymorph.selection.methods import METHODS
from boundarymorph.selector.result import Interruption, Status


class VectorBlock(Message):
    """Vectors as one base64 string of little-endian numbers in C order, as 10,000 x 1,024 is impractical in JSON."""

    data: str = Field(description="base64 of the bytes")
    shape: Array[Annotated[int, Field(ge=1)]] = Field(min_length=1, max_length=2, description="[N, d], or [d]")
    dtype: Literal["float16", "float32"] = Field("float16", description="type of the numbers in 'data'")


def _form(vector: object) -> Literal["numbers", "block"]:
    return "block" if isinstance(vector, dict | VectorBlock) else "numbers"


Vector = Annotated[
    Annotated[Array[float], Tag("numbers")] | Annotated[VectorBlock, Tag("block")],
    Discriminator(_form),
]


def _number_or_auto(least: int, what: str) -> BeforeValidator:
    def check(value: object) -> object:
        if value in ("auto", None) or (isinstance(value, int) and not isinstance(value, bool) and value >= least):
            return value
        raise ValueError(f'give a whole number of {what}, {least} or more, or "auto"')

    return BeforeValidator(check)


Budget = Annotated[Annotated[int, Field(ge=0)] | Literal["auto"], _number_or_auto(0, "calls")]
CalibrationName = Annotated[str, Field(min_length=1, max_length=64)] | Literal[False] | None
BatchSize = Annotated[Annotated[int, Field(ge=1)] | Literal["auto"], _number_or_auto(1, "documents")]


class PoolDocument(Message):
    """One candidate. The default id is its position; an integer id becomes a string."""

    id: Id | None = Field(None, description="unique in the pool; the position, from 0, if absent")
    text: str = Field(description="what the models read, after the title")
    title: str | None = Field(None, description="read by the models before the text")
    embedding: Array[float] | None = Field(None, description="made by the service if absent, see 'vectors'")
    score: float | None = Field(None, description="retrieval score: the pool is ranked by it if all have one")
    bm25: float | None = Field(None, ge=0, description="lexical match with the query, if you have it: improves the set")
    cross_encoder_score: float | None = Field(
        None, ge=0, le=1, description="if you know it already: evidence that costs no call"
    )
    tokens: int | None = Field(
        None, ge=1, le=1_000_000_000, description="length for 'max_tokens'; estimated from the text if absent"
    )
    metadata: dict[str, Any] = Field(default_factory=dict, description="returned with 'return_documents'")


def _as_document(value: object) -> object:
    """A text alone becomes a document, and an `_id`, as in BEIR, the id of one that has none."""
    if isinstance(value, dict) and "_id" in value:
        value = {"id": value["_id"]} | {name: found for name, found in value.items() if name != "_id"}
    return {"text": value} if isinstance(value, str) else value


Candidate = Annotated[PoolDocument, BeforeValidator(_as_document, json_schema_input_type=PoolDocument | str)]


class PoolBody(Message):
    """The candidates of one request."""

    documents: Array[Candidate] = Field(
        min_length=1, description="or just their texts; ranked by their scores, without scores as 'ranked' says"
    )
    embeddings: VectorBlock | None = Field(None, description="of all documents at once, in their order")
    features: dict[Annotated[str, Field(min_length=1, max_length=64)], Array[float | None]] = Field(
        default_factory=dict,
        fail_fast=True,
        description="your own signals by name, a number per document in their order, null for a missing one: the "
        "method 'trend' learns which of them the scores follow",
    )


def _documents_alone(value: object) -> object:
    return {"documents": value} if isinstance(value, list) else value


Pool = Annotated[PoolBody, BeforeValidator(_documents_alone, json_schema_input_type=PoolBody | Sequence[Candidate])]
_NULL: JsonDict = {"type": "null"}
ONE_SOURCE: JsonDict = {
    "oneOf": [
        {
            "required": ["index"],
            "properties": {"index": {"type": "string"}, "pool": _NULL, "vectors": _NULL, "ranked": {"const": False}},
        },
        {
            "required": ["pool"],
            "properties": {
                "pool": {"type": ["object", "array"]},
                **dict.fromkeys(("index", "depth", "filter"), _NULL),
                "hybrid": {"const": False},
            },
        },
    ]
}


class SelectRequest(Message):
    """Choose the best k documents for a query with at most B cross-encoder calls."""

    model_config = ConfigDict(json_schema_extra=ONE_SOURCE)

    query: str = Field(min_length=1, pattern=r"\S", description="the information need, in plain words")
    index: str | None = Field(None, description="take the candidates from this index")
    pool: Pool | None = Field(None, description="or take these: an object, or just the list of documents")
    budget: Budget | None = Field(
        None,
        validation_alias=AliasChoices("budget", "B"),
        description='B: cross-encoder calls at most; "auto" stops when the set is expected to lose little by it',
    )
    k: int | None = Field(None, ge=1, description="documents to return")
    max_tokens: int | None = Field(
        None,
        ge=1,
        le=1_000_000_000,
        description="return documents up to this many tokens, instead of k; without 'min_relevance' none that is "
        "expected to have less than 1 % of the best one's relevance (the setting 'negligible')",
    )
    min_relevance: float | None = Field(
        None,
        ge=0,
        le=1,
        description="return only what is more likely than not to be at least so relevant, at most k documents or "
        "max_tokens, and possibly none; calls go to where that is in doubt",
    )
    calibration: CalibrationName = Field(
        None,
        description="by which relevance is the probability that a person agrees; by default that of the key or of the "
        "index, if there is one; false: none",
    )
    instruction: str | None = Field(
        None,
        min_length=1,
        description="what counts as relevant, in words, for a scorer that takes an instruction; others refuse it",
    )
    distinct: DistinctBy = Field(
        None,
        description="true: no two documents with the same text. The name of a field of the metadata: one document for "
        "each of its values. An object: as many as it says",
    )
    diversity: float = Field(
        0, ge=0, le=1, description="how much the set goes by what its documents have not in common, beside relevance"
    )
    method: Literal[*METHODS] | None = Field(  # type: ignore[valid-type]
        None,
        description="'trend' learns how the scores relate to the ranking; 'boundarymorph' is the paper's method, "
        "which makes the paper's calls one by one only with batch_size 1 and reuse false",
    )
    depth: int | None = Field(
        None, ge=1, validation_alias=AliasChoices("depth", "N"), description="N: candidates taken from the index"
    )
    exclude_ids: Array[Id] | None = Field(
        None,
        description="documents that are not returned and not scored, such as those that were seen before; what is "
        "known of their scores helps to find others",
    )
    filter: dict[str, Any] | None = Field(
        None, description="only documents of the index whose metadata match it; docs/api.md describes the language"
    )
    hybrid: bool = Field(False, description="rank candidates by vectors and by words together")
    spend: Literal["order", "set"] = Field(
        "order",
        description="if every document fits, so that no call can change the set: 'order' spends the calls on the order "
        "of the answer, 'set', the paper's rule, makes none",
    )
    batch_size: BatchSize | None = Field(
        None,
        description="documents scored per round, fewer when the deadline is near; with 1 each call is chosen knowing "
        "all earlier scores. 'auto', the default: growing rounds, 5 for 10 calls and 11 for 50. If the budget covers "
        "the pool, nothing is chosen, and a round has as many as can be scored in time",
    )
    query_embedding: Vector | None = Field(None, description="used instead of encoding the query")
    ranked: bool = Field(
        False,
        description="the pool is in retrieval order, best first. Without this and without scores it is ranked by BM25 "
        "or, if it has embeddings, by the inner products with the query",
    )
    vectors: Literal["lexical", "encoder"] | None = Field(
        None,
        description="for a pool without embeddings: make them from its words, without an encoder, or with the encoder",
    )
    return_documents: bool = Field(False, description="return text, title and metadata too")
    explain: bool | Literal["pool"] = Field(
        False,
        description="return every round: what was scored, its rival, and the score; with 'pool' also the belief about "
        "each candidate, and its position on a map",
    )
    deadline_ms: float | None = Field(
        None, gt=0, le=86_400_000, description="from the arrival; the answer is the set as it is then"
    )
    reuse: bool = Field(
        True,
        description="scores known from earlier requests replace calls; false: choose as a first request would",
    )
    priority: int = Field(0, ge=-9, le=9, description="the order of your waiting requests, the highest first")
    on_failure: Literal["degrade", "error"] | None = Field(
        None,
        description="what to do at the deadline, or if scorer or retriever fail. By default answer with the set as "
        "known so far, or with 429 if the service is too busy to score anything. 'degrade': in that case answer too, "
        "with the first stage's order. 'error': answer with a problem instead of anything but 'complete'",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.index is None) == (self.pool is None):
            raise ValueError("give exactly one of 'index' and 'pool'")
        if self.pool is not None and self.depth is not None:
            raise ValueError("'depth' goes with 'index'; a pool is used whole")
        if self.pool is not None and (self.filter is not None or self.hybrid):
            raise ValueError("'filter' and 'hybrid' go with 'index'; a pool is used as it is")
        if self.index is not None and (self.vectors is not None or self.ranked):
            raise ValueError("'vectors' and 'ranked' go with 'pool'; an index has vectors and an order of its own")
        if self.vectors == "lexical" and self._embedded:
            raise ValueError("'vectors' is \"lexical\": leave out the embeddings, or leave out 'vectors'")
        if self.k is not None and self.max_tokens is not None:
            raise ValueError("give 'k' or 'max_tokens', not both")
        if self.max_tokens is not None and self.diversity:
            raise ValueError("'diversity' goes with 'k'; leave out 'max_tokens'")
        if self.max_tokens is not None and self.distinct is not None and self.distinct.k_counts == "groups":
            raise ValueError("'distinct': \"k_counts\" is \"groups\", which goes with 'k'; leave out 'max_tokens'")
        return self

    @property
    def _embedded(self) -> bool:
        """Whether the request has vectors of documents or of the query."""
        pool = self.pool
        documents = pool is not None and (pool.embeddings is not None or any(d.embedding for d in pool.documents))
        return documents or self.query_embedding is not None


class SelectedDocument(BaseModel):
    """A document of the set. `relevance` is the cross-encoder's score if it was scored, else the posterior mean; with a
    calibration, the probability that a person finds it relevant."""

    id: str = Field(description="of the document in its index or pool")
    rank: int = Field(description="1 is the most relevant of the set")
    relevance: float = Field(description="in [0, 1]")
    std: float = Field(description="posterior standard deviation; 0 if scored")
    source: Literal["cross_encoder", "posterior"] = Field(description="whether 'relevance' was scored or inferred")
    cross_encoder_score: float | None = Field(description="null if it was not scored")
    retrieval_rank: int = Field(description="1 is the first of the pool")
    retrieval_score: float = Field(description="of the first stage")
    group: Any = Field(None, description="with 'distinct' by a field: its value; null if the document has none")
    text: str | None = Field(None, description="with 'return_documents'")
    title: str | None = Field(None, description="with 'return_documents'")
    metadata: dict[str, Any] | None = Field(None, description="with 'return_documents'")


class Usage(BaseModel):
    """What a selection used. Calls, cached and reused scores all count against the budget."""

    budget: int = Field(description="B in force")
    cross_encoder_calls: int = Field(description="pairs that the cross-encoder scored for this request")
    cached_scores: int = Field(
        description="chosen in a round, but answered by the cache or computed for another request at the same time"
    )
    rounds: int = Field(description="trips to the scorer")
    reused_scores: int = Field(description="known from earlier requests; they replaced as many calls")
    truncated_documents: int = Field(description="scored documents that were cut to fit the cross-encoder")
    language_model: LanguageModelUsage | None = Field(
        None, description="tokens and cost, if a language model is the scorer"
    )


class ExplainedCall(BaseModel):
    """One call: the document that was scored, why it was chosen, and its score."""

    id: str = Field(description="of the document that was scored")
    retrieval_rank: int = Field(description="1 is the first of the pool")
    rival: str | None = Field(description="the other document of the contested pair; null if one was valued alone")
    gap: float | None = Field(description="standardized boundary gap to the rival")
    value: float | None = Field(description="without a rival, the value that was maximised; null if none was")
    score: float = Field(description="in [0, 1]")


class ExplainedRound(BaseModel):
    """The calls of one trip to the scorer."""

    round: int = Field(description="counted from 1")
    calls: list[ExplainedCall] = Field(description="in the order in which they were chosen")


class PoolMap(BaseModel):
    """The pool on the plane of its first two principal components: similar documents lie close together."""

    x: list[float] = Field(description="of the documents, in retrieval order")
    y: list[float] = Field(description="of the documents, in retrieval order")
    query: list[float] = Field(description="x and y of the query, which is on the positive side of both")


class ExplainedPool(BaseModel):
    """All candidates. The lists have one entry each, in retrieval order."""

    ids: list[str] = Field(description="of the documents")
    retrieval_scores: list[float] = Field(description="of the first stage")
    relevance: list[float | None] = Field(description="the final one; null if unknown or deleted")
    std: list[float | None] = Field(description="posterior standard deviation; 0 if scored")
    map: PoolMap | None = Field(description="null if there are no vectors, or too few")


class SelectResponse(BaseModel):
    """The chosen set, most relevant first, and what is known about it."""

    id: str = Field(description="of this answer")
    documents: list[SelectedDocument] = Field(description="the set, most relevant first")
    pool_size: int = Field(description="N")
    k: int | None = Field(description="null if 'max_tokens' was given")
    max_tokens: int | None = Field(description="null if 'k' counts")
    min_relevance: float | None = Field(description="null if not given: then k documents are returned")
    calibration: str | None = Field(None, description="by which relevance is a probability; null if it is the score")
    policy: str = Field("default", description="the policy in force, whose defaults the request has")
    method: str = Field(description="in force")
    vectors: VectorSource = Field(
        description="the source of the documents' vectors: given in the request, the service's encoder, the words "
        "(lexical), the index; none if only an order was needed"
    )
    usage: Usage = Field(description="what it cost")
    status: Literal[*map(str, Status)] = Field(  # type: ignore[valid-type]
        description="partial: fewer scores than asked for, as time or the scorer ran out; retrieval_only: no scores"
    )
    stop_reason: Literal[*map(str, (*StopReason, *Interruption))] = Field(  # type: ignore[valid-type]
        description="why no more calls were made"
    )
    expected_loss: float = Field(
        description="share of the best set's relevance that the set is expected to miss; 0 if every document fits. "
        "With 'min_relevance', if k is not the limit: what the set's expected F1 lacks of 1"
    )
    timings_ms: dict[str, float] = Field(description="by stage, and in total")
    warnings: list[str] = Field(description="what a caller should know, in words")
    rounds: list[ExplainedRound] | None = Field(None, description="with 'explain'")
    pool: ExplainedPool | None = Field(None, description="with 'explain': \"pool\"")


class RoundEvent(BaseModel):
    """The state of a streamed selection before a round: what was spent, and the current set."""

    rounds: int = Field(description="made so far")
    cross_encoder_calls: int = Field(description="made so far")
    cached_scores: int = Field(description="chosen, but answered by the cache or computed for another request")
    reused_scores: int = Field(description="known from earlier requests; they replace as many calls")
    budget: int = Field(description="B in force")
    expected_loss: float = Field(description="share of the best set's relevance that this set is expected to miss")
    ids: list[str] = Field(description="the current set, most relevant first")
    language_model: LanguageModelUsage | None = Field(
        None, description="tokens and cost so far, if a language model is the scorer"
    )
    calls: list[ExplainedCall] | None = Field(None, description="of the last round, with 'explain'")
    retrieval_ranks: list[int] | None = Field(None, description="of 'ids', with 'explain': \"pool\"")
    relevance: list[float | None] | None = Field(
        None, description="current, of all candidates in retrieval order, with 'explain': \"pool\""
    )
    std: list[float | None] | None = Field(None, description="its posterior standard deviation; 0 if scored")
