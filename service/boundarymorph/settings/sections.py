"""Define the sections of the settings, one for each part of the service."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, Self

import orjson
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    model_validator,
)
from pydantic_settings import NoDecode

from boundarymorph.calibration.calibration import RelevanceKind as KindOfMap

SERVICE = "service"  # stands for the name of the encoder that a service runs


def secret(value: SecretStr | None) -> str | None:
    """Return a secret in clear, or None if it is absent or empty."""
    return value.get_secret_value() if value else None


def header_key(text: str) -> str:
    """Return a key without surrounding whitespace, which files and pasted texts add.

    Raises:
        ValueError: If no header can carry the key. The message does not contain it.
    """
    key = text.strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ValueError("the key has characters that a header cannot carry; copy it again, without quotes or spaces")
    return key


def _address(text: str) -> str:
    """Return a URL without surrounding whitespace.

    The URL may hold a password, so the message of an error does not contain it.

    Raises:
        ValueError: If the URL is malformed.
    """
    url = text.strip()
    if not url.isprintable():
        raise ValueError("the URL has control characters; remove them")
    rest = url.partition("://")[2]
    host = re.split("[/?#]", rest)[0]
    if host.count("@") > 1 or (host and "@" in rest and "@" not in host):
        raise ValueError("the URL has an unescaped special character; write @ as %40, / as %2F, ? as %3F and # as %23")
    return url


Key = Annotated[SecretStr, AfterValidator(lambda value: SecretStr(header_key(value.get_secret_value())))]
Address = Annotated[SecretStr, AfterValidator(lambda value: SecretStr(_address(value.get_secret_value())))]

# Earlier releases called "human" "people"; the old name is accepted until the next release.
RelevanceKind = Annotated[
    KindOfMap,
    BeforeValidator(lambda value: "human" if value == "people" else value, json_schema_input_type=KindOfMap),
]


class AttachedTable(BaseModel):
    """An existing table or collection in a store, and the names of its columns."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, frozen=True)

    table: str = Field(
        min_length=1,
        validation_alias=AliasChoices("table", "collection"),
        description="The name of the table or collection in the store.",
    )
    id: str = Field("id", description="The column of the primary key, with strings or integers.")
    vector: str = Field("vector", description="The column of the vectors.")
    text: str = Field("text", description="The column of the texts.")
    title: str | None = Field(None, description="The column of the titles, if there is one.")
    metadata: tuple[str, ...] | None = Field(
        None,
        description="The columns that are metadata, or one column of JSON with all of them. If unset, all other "
        "columns are.",
    )
    encoder: str | None = Field(
        None,
        description='The full name of the model that made the vectors, or "service" for the service\'s encoder. If '
        "unset, each query brings its vector.",
    )
    words: bool = Field(True, description="Whether pools are also ranked by BM25, for which their texts are fetched.")
    distance: Literal["cosine", "inner product", "l2"] = Field(
        "cosine", description='The distance that the index of the vectors has: "cosine", "inner product", or "l2".'
    )
    full_text: str | None = Field(None, description="A column that the store searches by words, for hybrid search.")
    writable: bool = Field(
        False,
        description="Whether uploads and deletions are accepted, for which all metadata must be in one column of JSON.",
    )
    digest: str | None = Field(
        None, description="A column for fingerprints, by which an upload finds what has changed."
    )
    search: dict[str, int | float | str | bool] = Field(
        default_factory=dict,
        description='Parameters of searches: `exact_up_to`, or of the store, such as `"hnsw.ef_search"` of pgvector, '
        "`nprobes` of LanceDB, `hnsw_ef` of Qdrant, `num_candidates` of Elasticsearch, or `nprobe` of Milvus.",
    )


class StoreSettings(BaseModel, extra="forbid"):
    """A store of indexes, in which this service makes indexes and searches existing tables."""

    url: Address = Field(
        SecretStr(""),
        description="The URL of the store: pgvector://, lancedb://, qdrant://, elasticsearch://, opensearch://, or "
        "milvus://.",
    )
    prefix: str = Field(
        "boundarymorph_",
        pattern=r"^[a-z][a-z0-9_]{0,39}$",
        description="The beginning of the names of tables that this service makes, fills, and deletes.",
    )
    api_key: Key | None = Field(None, description="The API key for the store.")
    timeout_seconds: float = Field(10.0, gt=0, description="The longest time of one call.")
    connections: int = Field(16, ge=1, description="The most connections to the store.")
    schema_seconds: float = Field(5.0, ge=0, description="The time until the columns of a table in use are read again.")
    encoder: str | None = Field(
        SERVICE,
        description="For tables that are not in `indexes`: the full name of the model that made the vectors, or "
        '"service".',
    )
    indexes: dict[str, AttachedTable] = Field(
        default_factory=dict,
        description="The tables by the name of the index. If empty, every table whose columns can be guessed is an "
        "index.",
    )


class Limits(BaseModel, extra="forbid"):
    """Bounds on one request. A request that exceeds one is refused on arrival."""

    body_bytes: int = Field(
        64 * 2**20, ge=1024, description="The most bytes of the body of a request or an answer, except for streams."
    )
    head_bytes: int = Field(2**16, ge=1024, description="The most bytes of the request line and the headers.")
    line_bytes: int = Field(4 * 2**20, ge=1024, description="The most bytes of one line of an upload.")
    query_characters: int = Field(10_000, ge=1, description="The most characters of a query.")
    queries: int = Field(
        10, ge=1, description="The most queries of one selection. Each of them is a search of its own."
    )
    text_characters: int = Field(
        1_000_000, ge=1, description="The most characters of the title and the text of one document in a request."
    )
    pool: int = Field(20_000, ge=1, description="N: the most candidates, in a request or from an index.")
    passages: int = Field(
        10_000, ge=1, description="The most candidates if long documents of a request become passages."
    )
    document_passages: int = Field(32, ge=1, description="The most passages of one document.")
    features: int = Field(16, ge=0, description="The most signals that come with a pool.")
    budget: int = Field(2_000, ge=0, description="B: the most cross-encoder calls of a request.")
    k: int = Field(20_000, ge=1, description="The most documents in an answer.")
    diverse: int = Field(1_000, ge=1, description="The most documents in an answer with 'diversity'.")
    max_tokens: int = Field(10_000_000, ge=1, description="The most tokens that a request may ask for.")
    known_scores: int = Field(2_000, ge=0, description="The most scores that come with a request.")
    rounds: int = Field(2_000, ge=1, description="The most requests to the scorer that a selection may ask for.")
    dimension: int = Field(8_192, ge=1, description="The most numbers of a vector.")
    sessions: int | None = Field(
        None,
        ge=1,
        description="The most selections at the same time. If unset, 64, or with the embedded cross-encoder 4 for each "
        "core.",
    )
    requests: int = Field(512, ge=1, description="The most requests in progress, on all routes but probes and metrics.")
    key_requests: int | None = Field(
        None, ge=1, description="The most requests in progress of one key. If unset, only `key_share` limits them."
    )
    key_share: float = Field(
        0.75,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="The largest share of a common limit that one key may have while no other key uses it. 1 is all of "
        "it.",
    )
    deadline_seconds: float = Field(
        600.0,
        ge=0.001,
        allow_inf_nan=False,
        description="The longest time of a selection, whatever its deadline_ms is.",
    )
    texts: int = Field(512, ge=1, description="The most texts in one call of a scorer.")
    connections: int | None = Field(
        None,
        ge=1,
        description="The most connections with a request. If unset, half of the files that the process may open, at "
        "most 10,000.",
    )
    bytes_in_flight: int = Field(
        3 * 2**29,
        ge=1024,
        description="The most bytes of all requests together: bodies, texts read from an index, large answers, and the "
        "mathematics.",
    )

    @model_validator(mode="after")
    def _room_for_a_body(self) -> Self:
        if (room := int(self.key_share * self.bytes_in_flight)) < self.body_bytes:
            raise ValueError(
                f"bytes_in_flight and key_share leave {room:,} bytes to a key, under body_bytes, which is "
                f"{self.body_bytes:,}: the largest bodies would always be refused"
            )
        return self


def _listed(value: object) -> object:
    if not isinstance(value, str):
        return value
    return orjson.loads(value) if value.startswith("[") else (value,)


Urls = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)]
HostName = Annotated[str, Field(pattern=r"^(\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|[0-9a-f:]+)$")]
Hosts = Annotated[tuple[HostName, ...], NoDecode, BeforeValidator(_listed)]

# A comma also separates scopes and indexes within a key, so a comma separates keys only if a whole key follows.
_BETWEEN_KEYS = re.compile(r"\s*,\s*(?=[A-Za-z0-9][A-Za-z0-9._-]*:[a-z,]+:[0-9a-f]{64}(?![0-9a-f]))|,?\s+")


def _listed_keys(value: object) -> object:
    """Accept keys separated by spaces, line breaks or commas, or a JSON list of keys."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.startswith("["):
        return orjson.loads(text)
    return [key for key in _BETWEEN_KEYS.split(text) if key]


Keys = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed_keys)]


class ModelSettings(BaseModel, extra="forbid"):
    """A model: on other servers if there is a URL, else in this process."""

    named: ClassVar[tuple[str, ...]] = ("precision", "device", "instruction", "trust_remote_code", "batch_tokens")
    chosen: ClassVar[tuple[str, ...]] = ("revision",)  # also allowed with a url

    url: Urls = Field((), description="The URLs of servers that run the model.")
    api_key: Key | None = Field(None, description="The key that is sent to these servers as a Bearer token.")
    timeout_seconds: float = Field(
        30.0, gt=0, description="The longest time of one call with its retries, if no deadline comes earlier."
    )
    attempt_seconds: float = Field(10.0, gt=0, description="The longest time of one attempt at one server.")
    connections: int = Field(64, ge=1, description="The most connections to all servers together.")

    model: str | None = Field(None, description="The name of a model.")
    revision: str | None = Field(
        None,
        pattern=r"^[\w./-]{1,128}$",
        description="The commit, branch, or tag of a named model. With a URL, it tells the server's model from others.",
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description='The precision of a named model: "auto", "fp32", "bf16", or "fp16".'
    )
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="The device of a named model.")
    instruction: str | None = Field(None, description="The task, for models that take an instruction.")
    trust_remote_code: bool = Field(False, description="Whether to run Python code that comes with the model.")
    batch_tokens: int | None = Field(
        None, ge=1, description="The most tokens of a batch. If unset, it depends on the device."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.url and self.model is not None:
            raise ValueError("give a URL or a model, not both")
        if self.model is None:
            self._refuse(self.named, "a model with a name")
            if not self.url:
                self._refuse(self.chosen, "a model with a name or a URL")
        return self

    def _refuse(self, names: tuple[str, ...], owner: str) -> None:
        fields = type(self).model_fields
        given = [name for name in names if getattr(self, name) != fields[name].default]
        if given:
            raise ValueError(f"{', '.join(given)}: only of {owner}; the embedded one has its own")


class JudgeSettings(BaseModel, extra="forbid", frozen=True):
    """A chat model as the scorer, at an openai:// URL, and how it is asked for grades."""

    prompt: str | None = Field(
        None, min_length=1, description="The prompt that replaces the instructions for grading from 0 to 3."
    )
    documents_per_request: Literal[1, 20] = Field(
        1, description="The number of documents that the model grades in one request."
    )
    text_characters: int = Field(8_000, ge=1, description="The most characters of a document that the model reads.")
    answer_tokens: int = Field(
        32, ge=1, description="The most tokens of an answer. A model that thinks first needs more."
    )
    body: dict[str, Any] = Field(default_factory=dict, description="Additional fields of each request, as JSON.")
    omit: tuple[str, ...] = Field(
        (), description="Fields that the server does not accept, such as seed or temperature."
    )


class ScorerSettings(ModelSettings):
    """The cross-encoder: on other servers if there is a URL, else a model in this process."""

    named: ClassVar[tuple[str, ...]] = (*ModelSettings.named, "prompt")

    url: Urls = Field(
        (),
        description="The URLs of servers that score: http://, tei://, vllm://, sglang://, nim://, infinity://, "
        "llamacpp://, cohere://, jina://, voyage://, systemone://, decisions://, or openai://. Several are replicas.",
    )
    model: str | None = Field(
        None,
        description="The Hugging Face name, the short name, or the folder of the cross-encoder. If unset, it is the "
        "embedded one.",
    )
    max_length: int | None = Field(
        None, ge=8, description="The most tokens of a query and a text together. If unset, it is the model's own limit."
    )
    prompt: str | None = Field(
        None, description="The prompt template of a causal reranker, if its name does not imply one."
    )
    self_test: bool = Field(
        True, description="Whether each model is tested with a few pairs before it counts as ready."
    )
    trust: Literal["weak", "normal", "strong"] | None = Field(
        None,
        description='The trust in the scores beside similarity and words: "weak", "normal", or "strong". If unset, it '
        "depends on the name of the model.",
    )
    judge: JudgeSettings = Field(default_factory=JudgeSettings)


class EncoderSettings(ModelSettings):
    """The dual encoder: on other servers if there is a URL, else a model in this process."""

    named: ClassVar[tuple[str, ...]] = (*ModelSettings.named, "pooling")
    chosen: ClassVar[tuple[str, ...]] = (*ModelSettings.chosen, "query_prompt", "document_prompt", "dimension")

    url: Urls = Field(
        (), description="The URLs of servers that encode: tei://, vllm://, or openai://. Several are replicas."
    )
    model: str | None = Field(
        None, description="The Hugging Face name or the folder of the encoder. If unset, it is the embedded one."
    )
    max_length: int | None = Field(
        None, ge=8, description="The most tokens of a text. If unset, it is the model's own limit."
    )
    pooling: Literal["cls", "mean", "last"] | None = Field(
        None,
        description='The pooling of token vectors: "cls", "mean", or "last". If unset, the files of the model decide.',
    )
    query_prompt: str | None = Field(None, description="The prefix of each query. If unset, it is the model's own.")
    document_prompt: str | None = Field(
        None, description="The prefix of each document. If unset, it is the model's own."
    )
    dimension: int | None = Field(
        None, ge=1, description="The number of leading components to keep, for a model that is trained for that."
    )


def _calls(value: object) -> object:
    """Read a number with a point as a share, so that 1 call differs from all documents."""
    if isinstance(value, str) and value != "auto":
        value = float(value) if "." in value else int(value)
    if isinstance(value, float) and not 0 < value < 1:
        raise ValueError("a share of the documents is above 0 and below 1")
    return value


Calls = Annotated[
    Annotated[int, Field(ge=0)] | Annotated[float, Field(gt=0, lt=1)] | Literal["auto"], BeforeValidator(_calls)
]


class RerankSettings(BaseModel, extra="forbid"):
    """The compatible rerank routes."""

    budget: Calls | None = Field(
        None,
        description="The calls for a rerank request if neither it nor its policy has a budget: a number, a share of "
        'its documents such as 0.2, or "auto". If unset, all documents are scored.',
    )


class PolicySettings(BaseModel, extra="forbid"):
    """Defaults of the requests that choose a policy by `model`, path or key."""

    for_keys: tuple[str, ...] = Field(
        (), description="The names of keys whose requests have this policy unless they name another one."
    )
    budget: Calls | None = Field(
        None, description="The calls, as in `rerank.budget`. A share is only used for documents in a request."
    )
    rounds: Annotated[int, Field(ge=1)] | Literal["auto"] | None = Field(
        None, description="The most requests to the scorer."
    )
    deadline_ms: float | None = Field(None, gt=0, description="The deadline in milliseconds.")
    relevance: RelevanceKind | None = Field(None, description='The kind of relevance: "human" or "scorer".')
    calibration: bool | None = Field(None, description="Whether a calibration may apply.")
    min_relevance: float | None = Field(
        None, ge=0, le=1, description="The least relevance of a document in the answer."
    )
    distinct: bool | str | dict[str, Any] | None = Field(
        None, description="The limit on copies or groups, as in a request."
    )
    instruction: str | None = Field(None, min_length=1, description="The instruction for the scorer.")


class CacheSettings(BaseModel, extra="forbid"):
    """Cached scores, in Redis or in this process, and embeddings of queries, in this process."""

    enabled: bool = Field(True, description="Whether scores and the embeddings of queries are kept.")
    url: Address | None = Field(
        None,
        description="The URL of Redis: redis://, rediss://, or unix://. If unset, each process has a cache of its own.",
    )
    timeout_seconds: float = Field(0.05, gt=0, description="The longest time of a lookup in Redis.")
    seconds_to_live: float = Field(
        7 * 86_400.0, gt=0, allow_inf_nan=False, description="The lifetime of the scores of a query."
    )
    namespace: str | None = Field(
        None, pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="A part of the keys in Redis that separates services."
    )
    memory_bytes: int = Field(
        64 * 2**20, ge=1024, description="The most bytes of scores in this process and, separately, of embeddings."
    )


UNLIMITED = "unlimited"


class RateLimitSettings(BaseModel, extra="forbid"):
    """Requests that a key may make, as "100/minute" or "10/second; 5000/hour".

    They are counted in Redis if there is a URL.
    """

    default: str | None = Field(
        None, description="The rate limit of every key without a limit of its own. If unset, there is no limit."
    )
    keys: dict[str, str] = Field(
        default_factory=dict, description='Rate limits by the name of the key; "unlimited" is no limit.'
    )
    url: Address | None = Field(
        None, description="The URL of the Redis that counts. If unset, it is the Redis of the cache."
    )
    timeout_seconds: float = Field(0.05, gt=0, description="The longest time that a request waits for Redis.")

    @model_validator(mode="after")
    def _limits(self) -> Self:
        for name, text in (("default", self.default), *((f"keys.{name}", text) for name, text in self.keys.items())):
            if text in (None, UNLIMITED):
                continue
            from limits import parse_many  # the library does not have it

            try:
                usable = all(item.amount > 0 for item in parse_many(text))
            except ValueError:
                usable = False
            if not usable:
                raise ValueError(f'{name} is {text!r}, not like "100/minute" or "10/second; 5000/hour"')
        return self


class AgentSettings(BaseModel, extra="forbid"):
    """The tools for language models at /mcp."""

    answer_tokens: int = Field(10_000, ge=1_000, description="The most tokens of a tool's answer, at four bytes each.")
    index: str | None = Field(
        None, description="The index that the tools use by default. If unset, it is the only one."
    )
    described_indexes: int = Field(
        20, ge=0, description="The number of indexes of which `list_indexes` reads a sample to find the fields."
    )
    body_bytes: int = Field(2**20, ge=1024, description="The most bytes of the body of a request to /mcp.")


class TraceSettings(BaseModel, extra="forbid"):
    """OpenTelemetry traces, exported only if there is a URL.

    The standard OTEL_* variables set the rest.
    """

    url: str | None = Field(
        None, pattern=r"^https?://", description="The URL of an OTLP/HTTP collector: .../v1/traces."
    )
    texts: bool = Field(
        False, description="Whether traces have queries, ids, and the beginnings of texts, for debugging."
    )


class RetrieverSettings(BaseModel, extra="forbid"):
    """The retriever: other processes if there is a URL, else the indexes of this machine."""

    url: Urls = Field(
        (), description="The URLs of `boundarymorph retriever`, with http://. Several have the same documents."
    )
    timeout_seconds: float = Field(
        30.0, gt=0, description="The longest time of one call with its retry, if there is one URL."
    )
    attempt_seconds: float = Field(10.0, gt=0, description="The longest time of one attempt at one of several URLs.")
    api_key: Key | None = Field(None, description="The key that is sent to the retriever as a Bearer token.")
