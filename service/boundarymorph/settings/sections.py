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

    Raises ValueError, whose message lacks the key, if no header can carry it.
    """
    key = text.strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ValueError("the key has characters that a header cannot carry; copy it again, without quotes or spaces")
    return key


def _address(text: str) -> str:
    """Return a URL without surrounding whitespace. Raises ValueError if it is malformed.

    The URL may hold a password, so the message of an error does not contain it.
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


class Attached(BaseModel):
    """An existing table or collection in a store, and the names of its columns."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, frozen=True)

    table: str = Field(
        min_length=1, validation_alias=AliasChoices("table", "collection"), description="its name in the store"
    )
    id: str = Field("id", description="the primary key: strings or integers")
    vector: str = "vector"
    text: str = "text"
    title: str | None = None
    metadata: tuple[str, ...] | None = Field(
        None, description="columns that are metadata, or one of JSON with all of them; all other columns if unset"
    )
    encoder: str | None = Field(
        None, description='full name of what made its vectors, or "service"; if unset queries bring theirs'
    )
    words: bool = Field(True, description="BM25 over the texts of each pool, which are fetched for it")
    distance: Literal["cosine", "inner product", "l2"] = Field("cosine", description="of the index of its vectors")
    full_text: str | None = Field(None, description="a column of words that the store searches, for hybrid")
    writable: bool = Field(False, description="take uploads and deletions; needs one column of JSON for all metadata")
    digest: str | None = Field(None, description="a column for fingerprints, by which uploads know what has changed")
    search: dict[str, int | float | str | bool] = Field(
        default_factory=dict, description="search parameters of its index, such as `nprobe`"
    )


class StoreSettings(BaseModel, extra="forbid"):
    """A store of indexes, in which this service makes indexes and searches existing tables."""

    url: Address = Field(
        SecretStr(""), description="pgvector://, lancedb://, qdrant://, elasticsearch://, opensearch:// or milvus://"
    )
    prefix: str = Field(
        "boundarymorph_",
        pattern=r"^[a-z][a-z0-9_]{0,39}$",
        description="of the tables that this service makes, fills and deletes",
    )
    api_key: Key | None = None
    timeout_seconds: float = Field(10.0, gt=0, description="one call")
    connections: int = Field(16, ge=1, description="connections to it")
    schema_seconds: float = Field(5.0, ge=0, description="time until a table in use is described again")
    encoder: str | None = Field(
        SERVICE, description='of tables not in `indexes`: the full name of what made their vectors, or "service"'
    )
    indexes: dict[str, Attached] = Field(
        default_factory=dict, description="tables by index name; if empty, those whose columns can be guessed"
    )


class Limits(BaseModel, extra="forbid"):
    """Bounds on one request. A request that exceeds one is refused on arrival."""

    body_bytes: int = Field(64 * 2**20, ge=1024, description="HTTP body of a request or an answer, except streams")
    head_bytes: int = Field(2**16, ge=1024, description="request line and headers")
    line_bytes: int = Field(4 * 2**20, ge=1024, description="one line of an NDJSON upload")
    query_characters: int = Field(10_000, ge=1)
    queries: int = Field(10, ge=1, description="of one selection; each is a search and a session of its own")
    text_characters: int = Field(1_000_000, ge=1, description="title and text of one document of a pool")
    pool: int = Field(20_000, ge=1, description="N: candidates, given or taken from an index")
    passages: int = Field(10_000, ge=1, description="candidates, if long documents of a request become passages")
    document_passages: int = Field(32, ge=1, description="passages of one document")
    features: int = Field(16, ge=0, description="named signals that come with a pool")
    budget: int = Field(2_000, ge=0, description="B: cross-encoder calls")
    k: int = Field(20_000, ge=1, description="documents returned")
    diverse: int = Field(1_000, ge=1, description="documents returned with 'diversity'")
    max_tokens: int = Field(10_000_000, ge=1, description="tokens returned")
    known_scores: int = Field(2_000, ge=0, description="scores that come with a request")
    rounds: int = Field(2_000, ge=1, description="trips to the scorer that a request may name")
    dimension: int = Field(8_192, ge=1, description="d of given embeddings")
    sessions: int | None = Field(
        None, ge=1, description="concurrent selections; if unset 64, or with the embedded cross-encoder here 4 per core"
    )
    requests: int = Field(512, ge=1, description="requests in progress, of all routes but probes and metrics")
    key_requests: int | None = Field(
        None, ge=1, description="requests of one key in progress; if unset, `key_share` is the only bound"
    )
    key_share: float = Field(
        0.75,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="most that one key gets of a bound that keys share, while no other has any of it; 1: all",
    )
    deadline_seconds: float = Field(
        600.0, ge=0.001, allow_inf_nan=False, description="longest time of a selection, whatever its deadline_ms"
    )
    texts: int = Field(512, ge=1, description="texts in one call of a scorer")
    connections: int | None = Field(
        None,
        ge=1,
        description="callers' connections with a request; if unset, half of what the process may open, at most 10,000",
    )
    bytes_in_flight: int = Field(
        3 * 2**29,
        ge=1024,
        description="bodies, texts read of an index, large answers, and the mathematics of selections, together",
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

    url: Urls = ()
    api_key: Key | None = Field(None, description="sent to those servers as a Bearer token")
    timeout_seconds: float = Field(30.0, gt=0, description="one call, retries included, without an earlier deadline")
    attempt_seconds: float = Field(10.0, gt=0, description="one try at one server")
    connections: int = Field(64, ge=1, description="connections to all servers together")

    model: str | None = None
    revision: str | None = Field(
        None,
        pattern=r"^[\w./-]{1,128}$",
        description="commit, branch or tag of a named model; with a url, distinguishes its model from others",
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field("auto", description="of a named model")
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="where a named model runs")
    instruction: str | None = Field(None, description="for models that take their task as an instruction")
    trust_remote_code: bool = Field(False, description="run Python code that comes with the model")
    batch_tokens: int | None = Field(None, ge=1, description="tokens per batch; depends on the device if unset")

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

    prompt: str | None = Field(None, min_length=1, description="replaces the instructions for grading from 0 to 3")
    documents_per_request: Literal[1, 20] = Field(1, description="documents that it grades in one request")
    text_characters: int = Field(8_000, ge=1, description="characters of a document that it is shown")
    answer_tokens: int = Field(32, ge=1, description="tokens that it may write; more for a model that thinks first")
    body: dict[str, Any] = Field(default_factory=dict, description="additional fields of each request, as JSON")
    omit: tuple[str, ...] = Field((), description="fields that the server does not accept, such as seed or temperature")


class ScorerSettings(ModelSettings):
    """The cross-encoder: on other servers if there is a URL, else a model in this process."""

    named: ClassVar[tuple[str, ...]] = (*ModelSettings.named, "prompt")

    url: Urls = Field(
        (),
        description="http://, tei://, vllm://, infinity://, llamacpp://, cohere://, jina://, voyage://, "
        "systemone://, decisions:// or openai:// servers",
    )
    model: str | None = Field(
        None, description="Hugging Face name, short name or folder; the embedded cross-encoder if unset"
    )
    max_length: int | None = Field(None, ge=8, description="tokens per pair; the model's own limit if unset")
    prompt: str | None = Field(None, description="template of a causal reranker, if its name does not imply one")
    self_test: bool = Field(True, description="whether each model is tested with a few pairs before it counts as ready")
    trust: Literal["weak", "normal", "strong"] | None = Field(
        None, description="how far its scores are trusted beside similarity and words; if unset, by its name"
    )
    judge: JudgeSettings = Field(default_factory=JudgeSettings)


class EncoderSettings(ModelSettings):
    """The dual encoder: on other servers if there is a URL, else a model in this process."""

    named: ClassVar[tuple[str, ...]] = (*ModelSettings.named, "pooling")
    chosen: ClassVar[tuple[str, ...]] = (*ModelSettings.chosen, "query_prompt", "document_prompt", "dimension")

    url: Urls = Field((), description="tei://, vllm:// or openai:// servers; several are replicas")
    model: str | None = Field(None, description="Hugging Face name or folder; the embedded encoder if unset")
    max_length: int | None = Field(None, ge=8, description="tokens per text; the model's own limit if unset")
    pooling: Literal["cls", "mean", "last"] | None = Field(None, description="taken from its files if unset")
    query_prompt: str | None = Field(None, description="prefix of every query; the model's own if unset")
    document_prompt: str | None = Field(None, description="prefix of every document; the model's own if unset")
    dimension: int | None = Field(None, ge=1, description="leading components kept, of a model trained for that")


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
        description="calls for a request, if neither it nor its policy says: a number, a share of its documents such "
        'as 0.2, or "auto"; all documents are scored if unset',
    )


class PolicySettings(BaseModel, extra="forbid"):
    """Defaults of the requests that choose a policy by `model`, path or key."""

    for_keys: tuple[str, ...] = Field((), description="names of keys whose requests have it, unless they name another")
    budget: Calls | None = Field(None, description="as of rerank; a share counts for documents in a request only")
    rounds: Annotated[int, Field(ge=1)] | Literal["auto"] | None = None
    deadline_ms: float | None = Field(None, gt=0)
    relevance: RelevanceKind | None = None
    calibration: bool | None = None
    min_relevance: float | None = Field(None, ge=0, le=1)
    distinct: bool | str | dict[str, Any] | None = None
    instruction: str | None = Field(None, min_length=1)


class CacheSettings(BaseModel, extra="forbid"):
    """Cached scores, in Redis or in this process, and embeddings of queries, in this process."""

    enabled: bool = Field(True, description="keep scores and the embeddings of queries")
    url: Address | None = Field(None, description="redis://, rediss:// or unix://")
    timeout_seconds: float = Field(0.05, gt=0, description="longest that a lookup waits for Redis")
    seconds_to_live: float = Field(7 * 86_400.0, gt=0, allow_inf_nan=False, description="lifetime of a query's scores")
    namespace: str | None = Field(
        None, pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="part of the keys in Redis; separates services"
    )
    memory_bytes: int = Field(64 * 2**20, ge=1024, description="for scores and, separately, embeddings in this process")


UNLIMITED = "unlimited"


class RateLimitSettings(BaseModel, extra="forbid"):
    """Requests that a key may make, as "100/minute" or "10/second; 5000/hour".

    They are counted in Redis if there is a URL.
    """

    default: str | None = Field(None, description="for every key without a limit of its own; unlimited if unset")
    keys: dict[str, str] = Field(default_factory=dict, description='by the name of a key; "unlimited" for none')
    url: Address | None = Field(None, description="of Redis; the cache's Redis if unset")
    timeout_seconds: float = Field(0.05, gt=0, description="longest that a request waits for Redis")

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

    answer_tokens: int = Field(10_000, ge=1_000, description="tokens of a tool's answer, at four bytes each")
    index: str | None = Field(None, description="index that the tools use by default; if unset the only one")
    described_indexes: int = Field(
        20, ge=0, description="indexes of which `list_indexes` reads a sample, for the fields"
    )
    body_bytes: int = Field(2**20, ge=1024, description="body of a request to /mcp")


class TraceSettings(BaseModel, extra="forbid"):
    """OpenTelemetry traces, exported only if there is a URL.

    The standard OTEL_* variables set the rest.
    """

    url: str | None = Field(None, pattern=r"^https?://", description="of an OTLP/HTTP collector: .../v1/traces")
    texts: bool = Field(
        False, description="record queries, ids, and the beginnings of texts, for who debugs with traces"
    )


class RetrieverSettings(BaseModel, extra="forbid"):
    """The retriever: other processes if there is a URL, else the indexes of this machine."""

    url: Urls = Field((), description="http:// of a `boundarymorph retriever`; several see the same documents")
    timeout_seconds: float = Field(30.0, gt=0, description="one call, a retry included, if there is only one")
    attempt_seconds: float = Field(10.0, gt=0, description="one try at one of several")
    api_key: Key | None = Field(None, description="sent to it as a Bearer token")
