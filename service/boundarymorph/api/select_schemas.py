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

from boundarymorph.api.schemas import Id, LanguageModelUsage, Message
from boundarymorph.retrieval.retriever import VectorSource
from boundarymorph.selection import StopReason
from boundarymorph.selection.methods import METHODS
from boundarymorph.selector.result import Interruption, Status


class VectorBlock(Message):
    """Vectors as one base64 string of little-endian numbers in C order: 10,000 x 1,024 is not practical as JSON."""

    data: str = Field(description="base64 of the bytes")
    shape: list[Annotated[int, Field(ge=1)]] = Field(min_length=1, max_length=2, description="[N, d], or [d]")
    dtype: Literal["float16", "float32"] = Field("float16", description="type of the numbers in 'data'")


def _form(vector: object) -> Literal["numbers", "block"]:
    return "block" if isinstance(vector, dict | VectorBlock) else "numbers"


Vector = Annotated[
    Annotated[list[float], Tag("numbers")] | Annotated[VectorBlock, Tag("block")],
    Discriminator(_form),
]


def _number_or_auto(least: int, what: str) -> BeforeValidator:
    def check(value: object) -> object:
        if value in ("auto", None) or (isinstance(value, int) and not isinstance(value, bool) and value >= least):
            return value
        raise ValueError(f'give a whole number of {what}, {least} or more, or "auto"')

    return BeforeValidator(check)


Budget = Annotated[Annotated[int, Field(ge=0)] | Literal["auto"], _number_or_auto(0, "calls")]
BatchSize = Annotated[Annotated[int, Field(ge=1)] | Literal["auto"], _number_or_auto(1, "documents")]


class PoolDocument(Message):
    """One candidate. The id is its position where it has none; an integer is taken as its decimal digits."""

    id: Id | None = Field(None, description="unique in the pool; the position, from 0, if absent")
    text: str = Field(description="what the models read, after the title")
    title: str | None = Field(None, description="read by the models before the text")
    embedding: list[float] | None = Field(None, description="made by the service if absent, see 'vectors'")
    score: float | None = Field(None, description="retrieval score: the pool is ranked by it if all have one")
    bm25: float | None = Field(None, ge=0, description="word overlap with the query, if you have it: improves the set")
    cross_encoder_score: float | None = Field(
        None, ge=0, le=1, description="if you know it already: evidence that costs no call"
    )
    tokens: int | None = Field(
        None, ge=1, le=1_000_000_000, description="length for 'max_tokens'; estimated from the text if absent"
    )
    metadata: dict[str, Any] = Field(default_factory=dict, description="returned with 'return_documents'")


class PoolBody(Message):
    """The candidates of one request."""

    documents: list[PoolDocument] = Field(
        min_length=1, description="ranked by their scores; without them as 'ranked' says"
    )
    embeddings: VectorBlock | None = Field(None, description="of all documents at once, in their order")
    features: dict[Annotated[str, Field(min_length=1, max_length=64)], list[float | None]] = Field(
        default_factory=dict,
        description="signals of yours by name, a number a document in their order, null where it has none: the method "
        "'trend' learns which of them the scores follow",
    )


def _documents_alone(value: object) -> object:
    return {"documents": value} if isinstance(value, list) else value


Pool = Annotated[PoolBody, BeforeValidator(_documents_alone, json_schema_input_type=PoolBody | Sequence[PoolDocument])]
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
        description='B: cross-encoder calls at most; "auto" stops when little is expected to be lost by it',
    )
    k: int | None = Field(None, ge=1, description="documents to return")
    max_tokens: int | None = Field(
        None, ge=1, le=1_000_000_000, description="return what fits into so many tokens, instead of k"
    )
    method: Literal[*METHODS] | None = Field(  # type: ignore[valid-type]
        None,
        description="'trend' learns how the scores relate to the ranking; 'boundarymorph' is the paper's method, "
        "call by call only with batch_size 1 and reuse false",
    )
    depth: int | None = Field(
        None, ge=1, validation_alias=AliasChoices("depth", "N"), description="N: candidates taken from the index"
    )
    filter: dict[str, Any] | None = Field(
        None, description="only documents of the index whose metadata pass it; docs/api.md has the language"
    )
    hybrid: bool = Field(False, description="candidates by the vectors and by the words, ranked together")
    spend: Literal["order", "set"] = Field(
        "order",
        description="where every document fits: 'order' makes calls for the order of the answer, 'set', the paper's "
        "rule, none, as none can change the set",
    )
    batch_size: BatchSize | None = Field(
        None,
        description="documents scored a round, fewer where the deadline is near; with 1 each call knows all before it. "
        "'auto', the default: rounds that grow, 4 for 10 calls and 10 for 50. "
        "Where the budget covers the pool nothing is chosen, and a round has as many as can be scored in time",
    )
    query_embedding: Vector | None = Field(None, description="used instead of encoding the query")
    ranked: bool = Field(
        False,
        description="the pool is in retrieval order, best first; without this and without scores its order is that of "
        "BM25, or where it has embeddings that of the inner products with the query",
    )
    vectors: Literal["lexical", "encoder"] | None = Field(
        None,
        description="of a pool without embeddings: made of its words, which takes no encoder, or by the encoder",
    )
    return_documents: bool = Field(False, description="return text, title and metadata too")
    explain: bool | Literal["pool"] = Field(
        False,
        description="return every round: what was asked, against what, and the score; with 'pool' also what is "
        "believed of each candidate, and where it lies on a map",
    )
    deadline_ms: float | None = Field(
        None, gt=0, le=86_400_000, description="from the arrival: the set as it is then is the answer"
    )
    reuse: bool = Field(
        True,
        description="scores known from earlier requests take the place of calls; false: pick as if it were the first",
    )
    priority: int = Field(0, ge=-9, le=9, description="whose turn is next where requests wait: the highest first")
    on_failure: Literal["degrade", "error"] | None = Field(
        None,
        description="what an answer may be when the deadline comes, or scorer or retriever fail. By default the set as "
        "far as it is known, but a problem, 429, where the service is too busy to score anything. 'degrade': then too, "
        "the order of the first stage. 'error': a problem instead of any answer that would not be 'complete'",
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
        return self

    @property
    def _embedded(self) -> bool:
        """Whether there are vectors of documents or of the query."""
        pool = self.pool
        documents = pool is not None and (pool.embeddings is not None or any(d.embedding for d in pool.documents))
        return documents or self.query_embedding is not None


class SelectedDocument(BaseModel):
    """A document of the set. `relevance` is the cross-encoder's score where it was asked, else the posterior mean."""

    id: str = Field(description="of the document in its index or pool")
    rank: int = Field(description="1 is the most relevant of the set")
    relevance: float = Field(description="in [0, 1]")
    std: float = Field(description="posterior standard deviation; 0 where scored")
    source: Literal["cross_encoder", "posterior"] = Field(description="whether 'relevance' was scored or inferred")
    cross_encoder_score: float | None = Field(description="null where it was not scored")
    retrieval_rank: int = Field(description="1 is the first of the pool")
    retrieval_score: float = Field(description="of the first stage")
    text: str | None = Field(None, description="with 'return_documents'")
    title: str | None = Field(None, description="with 'return_documents'")
    metadata: dict[str, Any] | None = Field(None, description="with 'return_documents'")


class Usage(BaseModel):
    """What was spent. Calls, cached and reused scores all count against the budget."""

    budget: int = Field(description="B in force")
    cross_encoder_calls: int = Field(description="pairs that the cross-encoder scored for this request")
    cached_scores: int = Field(
        description="asked for in a round and answered by the cache, or computed for another request at the same time"
    )
    rounds: int = Field(description="trips to the scorer")
    reused_scores: int = Field(description="known from earlier requests; they took the place of as many calls")
    truncated_documents: int = Field(description="scored documents that were cut to fit the cross-encoder")
    language_model: LanguageModelUsage | None = Field(
        None, description="tokens and cost, where a language model is the scorer"
    )


class ExplainedCall(BaseModel):
    """One call: which document was asked and why, and what it scored."""

    id: str = Field(description="of the document that was scored")
    retrieval_rank: int = Field(description="1 is the first of the pool")
    rival: str | None = Field(description="the other side of the contested pair; null where one document was weighed")
    gap: float | None = Field(description="standardized boundary gap to the rival")
    value: float | None = Field(description="what the rule maximised, without a rival; null where nothing was weighed")
    score: float = Field(description="in [0, 1]")


class ExplainedRound(BaseModel):
    """The calls of one trip to the scorer."""

    round: int = Field(description="counted from 1")
    calls: list[ExplainedCall] = Field(description="in the order in which they were chosen")


class PoolMap(BaseModel):
    """The pool on the plane of its first two principal components: what lies close together is alike."""

    x: list[float] = Field(description="of the documents, in retrieval order")
    y: list[float] = Field(description="of the documents, in retrieval order")
    query: list[float] = Field(description="x and y of the query, which is on the positive side of both")


class ExplainedPool(BaseModel):
    """All candidates. The lists have one entry each, in retrieval order."""

    ids: list[str] = Field(description="of the documents")
    retrieval_scores: list[float] = Field(description="of the first stage")
    relevance: list[float | None] = Field(description="as believed in the end; null where nothing is, or it is deleted")
    std: list[float | None] = Field(description="posterior standard deviation; 0 where scored")
    map: PoolMap | None = Field(description="null where there are no vectors, or too few")


class SelectResponse(BaseModel):
    """The chosen set, most relevant first, and what is known about it."""

    id: str = Field(description="of this answer")
    documents: list[SelectedDocument] = Field(description="the set, most relevant first")
    pool_size: int = Field(description="N")
    k: int | None = Field(description="null where 'max_tokens' was given")
    max_tokens: int | None = Field(description="null where 'k' counts")
    method: str = Field(description="in force")
    vectors: VectorSource = Field(
        description="where the documents' vectors are from: given in the request, the service's encoder, the words "
        "(lexical), the index; none where an order was all that was needed"
    )
    usage: Usage = Field(description="what it cost")
    status: Literal[*map(str, Status)] = Field(  # type: ignore[valid-type]
        description="partial: as of the scores that there were time or a scorer for; retrieval_only: there were none"
    )
    stop_reason: Literal[*map(str, (*StopReason, *Interruption))] = Field(  # type: ignore[valid-type]
        description="why no more calls were made"
    )
    expected_loss: float = Field(
        description="share of the set's relevance that more calls may have brought; 0 where every document fits"
    )
    timings_ms: dict[str, float] = Field(description="by stage, and in total")
    warnings: list[str] = Field(description="what a caller should know, in words")
    rounds: list[ExplainedRound] | None = Field(None, description="with 'explain'")
    pool: ExplainedPool | None = Field(None, description="with 'explain': \"pool\"")


class RoundEvent(BaseModel):
    """Of a streamed selection, before each round: what was spent, and the set if it ended now."""

    rounds: int = Field(description="made so far")
    cross_encoder_calls: int = Field(description="made so far")
    cached_scores: int = Field(description="asked for and answered by the cache, or computed for another request")
    reused_scores: int = Field(description="known from earlier requests; they take the place of as many calls")
    budget: int = Field(description="B in force")
    expected_loss: float = Field(description="share of the set's relevance that more calls may bring")
    ids: list[str] = Field(description="the set as believed now, most relevant first")
    language_model: LanguageModelUsage | None = Field(
        None, description="tokens and cost so far, where a language model is the scorer"
    )
    calls: list[ExplainedCall] | None = Field(None, description="of the last round, with 'explain'")
    retrieval_ranks: list[int] | None = Field(None, description="of 'ids', with 'explain': \"pool\"")
    relevance: list[float | None] | None = Field(
        None, description="of all candidates as believed now, in retrieval order, with 'explain': \"pool\""
    )
    std: list[float | None] | None = Field(None, description="its posterior standard deviation; 0 where scored")
