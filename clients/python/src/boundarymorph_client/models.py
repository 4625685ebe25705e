"""Define the models of requests and answers, as in docs/api.md and docs/openapi.json.

An answer keeps fields that it does not know, so that a newer service can be used. Values like those of `status` are
plain strings for the same reason.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol, Required, TypeAlias, TypedDict

from pydantic import AliasChoices, BaseModel, ConfigDict, Field


class Array(Protocol):
    """A NumPy array, or a value that NumPy can convert to one, such as a tensor on the CPU."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any: ...


Vector: TypeAlias = Sequence[float] | Array
Vectors: TypeAlias = Sequence[Sequence[float]] | Array


class PoolDocument(TypedDict, total=False):
    """A candidate of one request."""

    id: str | int
    text: Required[str]
    title: str | None
    embedding: Vector
    score: float
    bm25: float
    cross_encoder_score: float
    tokens: int
    weight: float
    metadata: Mapping[str, Any]


class WeightedQuery(TypedDict, total=False):
    """One of several queries.

    Relevance to it is multiplied by its weight, above 0 and up to 1, which is the default.
    """

    query: Required[str]
    weight: float


Query: TypeAlias = str | Sequence[str | WeightedQuery]


class UploadedDocument(TypedDict, total=False):
    """A document for an index."""

    id: Required[str | int]
    text: Required[str]
    title: str | None
    metadata: Mapping[str, Any] | None
    embedding: Vector


class Distinct(TypedDict, total=False):
    """At most `at_most` documents with the same value of the field `by`, or the same `text`.

    With `k_counts` "groups", k groups with their best `at_most` documents.
    """

    by: str
    at_most: int
    k_counts: Literal["documents", "groups"]


class DecayFunction(TypedDict, total=False):
    """A factor: 1 up to `offset` away from the origin, and `decay` at `scale` beyond that.

    The origin is a number, a date in ISO 8601, or "now". For dates, scale and offset are durations such as "30d".
    """

    field: Required[str]
    origin: Required[float | str]
    scale: Required[float | str]
    offset: float | str
    decay: float


class FactorFunction(TypedDict, total=False):
    """A number of the metadata, times a factor.

    A modifier is a function as in Elasticsearch, such as `log1p` or `sqrt`.
    """

    field: Required[str]
    factor: float
    modifier: str
    missing: float | None


class BoostRule(TypedDict, total=False):
    """A weight or one function, or both, for the documents that match the filter."""

    filter: Mapping[str, Any]
    weight: float
    gauss: DecayFunction
    exp: DecayFunction
    linear: DecayFunction
    field_value_factor: FactorFunction


class SelectOptions(TypedDict, total=False):
    """Options of a selection. Give exactly one of `index` and `pool`.

    The service has defaults for all other options.

    Attributes:
        index: Take the candidates from this index.
        pool: Take these candidates, as texts or documents.
        ranked: Whether they are in the order of your retriever, best first.
        embeddings: Vectors of the pool's documents [N, d]. Arrays are sent as a block of float16 if they are that, else
            float32.
        features: Your signals by name, a number per document of the pool, None or NaN where it has none.
        query_embedding: [d], used instead of encoding the query.
        vectors: The vectors of a pool without embeddings: `lexical` (made of its words) or `encoder`.
        budget: Most cross-encoder calls; "auto" stops when the expected loss of doing so is small.
        k: Documents to return.
        max_tokens: Return the documents that fit into this many tokens, instead of k.
        min_relevance: Return only documents that are more likely than not to reach this relevance, at most k documents
            or `max_tokens`.
        calibration: False to report relevance without the calibration of the index, or of pools.
        objective: Find the share `find` of all that reaches `min_relevance`, and stop when that has the probability
            `in`; `next` is the most documents to read next that the answer names. With a budget of 0 you answer, by
            known_scores.
        known_scores: Scores of documents by id, evidence that costs no call.
        relevance: `human`, the default: what people are expected to find, by the scorer, the vectors, and the words
            together; or `scorer`: the score alone, known or expected.
        instruction: What counts as relevant, in words, for a scorer that takes an instruction.
        distinct: True for no two documents with the same text, or a field of the metadata for one document for each of
            its values; a `Distinct` says how many, and whether k counts documents or groups.
        diversity: The weight of diversity against relevance, from 0 to 1.
        boost: Rules that multiply relevance. Documents compete by the product, their `value`, which also orders them. A
            document of a pool may have a `weight` of its own.
        spend: If every document fits, `order` (the default) makes calls for the order, `set` makes none.
        method: `trend` or `boundarymorph`.
        depth: Candidates taken from the index.
        rounds: Most requests to the scorer, or "auto": by the time that one takes.
        passages: For a pool without embeddings, False cuts documents that are longer than the scorer reads. By default
            they become passages, of which the best counts.
        exclude_ids: Not returned and not scored, such as documents that were seen before.
        filter: Only documents of the index whose metadata pass it.
        hybrid: Whether to find candidates by vectors and words.
        return_documents: Whether to include text, title, and metadata, by default for an index.
        explain: Include every round; "pool": also include the set before each round, and the belief about every
            candidate at the start and at the end.
        explain_depth: Include the belief about this many leading candidates only.
        deadline_ms: Milliseconds for the whole call, retries included; the client's `timeout` by default.
        reuse: Whether scores of earlier requests replace calls.
        on_failure: What happens when the scorer fails, the deadline passes or the service is overloaded. `error` raises
            an error, and `degrade` returns the best set by the evidence so far.
    """

    index: str
    pool: Sequence[str | PoolDocument | Mapping[str, object]]
    embeddings: Vectors
    features: Mapping[str, Sequence[float | None] | Array]
    query_embedding: Vector
    ranked: bool
    vectors: Literal["lexical", "encoder"]
    budget: int | Literal["auto"]
    k: int
    max_tokens: int
    min_relevance: float
    objective: Mapping[str, float]
    known_scores: Mapping[str, float]
    relevance: Literal["human", "scorer"]
    calibration: bool
    instruction: str
    distinct: bool | str | Distinct
    diversity: float
    boost: Sequence[BoostRule]
    method: str
    depth: int
    exclude_ids: Sequence[str | int]
    passages: bool
    filter: Mapping[str, Any]
    hybrid: bool
    rounds: int | Literal["auto"]
    spend: Literal["order", "set"]
    return_documents: bool
    explain: bool | Literal["pool"]
    explain_depth: int
    deadline_ms: float
    reuse: bool
    on_failure: Literal["degrade", "error"]


class Answer(BaseModel):
    model_config = ConfigDict(extra="allow")


class PassageOfDocument(Answer):
    """A part of a document's text, at the characters [start, end)."""

    start: int
    end: int
    text: str


class RelevantSpan(Answer):
    """A part of a text that the cross-encoder found relevant, at the characters [start, end)."""

    start: int
    end: int
    score: float


class SelectedDocument(Answer):
    """A document of the set.

    `relevance` is the cross-encoder's score if it was called, and otherwise inferred.
    """

    id: str
    rank: int
    relevance: float
    std: float
    value: float | None = None
    source: str
    cross_encoder_score: float | None
    retrieval_rank: int
    retrieval_score: float
    query: int | None = None
    relevances: list[float | None] | None = None
    group: Any = None
    passage: PassageOfDocument | None = None
    text: str | None = None
    title: str | None = None
    metadata: dict[str, Any] | None = None
    relevant_spans: list[RelevantSpan] | None = None


class LanguageModelUsage(Answer):
    """The tokens of a language model that grades."""

    input_tokens: int
    output_tokens: int


class Usage(Answer):
    """The work of a selection.

    Attributes:
        scorer_requests: The number of requests to the scorer.
        language_model: The tokens of a language model that gave scores.
        expected_gain: The gain that further calls are expected to bring, by their number, as a share of the best set's
            relevance.
    """

    budget: int
    cross_encoder_calls: int
    cached_scores: int
    rounds: int
    scorer_requests: int = Field(validation_alias=AliasChoices("scorer_requests", "trips"))
    reused_scores: int
    truncated_documents: int
    expected_gain: dict[str, float] = Field(default_factory=dict)
    language_model: LanguageModelUsage | None = None


class ExpectedRecall(Answer):
    """The share of the documents that reach `min_relevance` that the set contains.

    `low` and `high` hold for four sets in five.
    """

    expected: float
    low: float
    high: float
    probability: float | None = None


class ScorerInUse(Answer):
    """The scorer of a selection. `trust` is `weak`, `normal` or `strong`."""

    model: str | None
    trust: str


class NextDocument(Answer):
    """A document to read next, and the probability that it reaches `min_relevance`."""

    id: str
    probability: float
    text: str | None = None
    title: str | None = None
    metadata: dict[str, Any] | None = None


class ExplainedCall(Answer):
    """A scored document, why it was chosen, and its score."""

    id: str
    query: int | None = None
    retrieval_rank: int
    counterpart: str | None = Field(validation_alias=AliasChoices("counterpart", "rival"))
    gap: float | None
    value: float | None
    score: float


class ExplainedRound(Answer):
    """The calls of one request to the scorer."""

    round: int
    calls: list[ExplainedCall]
    ids: list[str] | None = None


class ExplainedPool(Answer):
    """All candidates, in retrieval order, with the belief before the first call and at the end."""

    ids: list[str]
    retrieval_scores: list[float]
    first_relevance: list[float | None]
    first_std: list[float | None]
    relevance: list[float | None]
    std: list[float | None]


class AnswerWarning(Answer):
    """A warning about a selection: its kind (`slug`), and a sentence."""

    slug: str
    message: str


class Selection(Answer):
    """The chosen set, most relevant first.

    Attributes:
        status: `complete`, `partial` or `retrieval_only`.
        answerable: The probability that some candidate, scored or not, scores at least `min_relevance`, or .5 without
            one.
    """

    id: str
    documents: list[SelectedDocument]
    pool_size: int
    k: int | None
    max_tokens: int | None
    min_relevance: float | None
    relevance: str = "scorer"
    scorer: ScorerInUse | None = None
    calibration: str | None = None
    policy: str = "default"
    method: str
    vectors: str
    usage: Usage
    status: str
    stop_reason: str
    expected_loss: float
    recall: ExpectedRecall | None = None
    answerable: float | None = None
    next: list[NextDocument] | None = None
    timings_ms: dict[str, float]
    warnings: list[AnswerWarning]
    rounds: list[ExplainedRound] | None = None
    pool: ExplainedPool | None = None


class Round(Answer):
    """The state of a streamed selection before a round.

    It has the work so far, and the ids of the set if the selection ended now.
    """

    rounds: int
    cross_encoder_calls: int
    cached_scores: int
    reused_scores: int
    budget: int
    expected_loss: float
    answerable: float | None = None
    expected_gain: dict[str, float] = Field(default_factory=dict)
    ids: list[str]
    language_model: LanguageModelUsage | None = None
    calls: list[ExplainedCall] | None = None


class StructureDescription(Answer):
    """The last training of an index of kind `ivf`."""

    count: int
    sequence: int
    clusters: int
    recall: dict[str, float]


class IndexDescription(Answer):
    """The description of an index."""

    name: str
    count: int
    dimension: int
    encoder: str | None
    created: str | None
    bytes: int | None
    kind: str
    metric: str = "cosine"
    structure: StructureDescription | None = None
    description: str | None = None
    distinct: str | None = None
    trust: str | None = None


class UnreadableIndex(Answer):
    """An index that exists and cannot be read; `type` is the problem that its routes return."""

    name: str
    type: str
    detail: str


class IndexList(Answer):
    indexes: list[IndexDescription]
    unreadable: list[UnreadableIndex] = []


class StoredDocument(Answer):
    """A document as an index holds it."""

    id: str
    text: str
    title: str | None
    metadata: dict[str, Any]


class DocumentPage(Answer):
    """Documents in the order of their ids.

    `next` is the `after` of the next page, None at the end.
    """

    documents: list[StoredDocument]
    next: str | None


class FieldStatistics(Answer):
    """A field of the metadata in a sample of documents."""

    documents: int
    values: int
    examples: list[Any]


class IndexStatistics(IndexDescription):
    """An index, and statistics of a sample of its documents."""

    sampled: int
    characters_mean: float
    characters_most: int
    fields: dict[str, FieldStatistics]


class UploadProblem(Answer):
    """A document of an upload, counted from 1, that was skipped, and why."""

    line: int
    reason: str


class UploadReport(Answer):
    """The outcome of an upload. All documents that are counted as added or updated are on disk."""

    added: int
    updated: int
    unchanged: int
    superseded: int
    skipped: int
    truncated: int
    problems: list[UploadProblem]
    unknown_fields: dict[str, int]


class DeleteReport(Answer):
    """The number of documents that were deleted."""

    deleted: int


class PartHealth(Answer):
    """Whether a part of the service answered its last probe, and since when."""

    status: str
    since: datetime
    detail: str | None = None


class Ready(Answer):
    """Whether the service can serve.

    Attributes:
        status: `ok`, or else the reason, with `detail` and `parts`.
        scorer: For callers that may read details.
    """

    status: str
    detail: str | None = None
    parts: dict[str, PartHealth] = {}
    scorer: ScorerInUse | None = None


class Problem(Answer):
    """RFC 9457 problem details."""

    type: str
    title: str
    status: int
    detail: str
    instance: str | None = None
    errors: list[dict[str, str]] | None = None
