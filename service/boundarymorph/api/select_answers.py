"""The wire format of answers of `POST /select`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, WithJsonSchema

from boundarymorph.api.schemas import AnswerWarning, LanguageModelUsage, RelevantSpan, ScorerInUse
from boundarymorph.retrieval.document import VectorSource
from boundarymorph.selection import StopReason
from boundarymorph.selector.result import Interruption, Status
from boundarymorph.settings.sections import RelevanceKind

ExpectedGain = Annotated[
    dict[str, float],
    Field(
        description="by the number of further calls, what they are expected to bring as a share of the best set's "
        "relevance"
    ),
]

StatusName = Annotated[str, WithJsonSchema({"type": "string", "enum": [*map(str, Status)]})]
ReasonName = Annotated[str, WithJsonSchema({"type": "string", "enum": [*map(str, (*StopReason, *Interruption))]})]


class PassageOfDocument(BaseModel):
    """The passage of a long document that is most relevant. start, end: its place in the text, in characters."""

    start: int = Field(description="of its first character in the document's text")
    end: int = Field(description="behind its last character")
    text: str = Field(description="what was scored, after the title")


class SelectedDocument(BaseModel):
    """A document of the set. Where relevance is the scorer's, `relevance` is the score of a scored document, and of
    others the posterior mean. Where it is people's, other evidence counts, too; with a calibration it is the
    probability that a person finds the document relevant."""

    id: str = Field(description="of the document in its index or pool")
    rank: int = Field(description="1 is the most relevant of the set")
    relevance: float = Field(description="in [0, 1]")
    std: float = Field(description="posterior standard deviation; 0 if scored")
    value: float | None = Field(
        None, description="with boosts: relevance times those of the document; it ranks the set"
    )
    source: Literal["cross_encoder", "posterior"] = Field(description="whether 'relevance' was scored or inferred")
    cross_encoder_score: float | None = Field(description="null if it was not scored")
    retrieval_rank: int = Field(description="1 is the first of the pool")
    retrieval_score: float = Field(description="of the first stage")
    query: int | None = Field(None, description="with 'queries': the place, from 0, of the one that it answers best")
    relevances: list[float | None] | None = Field(
        None, description="with 'queries': the relevance to each, null where a query's candidates lack the document"
    )
    group: Any = Field(None, description="with 'distinct' by a field: its value; null if the document has none")
    passage: PassageOfDocument | None = Field(
        None, description="of a document longer than the scorer's window: its most relevant passage"
    )
    text: str | None = Field(None, description="with 'return_documents'")
    title: str | None = Field(None, description="with 'return_documents'")
    metadata: dict[str, Any] | None = Field(None, description="with 'return_documents'")
    relevant_spans: list[RelevantSpan] | None = Field(
        None, description="the relevant parts of 'text', if the scorer names them and was asked in this request"
    )


class Usage(BaseModel):
    """What a selection used. Calls, cached and reused scores all count against the budget."""

    budget: int = Field(description="B in force")
    cross_encoder_calls: int = Field(description="pairs that the cross-encoder scored for this request")
    cached_scores: int = Field(
        description="chosen in a round, but answered by the cache or computed for another request at the same time"
    )
    rounds: int = Field(description="in which the scores came")
    trips: int = Field(description="calls of the scorer; a round without any had all its scores cached")
    reused_scores: int = Field(description="known from earlier requests; they replaced as many calls")
    truncated_documents: int = Field(description="scored documents that were cut to fit the cross-encoder")
    expected_gain: ExpectedGain = Field(default_factory=dict)
    language_model: LanguageModelUsage | None = Field(None, description="if a language model was asked for scores")


class ExplainedCall(BaseModel):
    """One call: the document that was scored, why it was chosen, and its score."""

    id: str = Field(description="of the document that was scored")
    query: int | None = Field(None, description="with 'queries': for which of them, counted from 0")
    retrieval_rank: int = Field(description="1 is the first of the pool")
    rival: str | None = Field(description="the other document of the contested pair; null if one was valued alone")
    gap: float | None = Field(description="standardized boundary gap to the rival")
    value: float | None = Field(description="without a rival, the value that was maximised; null if none was")
    score: float = Field(description="in [0, 1]")


class ExplainedRound(BaseModel):
    """The calls of one trip to the scorer."""

    round: int = Field(description="counted from 1")
    calls: list[ExplainedCall] = Field(description="in the order in which they were chosen")
    ids: list[str] | None = Field(None, description="the set before the round, with 'explain': \"pool\"")


class ExplainedPool(BaseModel):
    """All candidates, or the first 'explain_depth'. The lists have one entry each, in retrieval order."""

    ids: list[str] = Field(description="of the documents")
    retrieval_scores: list[float] = Field(description="of the first stage")
    first_relevance: list[float | None] = Field(description="before the first call; null if unknown or deleted")
    first_std: list[float | None] = Field(description="its posterior standard deviation; 0 if the score was known")
    relevance: list[float | None] = Field(description="the final one; null if unknown or deleted")
    std: list[float | None] = Field(description="its posterior standard deviation; 0 if scored")


class NextDocument(BaseModel):
    """A document to read next, if somebody else than the scorer answers."""

    id: str = Field(description="of the document in its index or pool")
    probability: float = Field(description="that it reaches 'min_relevance'")
    text: str | None = Field(None, description="with 'return_documents'")
    title: str | None = Field(None, description="with 'return_documents'")
    metadata: dict[str, Any] | None = Field(None, description="with 'return_documents'")


class ExpectedRecall(BaseModel):
    """What share of the documents that reach 'min_relevance' the set holds."""

    expected: float = Field(description="the best guess")
    low: float = Field(description="four sets in five hold more than this, and less than 'high'")
    high: float = Field(description="see 'low'")
    probability: float | None = Field(None, description="with 'objective': that it is at least 'find'")


class SelectResponse(BaseModel):
    """The chosen set, most relevant first, and the evidence for it."""

    id: str = Field(description="of this answer")
    documents: list[SelectedDocument] = Field(description="the set, most relevant first")
    pool_size: int = Field(description="N")
    k: int | None = Field(description="null if 'max_tokens' or 'objective' was given")
    max_tokens: int | None = Field(description="null if 'k' counts")
    min_relevance: float | None = Field(description="null if not given: then k documents are returned")
    relevance: RelevanceKind = Field(
        "scorer", description="what the relevance of documents is: what people are expected to find, or the score"
    )
    calibration: str | None = Field(
        None,
        description="when the calibration was made by which relevance is a probability, or 'shipped' for the map of "
        "the embedded scorer; null if none is in use",
    )
    scorer: ScorerInUse | None = Field(None, description="who was asked for scores")
    policy: str = Field("default", description="the policy in force, whose defaults the request has")
    method: str = Field(description="in force")
    vectors: VectorSource = Field(
        description="the source of the documents' vectors: given in the request, the service's encoder, the words "
        "(lexical), the index; none if only an order was needed"
    )
    usage: Usage = Field(description="what it cost")
    status: StatusName = Field(
        description="partial: fewer scores than asked for, as time or the scorer ran out; retrieval_only: no scores"
    )
    stop_reason: ReasonName = Field(description="why no more calls were made")
    expected_loss: float = Field(
        description="share of the best set's relevance that the set is expected to miss; 0 if every document fits. "
        "With 'min_relevance', if k is not the limit: what the set's expected F1 lacks of 1"
    )
    recall: ExpectedRecall | None = Field(None, description="with 'min_relevance'; null if nothing can reach it")
    answerable: float | None = Field(
        None,
        description="the probability that some candidate, scored or not, scores at least 'min_relevance', or 0.5 "
        "without one; null if nothing can be said. With 'queries': of the query for which it is largest",
    )
    next: list[NextDocument] | None = Field(
        None,
        description="with 'objective': the most likely of the documents without a score, for somebody who reads them "
        "and sends 'known_scores'; empty once enough is found",
    )
    timings_ms: dict[str, float] = Field(description="by stage, and in total")
    warnings: list[AnswerWarning] = Field(description="what a caller should know")
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
    expected_gain: ExpectedGain = Field(default_factory=dict)
    ids: list[str] = Field(description="the current set, most relevant first")
    answerable: float | None = Field(None, description="as in the answer, by the evidence so far")
    language_model: LanguageModelUsage | None = Field(
        None, description="so far, if a language model was asked for scores"
    )
    calls: list[ExplainedCall] | None = Field(None, description="of the last round, with 'explain'")
