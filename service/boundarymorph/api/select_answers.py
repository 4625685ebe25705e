"""Define the wire format of answers of `POST /select`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, WithJsonSchema

from boundarymorph.api.schemas import AnswerWarning, LanguageModelUsage, RelevantSpan, ScorerInUse, earlier_name
from boundarymorph.retrieval.document import VectorSource
from boundarymorph.selection import StopReason
from boundarymorph.selector.result import Interruption, Status
from boundarymorph.settings.sections import RelevanceKind

ExpectedGain = Annotated[
    dict[str, float],
    Field(
        description="The relevance that further calls are expected to bring, by the number of calls, as a share of "
        "the best set's."
    ),
]

StatusName = Annotated[str, WithJsonSchema({"type": "string", "enum": [*map(str, Status)]})]
ReasonName = Annotated[str, WithJsonSchema({"type": "string", "enum": [*map(str, (*StopReason, *Interruption))]})]


class PassageOfDocument(BaseModel):
    """The most relevant passage of a long document."""

    start: int = Field(description="The position of its first character in the document's text.")
    end: int = Field(description="The position after its last character.")
    text: str = Field(description="The text that was scored, after the title.")


class SelectedDocument(BaseModel):
    """A document of the set.

    Where relevance is 'scorer', `relevance` is the score of a scored document, and the posterior mean of another one.
    Where it is 'human', other evidence counts, too. With a calibration, it is the probability that a person finds the
    document relevant.
    """

    id: str = Field(description="The document's id in its index or pool.")
    rank: int = Field(description="The rank in the set. 1 is the most relevant document.")
    relevance: float = Field(description="The relevance, in [0, 1].")
    std: float = Field(description="The posterior standard deviation, which is 0 if the document is scored.")
    value: float | None = Field(
        None, description="The relevance times the document's boosts, which ranks the set, with boosts."
    )
    source: Literal["cross_encoder", "posterior"] = Field(description="Whether 'relevance' was scored or inferred.")
    cross_encoder_score: float | None = Field(
        description="The cross-encoder's score, or null if the document was not scored."
    )
    retrieval_rank: int = Field(description="The rank in the pool. 1 is the first document.")
    retrieval_score: float = Field(description="The score of the first stage.")
    query: int | None = Field(
        None, description="The position, from 0, of the query that the document answers best, with 'queries'."
    )
    relevances: list[float | None] | None = Field(
        None,
        description="The relevance to each query, or null if the document is not among its candidates, with 'queries'.",
    )
    group: Any = Field(None, description="The value of the field of 'distinct', or null if it is missing.")
    passage: PassageOfDocument | None = Field(
        None, description="The most relevant passage of a document that is longer than the scorer's window."
    )
    text: str | None = Field(None, description="The document's text, with 'return_documents'.")
    title: str | None = Field(None, description="The document's title, with 'return_documents'.")
    metadata: dict[str, Any] | None = Field(None, description="The document's metadata, with 'return_documents'.")
    relevant_spans: list[RelevantSpan] | None = Field(
        None, description="The relevant parts of 'text', if the scorer names them and was asked in this request."
    )


class Usage(BaseModel):
    """The cost of a selection. Calls, cached, and reused scores count against the budget."""

    budget: int = Field(description="The budget B in force.")
    cross_encoder_calls: int = Field(description="Pairs that the cross-encoder scored for this request.")
    cached_scores: int = Field(
        description="Pairs whose score came from the cache, or from another request at the same time."
    )
    rounds: int = Field(description="The number of rounds.")
    scorer_requests: int = Field(
        description="The number of requests to the scorer. A round whose scores are all cached needs no request."
    )
    reused_scores: int = Field(description="Scores known from earlier requests, which replaced as many calls.")
    truncated_documents: int = Field(description="Scored documents that were cut to fit the cross-encoder.")
    expected_gain: ExpectedGain = Field(default_factory=dict)
    language_model: LanguageModelUsage | None = Field(None, description="The tokens of a language model that scores.")

    @earlier_name("scorer_requests")
    def trips(self) -> int:
        return self.scorer_requests


class ExplainedCall(BaseModel):
    """One call: the scored document, the reason why it was chosen, and its score."""

    id: str = Field(description="The id of the scored document.")
    query: int | None = Field(None, description="The position of the query, counted from 0, with 'queries'.")
    retrieval_rank: int = Field(description="The rank in the pool. 1 is the first document.")
    counterpart: str | None = Field(
        description="The other document of the contested pair, or null if there is no pair."
    )
    gap: float | None = Field(description="The standardized boundary gap to the counterpart.")
    value: float | None = Field(
        description="The maximised value if there is no counterpart, or null if no value was maximised."
    )
    score: float = Field(description="The score, in [0, 1].")

    @earlier_name("counterpart")
    def rival(self) -> str | None:
        return self.counterpart


class ExplainedRound(BaseModel):
    """The calls of one round."""

    round: int = Field(description="The number of the round, counted from 1.")
    calls: list[ExplainedCall] = Field(description="The calls in the order in which they were chosen.")
    ids: list[str] | None = Field(None, description='The set before the round, with "explain": "pool".')


class ExplainedPool(BaseModel):
    """The first 'explain_depth' candidates: each list has an entry for each, by rank."""

    ids: list[str] = Field(description="The ids of the documents.")
    retrieval_scores: list[float] = Field(description="The scores of the first stage.")
    first_relevance: list[float | None] = Field(
        description="The relevance before the first call, or null if it is unknown or the document is deleted."
    )
    first_std: list[float | None] = Field(
        description="Its posterior standard deviation before the first call, which is 0 if the score was known."
    )
    relevance: list[float | None] = Field(
        description="The final relevance, or null if it is unknown or the document is deleted."
    )
    std: list[float | None] = Field(
        description="Its posterior standard deviation, which is 0 if the document is scored."
    )


class NextDocument(BaseModel):
    """A document to read next, for callers that judge documents themselves."""

    id: str = Field(description="The document's id in its index or pool.")
    probability: float = Field(description="The probability that it reaches 'min_relevance'.")
    text: str | None = Field(None, description="The document's text, with 'return_documents'.")
    title: str | None = Field(None, description="The document's title, with 'return_documents'.")
    metadata: dict[str, Any] | None = Field(None, description="The document's metadata, with 'return_documents'.")


class ExpectedRecall(BaseModel):
    """The share that the set holds of all documents that reach 'min_relevance'."""

    expected: float = Field(description="The expected share.")
    low: float = Field(description="The lower end of the interval that holds the share in four cases of five.")
    high: float = Field(description="The upper end of the interval.")
    probability: float | None = Field(
        None, description="The probability that the share is at least 'find', with 'objective'."
    )


class SelectResponse(BaseModel):
    """The chosen set, most relevant first, and the evidence for it."""

    id: str = Field(description="The id of this answer.")
    documents: list[SelectedDocument] = Field(description="The set, most relevant first.")
    pool_size: int = Field(description="The number of candidates N.")
    k: int | None = Field(description="The k in force, or null with 'max_tokens' or 'objective'.")
    max_tokens: int | None = Field(description="The limit in tokens, or null if 'k' counts.")
    min_relevance: float | None = Field(
        description="The least relevance in force, or null if there is no least relevance."
    )
    relevance: RelevanceKind = Field(
        "scorer", description="The kind of relevance: the judgement expected of people, or the score."
    )
    calibration: str | None = Field(
        None,
        description="The time when the calibration in use was made, or 'shipped' for the map of the embedded scorer. "
        "It is null if relevance is not calibrated.",
    )
    scorer: ScorerInUse | None = Field(None, description="The scorer in use.")
    policy: str = Field("default", description="The policy in force, whose defaults the request has.")
    method: str = Field(description="The method in force.")
    vectors: VectorSource = Field(
        description="The source of the documents' vectors: given in the request, the service's encoder, the words "
        "(lexical), or the index. The source is 'none' if only an order was needed."
    )
    usage: Usage = Field(description="The cost.")
    status: StatusName = Field(
        description="The completeness of the scores. With partial, there are fewer than asked for, as time or the "
        "scorer failed. With retrieval_only, there are no scores."
    )
    stop_reason: ReasonName = Field(description="The reason why no more calls were made.")
    expected_loss: float = Field(
        description="The share of the best set's relevance that the set is expected to miss. It is 0 if every "
        "document fits. With 'min_relevance', if k is not the limit, it is 1 minus the set's expected F1."
    )
    recall: ExpectedRecall | None = Field(
        None,
        description="The expected recall of the set, with 'min_relevance'. It is null if no document can reach it.",
    )
    answerable: float | None = Field(
        None,
        description="The probability that some candidate, scored or not, scores at least 'min_relevance', or 0.5 "
        "without it. It is null if nothing is known. With 'queries', it is the largest probability of a query.",
    )
    next: list[NextDocument] | None = Field(
        None,
        description="The documents without a score that are most likely to be relevant, with 'objective', for callers "
        "that read them and send 'known_scores'. It is empty once enough is found.",
    )
    timings_ms: dict[str, float] = Field(description="Milliseconds by stage, and in total.")
    warnings: list[AnswerWarning] = Field(description="Warnings for the caller.")
    rounds: list[ExplainedRound] | None = Field(None, description="All rounds, with 'explain'.")
    pool: ExplainedPool | None = Field(None, description='The candidates, with "explain": "pool".')


class RoundEvent(BaseModel):
    """The state of a streamed selection before a round: its cost so far, and the current set."""

    rounds: int = Field(description="Rounds made so far.")
    cross_encoder_calls: int = Field(description="Calls made so far.")
    cached_scores: int = Field(description="Pairs whose score came from the cache, or from another request.")
    reused_scores: int = Field(description="Scores known from earlier requests, which replace as many calls.")
    budget: int = Field(description="The budget B in force.")
    expected_loss: float = Field(description="The share of the best set's relevance that this set is expected to miss.")
    expected_gain: ExpectedGain = Field(default_factory=dict)
    ids: list[str] = Field(description="The current set, most relevant first.")
    answerable: float | None = Field(None, description="As in the answer, given the scores so far.")
    language_model: LanguageModelUsage | None = Field(
        None, description="The tokens so far of a language model that scores."
    )
    calls: list[ExplainedCall] | None = Field(None, description="The calls of the last round, with 'explain'.")
