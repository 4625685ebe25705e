"""Define the wire format of requests to `POST /select`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    AliasChoices,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)
from pydantic.config import JsonDict, JsonValue

from boundarymorph.api.boosts import BoostRule, Weight
from boundarymorph.api.schemas import Array, DistinctBy, Message, QueryText
from boundarymorph.reading import Id
from boundarymorph.retrieval.boosts import MAX_RULES
from boundarymorph.scoring.scorer import TOLERANCE
from boundarymorph.selection.methods import Method
from boundarymorph.settings.sections import Calls, RelevanceKind


class VectorBlock(Message):
    """Vectors as one base64 string of little-endian numbers in C order."""

    data: str = Field(description="The bytes in base64.")
    shape: Array[Annotated[int, Field(ge=1)]] = Field(
        min_length=1, max_length=2, description="The shape, [N, d] or [d]."
    )
    dtype: Literal["float16", "float32"] = Field("float16", description="The type of the numbers in 'data'.")


def _form(vector: object) -> Literal["numbers", "block"]:
    return "block" if isinstance(vector, dict | VectorBlock) else "numbers"


Vector = Annotated[
    Annotated[Array[float], Tag("numbers")] | Annotated[VectorBlock, Tag("block")],
    Discriminator(_form),
]


def _number_or_auto(least: int, what: str, *, share: bool = False) -> BeforeValidator:
    def check(value: object) -> object:
        if value in ("auto", None) or (isinstance(value, int) and not isinstance(value, bool) and value >= least):
            return value
        if share and isinstance(value, float) and 0 < value < 1:
            return value
        shares = ", a share of the documents above 0 and below 1" if share else ""
        raise ValueError(f'give a whole number of {what}, {least} or more{shares}, or "auto"')

    return BeforeValidator(check)


Budget = Annotated[Annotated[int, Field(ge=0)] | Literal["auto"], _number_or_auto(0, "calls")]
ListBudget = Annotated[Calls, _number_or_auto(0, "calls", share=True)]
Rounds = Annotated[Annotated[int, Field(ge=1)] | Literal["auto"], _number_or_auto(1, "rounds")]


def _rounded(value: Any) -> Any:
    """Return a value, clipped to [0, 1] if rounding moved it out, as with a float32 cosine."""
    near = isinstance(value, float) and -TOLERANCE <= value <= 1.0 + TOLERANCE
    return min(max(value, 0.0), 1.0) if near else value


KnownScore = Annotated[float, Field(ge=0, le=1), BeforeValidator(_rounded)]


class PoolDocument(Message):
    """One candidate. The default id is its position; an integer id becomes a string."""

    id: Id | None = Field(None, description="The id, unique in the pool. By default, it is the position, from 0.")
    text: str = Field(description="The text that the models read, after the title.")
    title: str | None = Field(None, description="The title, which the models read before the text.")
    embedding: Array[float] | None = Field(
        None, description="The vector. If there are no vectors, the service makes them as 'vectors' says."
    )
    score: float | None = Field(
        None, description="The retrieval score. The pool is ranked by it if all documents have one."
    )
    bm25: float | None = Field(
        None, ge=0, description="The BM25 score for the query, if you have it. It improves the set."
    )
    cross_encoder_score: KnownScore | None = Field(
        None, description="The score, if you know it already, as in 'known_scores'. It costs no call."
    )
    tokens: int | None = Field(
        None,
        ge=1,
        le=1_000_000_000,
        description="The length for 'max_tokens'. By default, it is estimated from the text.",
    )
    weight: Weight | None = Field(
        None,
        description="A boost: the value is relevance times this weight and the result of 'boost'. 1 changes nothing.",
    )
    metadata: dict[str, Any] = Field(
        default_factory=dict, description="The metadata, which is returned with 'return_documents'."
    )


def _as_document(value: object) -> object:
    """Convert a text to a document, and read `_id` as in BEIR."""
    if isinstance(value, dict) and "_id" in value:
        value = {"id": value["_id"]} | {name: found for name, found in value.items() if name != "_id"}
    return {"text": value} if isinstance(value, str) else value


Candidate = Annotated[PoolDocument, BeforeValidator(_as_document, json_schema_input_type=PoolDocument | str)]


class PoolBody(Message):
    """The candidates of one request."""

    documents: Array[Candidate] = Field(
        min_length=1,
        description="Documents, or just texts. They are ranked by their scores or, without scores, as 'ranked' says.",
    )
    embeddings: VectorBlock | None = Field(None, description="The vectors of all documents, in their order.")
    features: dict[Annotated[str, Field(min_length=1, max_length=64)], Array[float | None]] = Field(
        default_factory=dict,
        fail_fast=True,
        description="Your own signals by name, with a number for each document, or null. The method 'trend' learns "
        "which signals the scores follow.",
    )


def _documents_alone(value: object) -> object:
    return {"documents": value} if isinstance(value, list) else value


Pool = Annotated[PoolBody, BeforeValidator(_documents_alone, json_schema_input_type=PoolBody | Sequence[Candidate])]


class AskedQuery(Message):
    """One of several queries of a request."""

    query: QueryText = Field(description="One information need, in plain words.")
    weight: float = Field(1, gt=0, le=1, description="The factor of the relevance to this query.")


class Objective(Message):
    """Find the share `find` of all relevant documents with the probability `in`, by few calls."""

    find: float = Field(
        gt=0, le=1, description="The share to find of all documents that reach 'min_relevance', by default 0.5."
    )
    within: float = Field(0.9, gt=0, lt=1, alias="in", description="The probability of that at which to stop.")
    next: int = Field(10, ge=1, description="The most documents to read next that the answer names.")


def _as_query(value: object) -> object:
    return {"query": value} if isinstance(value, str) else value


Queries = Array[Annotated[AskedQuery, BeforeValidator(_as_query, json_schema_input_type=AskedQuery | str)]]
# A request has exactly one field of each pair. The types have JSON's names.
EITHER: tuple[dict[str, JsonValue], ...] = (
    {"query": "string", "queries": "array"},
    {"index": "string", "pool": ["object", "array"]},
)


class Rule(NamedTuple):
    """Fields that do not go together.

    Attributes:
        field: A field of the request.
        excluded: The fields that a request with `field` may not have, or may not have with this value.
        message: The error for a request that breaks the rule; {} stands for the excluded field.
    """

    field: str
    excluded: Mapping[str, str | None]
    message: str


FOR_ONE_QUERY = (
    *("query_embedding", "max_tokens", "min_relevance", "distinct", "diversity", "objective", "known_scores"),
    "passages",
)
RULES = (
    Rule(
        "queries",
        dict.fromkeys(FOR_ONE_QUERY) | {"budget": "auto", "explain": "pool"},
        "{} goes with 'query', not with 'queries'; leave it out, or ask each query alone",
    ),
    Rule("pool", {"depth": None}, "{} goes with 'index'; a pool is used whole"),
    Rule("pool", {"filter": None, "hybrid": None}, "{} goes with 'index'; a pool is used as it is"),
    Rule(
        "index", {"vectors": None, "ranked": None}, "{} goes with 'pool'; an index has vectors and an order of its own"
    ),
    Rule("index", {"passages": None}, "{} goes with 'pool'; an index has passages of its own, made by index build"),
    Rule("max_tokens", {"k": None}, "give 'k' or 'max_tokens', not both"),
    Rule("max_tokens", {"diversity": None}, "{} goes with 'k'; leave out 'max_tokens'"),
    Rule(
        "objective",
        dict.fromkeys(("k", "max_tokens", "distinct", "diversity", "calibration", "passages")),
        "'objective' returns all that is found; leave out {}",
    ),
)


def _with_rules(schema: JsonDict) -> None:
    """Add EITHER and RULES to the schema of a request."""
    null: JsonDict = {"type": "null"}
    given: JsonDict = {"not": {"enum": [None, False, 0, [], {}]}}
    schema["oneOf"] = [
        {
            "required": [*names],
            "properties": {
                each: {"type": kind} if each in names else null for pair in EITHER for each, kind in pair.items()
            },
        }
        for names in product(*EITHER)
    ]
    broken: list[JsonValue] = [
        {
            "required": [rule.field],
            "properties": {rule.field: {"not": null}},
            "anyOf": [
                {"required": [name], "properties": {name: {"const": value} if value else given}}
                for name, value in rule.excluded.items()
            ],
        }
        for rule in RULES
    ]
    schema["not"] = {"anyOf": broken}


class SelectRequest(Message):
    """Choose the best k documents for a query with at most B cross-encoder calls."""

    model_config = ConfigDict(json_schema_extra=_with_rules)

    query: QueryText | None = Field(None, description="The information need, in plain words.")
    queries: Queries | None = Field(
        None,
        min_length=1,
        description="Several queries with one budget, in place of 'query': the set has the documents that answer any "
        "of them best. Strings, or objects with a weight.",
    )
    index: str | None = Field(None, description="The index to take the candidates from.")
    pool: Pool | None = Field(
        None, description="The candidates, in place of an index: an object, or just a list of documents."
    )
    budget: Budget | None = Field(
        None,
        validation_alias=AliasChoices("budget", "B"),
        description='B: the most cross-encoder calls. "auto" stops when more calls are expected to gain little.',
    )
    k: int | None = Field(None, ge=1, description="The number of documents to return.")
    max_tokens: int | None = Field(
        None,
        ge=1,
        le=1_000_000_000,
        description="The most tokens of the returned documents, instead of k. Without 'min_relevance', documents with "
        "less than 1 % of the best one's expected relevance (the setting 'negligible') are left out.",
    )
    min_relevance: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Return only documents that are more likely than not to reach this relevance: at most k documents "
        "or max_tokens, and perhaps none. Calls go to the documents for which that is in doubt.",
    )
    objective: Objective | None = Field(
        None,
        description="Find nearly all relevant documents, and stop when that is likely enough. The most likely "
        "documents are scored first, and the documents that reach 'min_relevance' are returned. 'budget' is an upper "
        "bound, \"auto\" by default. With a 'budget' of 0 you judge documents yourself, by 'known_scores'.",
    )
    known_scores: dict[Id, KnownScore] | None = Field(
        None, description="Scores that you know already, by id. They cost no call. 1 and 0 are a yes and a no."
    )
    relevance: RelevanceKind | None = Field(
        None,
        description="The kind of relevance: 'human', the default, is the judgement expected of people, by the scorer, "
        "the vectors, and the words together. 'scorer' is the score alone, known or expected, and the method "
        "'boundarymorph' always uses it.",
    )
    calibration: bool | None = Field(
        None,
        description="Whether relevance is converted to the probability that a person agrees. By default it is, by the "
        "calibration of the index or, for pools, of the service, or by the map of the embedded scorer.",
    )
    instruction: str | None = Field(
        None,
        min_length=1,
        description="An explanation of relevance for a scorer that takes an instruction. Other scorers refuse it.",
    )
    distinct: DistinctBy = Field(
        None,
        description="With true, no two documents have the same text. With the name of a field of the metadata, each "
        "of its values has one document. An object sets the number of documents.",
    )
    diversity: float = Field(
        0, ge=0, le=1, description="The weight of diversity against relevance. 0 chooses by relevance alone."
    )
    boost: Array[BoostRule] | None = Field(
        None,
        min_length=1,
        max_length=MAX_RULES,
        description="Rules that multiply relevance. The product, the value, decides about the set, its order, and the "
        "calls, but 'min_relevance' applies to relevance. Each factor, and their product, stay between 0.001 and "
        "1,000.",
    )
    method: Method | None = Field(
        None,
        description="The method. 'trend' learns how the scores relate to the ranking. 'boundarymorph' is the paper's "
        "method, which makes the paper's calls one by one only with as many rounds as calls and 'reuse' false.",
    )
    depth: int | None = Field(
        None,
        ge=1,
        validation_alias=AliasChoices("depth", "N"),
        description="N: the number of candidates from the index.",
    )
    exclude_ids: Array[Id] | None = Field(
        None,
        description="The ids of documents that are neither returned nor scored, such as documents that were seen "
        "before. Their known scores still help to find others.",
    )
    filter: dict[str, Any] | None = Field(
        None, description="A filter on the metadata of the index's documents. docs/api.md describes the language."
    )
    hybrid: bool = Field(False, description="Whether to rank candidates by vectors and words together.")
    spend: Literal["order", "set"] = Field(
        "order",
        description="The purpose of calls that cannot change the set, because every document fits. 'order' spends "
        "them on the order of the answer. 'set', the paper's rule, makes no such call.",
    )
    rounds: Rounds | None = Field(
        None,
        description="The most requests to the scorer, of equal size. A near deadline may lead to more, smaller ones. "
        "With up to 3, the first request has the head of the list and the best by words. With as many as calls, each "
        "call is chosen with all earlier scores known. 'auto', the default, is 3 for a fixed budget. A selection "
        "that stops by itself, or that goes by the score alone, has more rounds, which grow: 5 for 10 calls and 11 "
        "for 50. If the budget covers the pool, there is one round.",
    )
    query_embedding: Vector | None = Field(None, description="The query's vector, in place of the encoder's.")
    ranked: bool = Field(
        False,
        description="Whether the pool is in retrieval order, best first. Otherwise, a pool without scores is ranked by "
        "BM25 or, if it has embeddings, by the inner products with the query.",
    )
    vectors: Literal["lexical", "encoder"] | None = Field(
        None,
        description="The way to make the vectors of a pool without embeddings: from its words, or with the encoder.",
    )
    passages: bool | None = Field(
        None,
        description="Whether a document that is longer than the scorer's window becomes passages, of which the best "
        "counts, instead of being cut. The default is true for a pool without embeddings. Calls are spent on "
        "passages.",
    )
    return_documents: bool | None = Field(
        None,
        description="Whether documents have text, title, and metadata. By default documents of an index do, unless "
        "they take more bytes than an answer may have, and documents of a pool do not. With true, too large an answer "
        "is refused.",
    )
    explain: bool | Literal["pool"] = Field(
        False,
        description="Whether to return every round: each scored document, its counterpart, and its score. 'pool' adds "
        "the set before each round, and the belief about each candidate before the first call and at the end.",
    )
    explain_depth: int | None = Field(
        None, ge=1, description='The number of leading candidates to explain, with "explain": "pool".'
    )
    deadline_ms: float | None = Field(
        None,
        gt=0,
        le=86_400_000,
        description="The deadline, in milliseconds from the arrival. The answer is the set as it is then.",
    )
    reuse: bool = Field(
        True,
        description="Whether scores known from earlier requests replace calls. If false, documents are chosen as "
        "if this were the first request.",
    )
    on_failure: Literal["degrade", "error"] | None = Field(
        None,
        description="The answer at the deadline, or if scorer or retriever fail. By default it is the set as known so "
        "far, or 429 if the service is too busy to score anything. With 'degrade', it is then the first stage's "
        "order. With 'error', it is a problem instead of any incomplete set.",
    )

    @model_validator(mode="after")
    def _fields_go_together(self) -> Self:
        for one, other in EITHER:
            if (getattr(self, one) is None) == (getattr(self, other) is None):
                raise ValueError(f"give exactly one of '{one}' and '{other}'")
        for rule in RULES:
            for name, value in rule.excluded.items() if getattr(self, rule.field) else ():
                given = getattr(self, name)
                if given == value if value else given:
                    raise ValueError(rule.message.format(f"'{name}': \"{value}\"" if value else f"'{name}'"))
        return self

    @model_validator(mode="after")
    def _values_go_together(self) -> Self:
        if self.queries is not None:
            texts = [one.query for one in self.queries]
            if len(set(texts)) < len(texts):
                raise ValueError("two of the 'queries' are the same; give each once, with its weight")
            documents = [] if self.pool is None else self.pool.documents
            if any(one.bm25 is not None or one.cross_encoder_score is not None for one in documents):
                raise ValueError("'bm25' and 'cross_encoder_score' are about one query; leave them out with 'queries'")
        if self.vectors == "lexical" and self._embedded:
            raise ValueError("'vectors' is \"lexical\": leave out the embeddings, or leave out 'vectors'")
        if self.passages and self._embedded:
            raise ValueError("'passages' has vectors of its own: leave out the embeddings, or leave out 'passages'")
        if self.passages and self.distinct is not None and self.distinct.k_counts == "groups":
            raise ValueError("'distinct': \"k_counts\" is \"groups\", which does not go with 'passages'; leave one out")
        if self.explain_depth is not None and self.explain != "pool":
            raise ValueError("'explain_depth' goes with 'explain': \"pool\"; set that, or leave it out")
        if self.max_tokens is not None and self.distinct is not None and self.distinct.k_counts == "groups":
            raise ValueError("'distinct': \"k_counts\" is \"groups\", which goes with 'k'; leave out 'max_tokens'")
        return self

    @property
    def calibrated(self) -> bool:
        """Whether a calibration may apply; an objective compares scores directly."""
        return self.calibration is not False and self.objective is None

    @property
    def makes_passages(self) -> bool:
        """Whether long documents become passages."""
        if self.passages is not None:
            return self.passages
        grouped = self.distinct is not None and self.distinct.k_counts == "groups"
        return not (self._embedded or grouped or self.queries or self.objective)

    @property
    def _embedded(self) -> bool:
        """Whether the request has vectors of documents or of the query."""
        pool = self.pool
        documents = pool is not None and (pool.embeddings is not None or any(d.embedding for d in pool.documents))
        return documents or self.query_embedding is not None
