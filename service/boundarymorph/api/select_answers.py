"""Define the wire format of answers of `POST /select`."""

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
        description="the relevance that further calls are expected to bring, as a share of the best set's, by the "
        "number of calls"
    ),
]

StatusName = Annotated[str, WithJsonSchema({"type": "string", "enum": [*map(str, Status)]})]
ReasonName = Annotated[str, WithJsonSchema({"type": "string", "enum": [*map(str, (*StopReason, *Interruption))]})]


class PassageOfDocument(BaseModel):
    """The most relevant passage of a long document."""

    start: int = Field(description="the position of its first character in the document's text")
    end: int = Field(description="the position after its last character")
    text: str = Field(description="the text that was scored, after the title")


class SelectedDocument(BaseModel):
    """A document of the set.

    Where relevance is 'scorer', `relevance` is the score of a scored document, and the posterior mean of another one.
    Where it is 'human', other evidence counts, too. With a calibration, it is the probability that a person finds the
    document relevant.
    """

    id: str = Field(description="the document's id in its index or pool")
    rank: int = Field(description="the rank in the set; 1 is the most relevant document")
    relevance: float = Field(description="the relevance, in [0, 1]")
    std: float = Field(description="posterior standard deviation; 0 if scored")
    value: float | None = Field(
        None, description="with boosts: the relevance times the document's boosts; it ranks the set"
    )
    source: Literal["cross_encoder", "posterior"] = Field(description="whether 'relevance' was scored or inferred")
    cross_encoder_score: float | None = Field(description="the cross-encoder's score; null if it was not scored")
    retrieval_rank: int = Field(description="the rank in the pool; 1 is the first document")
    retrieval_score: float = Field(description="the score of the first stage")
    query: int | None = Field(None, description="with 'queries': the position, from 0, of the query it answers best")
    relevances: list[float | None] | None = Field(
        None,
        description="with 'queries': the relevance to each query; null if the document is not among its candidates",
    )
    group: Any = Field(None, description="with 'distinct' by a field: the field's value; null if it is missing")
    passage: PassageOfDocument | None = Field(
        None, description="the most relevant passage of a document that is longer than the scorer's window"
    )
    text: str | None = Field(None, description="the document's text, with 'return_documents'")
    title: str | None = Field(None, description="the document's title, with 'return_documents'")
    metadata: dict[str, Any] | None = Field(None, description="the document's metadata, with 'return_documents'")
    relevant_spans: list[RelevantSpan] | None = Field(
        None, description="the relevant parts of 'text', if the scorer names them and was asked in this request"
    )


class Usage(BaseModel):
    """The cost of a selection. Calls, cached, and reused scores count against the budget."""

    budget: int = Field(description="the budget B in force")
    cross_encoder_calls: int = Field(description="pairs that the cross-encoder scored for this request")
    cached_scores: int = Field(
        description="pairs whose score came from the cache, or from another request at the same time"
    )
    rounds: int = Field(description="rounds in which the scores came")
    trips: int = Field(description="requests to the scorer; a round whose scores are all cached needs none")
    reused_scores: int = Field(description="scores known from earlier requests, which replaced as many calls")
    truncated_documents: int = Field(description="scored documents that were cut to fit the cross-encoder")
    expected_gain: ExpectedGain = Field(default_factory=dict)
    language_model: LanguageModelUsage | None = Field(None, description="the tokens of a language model that scores")


class ExplainedCall(BaseModel):
    """One call: the scored document, the reason why it was chosen, and its score."""

    id: str = Field(description="the id of the scored document")
    query: int | None = Field(None, description="with 'queries': the position of the query, counted from 0")
    retrieval_rank: int = Field(description="the rank in the pool; 1 is the first document")
    rival: str | None = Field(description="the other document of the contested pair; null if there is no pair")
    gap: float | None = Field(description="standardized boundary gap to the rival")
    value: float | None = Field(description="the maximised value if there is no rival; null if no value was maximised")
    score: float = Field(description="the score, in [0, 1]")


class ExplainedRound(BaseModel):
    """The calls of one round."""

    round: int = Field(description="the number of the round, counted from 1")
    calls: list[ExplainedCall] = Field(description="the calls in the order in which they were chosen")
    ids: list[str] | None = Field(None, description="the set before the round, with 'explain': \"pool\"")


class ExplainedPool(BaseModel):
    """The first 'explain_depth' candidates: each list has an entry for each, by rank."""

    ids: list[str] = Field(description="the ids of the documents")
    retrieval_scores: list[float] = Field(description="the scores of the first stage")
    first_relevance: list[float | None] = Field(
        description="the relevance before the first call; null if unknown or deleted"
    )
    first_std: list[float | None] = Field(
        description="its posterior standard deviation before the first call; 0 if the score was known"
    )
    relevance: list[float | None] = Field(description="the final relevance; null if unknown or deleted")
    std: list[float | None] = Field(description="its posterior standard deviation; 0 if scored")


class NextDocument(BaseModel):
    """A document to read next, for callers that judge documents themselves."""

    id: str = Field(description="the document's id in its index or pool")
    probability: float = Field(description="the probability that it reaches 'min_relevance'")
    text: str | None = Field(None, description="the document's text, with 'return_documents'")
    title: str | None = Field(None, description="the document's title, with 'return_documents'")
    metadata: dict[str, Any] | None = Field(None, description="the document's metadata, with 'return_documents'")


class ExpectedRecall(BaseModel):
    """The share that the set holds of all documents that reach 'min_relevance'."""

    expected: float = Field(description="the expected share")
    low: float = Field(description="lower end of the interval that holds the share in four cases of five")
    high: float = Field(description="upper end of the interval")
    probability: float | None = Field(
        None, description="with 'objective': the probability that the share is at least 'find'"
    )


class SelectResponse(BaseModel):
    """The chosen set, most relevant first, and the evidence for it."""

    id: str = Field(description="the id of this answer")
    documents: list[SelectedDocument] = Field(description="the set, most relevant first")
    pool_size: int = Field(description="the number of candidates N")
    k: int | None = Field(description="the k in force; null if 'max_tokens' or 'objective' was given")
    max_tokens: int | None = Field(description="the limit in tokens; null if 'k' counts")
    min_relevance: float | None = Field(description="the least relevance; null, if not given, returns k documents")
    relevance: RelevanceKind = Field(
        "scorer", description="the kind of relevance: the judgement expected of people, or the score"
    )
    calibration: str | None = Field(
        None,
        description="the time when the calibration in use was made, or 'shipped' for the map of the embedded scorer; "
        "null if relevance is not calibrated",
    )
    scorer: ScorerInUse | None = Field(None, description="the scorer in use")
    policy: str = Field("default", description="the policy in force, whose defaults the request has")
    method: str = Field(description="the method in force")
    vectors: VectorSource = Field(
        description="the source of the documents' vectors: given in the request, the service's encoder, the words "
        "(lexical), the index; none if only an order was needed"
    )
    usage: Usage = Field(description="the cost")
    status: StatusName = Field(
        description="partial: fewer scores than asked for, as time or the scorer ran out; retrieval_only: no scores"
    )
    stop_reason: ReasonName = Field(description="the reason why no more calls were made")
    expected_loss: float = Field(
        description="share of the best set's relevance that the set is expected to miss; 0 if every document fits. "
        "With 'min_relevance', if k is not the limit: 1 minus the set's expected F1"
    )
    recall: ExpectedRecall | None = Field(
        None, description="with 'min_relevance': the expected recall of the set; null if no document can reach it"
    )
    answerable: float | None = Field(
        None,
        description="the probability that some candidate, scored or not, scores at least 'min_relevance', or 0.5 "
        "without one; null if nothing is known. With 'queries': the largest probability of a query",
    )
    next: list[NextDocument] | None = Field(
        None,
        description="with 'objective': the documents without a score that are most likely to be relevant, for callers "
        "that read them and send 'known_scores'; empty once enough is found",
    )
    timings_ms: dict[str, float] = Field(description="milliseconds by stage, and in total")
    warnings: list[AnswerWarning] = Field(description="warnings for the caller")
    rounds: list[ExplainedRound] | None = Field(None, description="all rounds, with 'explain'")
    pool: ExplainedPool | None = Field(None, description="the candidates, with 'explain': \"pool\"")


class RoundEvent(BaseModel):
    """The state of a streamed selection before a round: its cost so far, and the current set."""

    rounds: int = Field(description="rounds made so far")
    cross_encoder_calls: int = Field(description="calls made so far")
    cached_scores: int = Field(description="pairs whose score came from the cache, or from another request")
    reused_scores: int = Field(description="scores known from earlier requests, which replace as many calls")
    budget: int = Field(description="the budget B in force")
    expected_loss: float = Field(description="share of the best set's relevance that this set is expected to miss")
    expected_gain: ExpectedGain = Field(default_factory=dict)
    ids: list[str] = Field(description="the current set, most relevant first")
    answerable: float | None = Field(None, description="as in the answer, given the scores so far")
    language_model: LanguageModelUsage | None = Field(
        None, description="the tokens so far of a language model that scores"
    )
    calls: list[ExplainedCall] | None = Field(None, description="the calls of the last round, with 'explain'")
