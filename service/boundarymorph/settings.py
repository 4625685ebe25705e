"""Configuration: read once, at the edge, from the environment and a TOML file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import Annotated, Any, ClassVar, Literal, Self, get_origin

import orjson
from pydantic import BaseModel, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.selection import methods

PREFIX = "BOUNDARYMORPH_"
CONFIG_VARIABLE = "BOUNDARYMORPH_CONFIG"
OTHER_VARIABLES = (CONFIG_VARIABLE, "BOUNDARYMORPH_CHAT_KEY")  # which are no settings
# Kubernetes sets these in every pod for a Service whose name begins with "boundarymorph".
SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)", re.IGNORECASE)
SERVICE_LINK_URL = re.compile(r"(tcp|udp|sctp)://")
DEFAULT_CONFIG = Path("boundarymorph.toml")
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")  # of TOML
MASK = "********"
_SECRET_PARAMETER = re.compile(r"(?i)[?&][^=&]*(pass|key|token|secret|auth|sig)[^=&]*=")  # of a URL


SESSIONS, SESSIONS_A_CORE = 64, 4
DEFAULTS_WITHIN = {  # by setting, which of the limits it is within
    "budget": "budget",
    "k": "k",
    "depth": "pool",
    "batch_size": "batch_size",
    "deadline_seconds": "deadline_seconds",
}


class Limits(BaseModel, extra="forbid"):
    """Bounds on one request. What is over one is refused at the door, whole."""

    body_bytes: int = Field(256 * 2**20, ge=1024, description="HTTP body, except of a streamed upload")
    line_bytes: int = Field(4 * 2**20, ge=1024, description="one line of an NDJSON upload")
    query_characters: int = Field(10_000, ge=1)
    text_characters: int = Field(1_000_000, ge=1, description="title and text of one document of a pool")
    pool: int = Field(20_000, ge=1, description="N: candidates, given or taken from an index")
    budget: int = Field(2_000, ge=0, description="B: cross-encoder calls")
    k: int = Field(20_000, ge=1, description="documents returned")
    max_tokens: int = Field(10_000_000, ge=1, description="tokens returned")
    known_scores: int = Field(1_000, ge=0, description="cross-encoder scores that come with a pool")
    batch_size: int = Field(256, ge=1, description="documents a round")
    dimension: int = Field(8_192, ge=1, description="d of given embeddings")
    sessions: int | None = Field(
        None,
        ge=1,
        description="selections at a time; if unset 64, with the embedded cross-encoder here 4 a core over all workers",
    )
    waiting: int = Field(192, ge=0, description="requests for selections that may wait for their turn")
    key_sessions: int | None = Field(
        None, ge=1, description="selections of one key at a time, running and waiting; no bound of its own if unset"
    )
    deadline_seconds: float = Field(600.0, ge=0.001, description="longest deadline_ms of a selection")
    texts: int = Field(512, ge=1, description="texts in one call of a scorer")
    bytes_in_hand: int = Field(2**30, ge=1024, description="HTTP bodies of all requests under way together")

    @model_validator(mode="after")
    def _room_for_a_body(self) -> Self:
        if self.bytes_in_hand < self.body_bytes:
            raise ValueError(
                f"bytes_in_hand is {self.bytes_in_hand:,}, under body_bytes, which is {self.body_bytes:,}: "
                "the largest bodies would always be refused"
            )
        return self


def _listed(value: object) -> object:
    """One URL by itself, or a JSON list of them as an environment variable has it."""
    if not isinstance(value, str):
        return value
    return orjson.loads(value) if value.startswith("[") else (value,)


Urls = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)]

# A comma also separates scopes and indexes within a key, so only one that a whole key follows separates keys.
_BETWEEN_KEYS = re.compile(r"\s*,\s*(?=[A-Za-z0-9][A-Za-z0-9._-]*:[a-z,]+:[0-9a-f]{64}(?![0-9a-f]))|,?\s+")


def _listed_keys(value: object) -> object:
    """Keys separated by spaces, line ends or commas, or a JSON list of them."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.startswith("["):
        return orjson.loads(text)
    return [key for key in _BETWEEN_KEYS.split(text) if key]


Keys = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed_keys)]


class ModelSettings(BaseModel, extra="forbid"):
    """A model: on a server elsewhere if there is a url, else in this process, by name or the embedded one."""

    named: ClassVar[tuple[str, ...]] = ("precision", "device", "instruction", "trust_remote_code", "batch_tokens")
    chosen: ClassVar[tuple[str, ...]] = ("revision",)  # of a url too

    url: Urls = ()
    api_key: SecretStr | None = Field(None, description="what those are sent as a Bearer token")
    timeout_seconds: float = Field(30.0, gt=0, description="one call, retries included, where nothing else is due")
    attempt_seconds: float = Field(10.0, gt=0, description="one try at one server")
    connections: int = Field(64, ge=1, description="connections to all servers together")

    model: str | None = None
    revision: str | None = Field(
        None,
        pattern=r"^[\w./-]{1,128}$",
        description="commit, branch or tag of a model with a name; of a url, what tells its model from others",
    )
    precision: Literal["auto", "fp32", "bf16", "fp16", "int8"] = Field("auto", description="of a model with a name")
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="where a model with a name runs")
    instruction: str | None = Field(None, description="what a model that is told its task is told")
    trust_remote_code: bool = Field(False, description="run Python code that comes with the model")
    batch_tokens: int | None = Field(None, ge=1, description="tokens of a batch; by the device if unset")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.url and self.model is not None:
            raise ValueError("give a url or a model, not both")
        if self.model is None:
            self._refuse(self.named, "a model with a name")
            if not self.url:
                self._refuse(self.chosen, "a model with a name or a url")
        return self

    def _refuse(self, names: tuple[str, ...], owner: str) -> None:
        fields = type(self).model_fields
        given = [name for name in names if getattr(self, name) != fields[name].default]
        if given:
            raise ValueError(f"{', '.join(given)}: only of {owner}; the embedded one has its own")


class ScorerSettings(ModelSettings):
    """The cross-encoder: a server elsewhere if there is a url, else a model in this process."""

    named: ClassVar[tuple[str, ...]] = (*ModelSettings.named, "prompt")

    url: Urls = Field((), description="http://, tei://, vllm://, infinity://, cohere:// or jina:// servers")
    model: str | None = Field(None, description="Hugging Face name or folder; the embedded cross-encoder if unset")
    max_length: int | None = Field(None, ge=8, description="tokens of a pair; the model's own limit if unset")
    prompt: str | None = Field(None, description="template of a causal reranker, where its name does not tell")
    queue_tokens: int = Field(1_000_000, ge=1, description="tokens that may wait; what is over it is refused")


class EncoderSettings(ModelSettings):
    """The dual encoder: a server elsewhere if there is a url, else a model in this process."""

    named: ClassVar[tuple[str, ...]] = (*ModelSettings.named, "pooling")
    chosen: ClassVar[tuple[str, ...]] = (*ModelSettings.chosen, "query_prompt", "document_prompt", "dimension")

    url: Urls = Field((), description="tei://, vllm:// or openai:// servers; several are replicas")
    model: str | None = Field(None, description="Hugging Face name or folder; the embedded encoder if unset")
    max_length: int | None = Field(None, ge=8, description="tokens of a text; the model's own limit if unset")
    pooling: Literal["cls", "mean", "last"] | None = Field(None, description="what its files say, if unset")
    query_prompt: str | None = Field(None, description="before every query; the model's own if unset")
    document_prompt: str | None = Field(None, description="before every document; the model's own if unset")
    dimension: int | None = Field(None, ge=1, description="leading numbers kept, of a model made for that")


class CacheSettings(BaseModel, extra="forbid"):
    """What is known already: in Redis if there is a url, else in this process."""

    enabled: bool = Field(True, description="keep scores and the embeddings of queries")
    url: SecretStr | None = Field(None, description="redis://, rediss://, unix:// or redis+cluster://")
    timeout_seconds: float = Field(0.05, gt=0, description="that a lookup waits for Redis at most")
    seconds_to_live: float = Field(7 * 86_400.0, gt=0, description="of a query's scores, and of an embedding")
    namespace: str | None = Field(
        None, pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="of the keys in Redis: others see nothing of it"
    )
    memory_bytes: int = Field(64 * 2**20, ge=1024, description="of scores, and of embeddings, in this process")


UNLIMITED = "unlimited"


class RateLimitSettings(BaseModel, extra="forbid"):
    """Requests that a key may make, as "100/minute" or "10/second; 5000/hour"; counted in Redis if there is a url."""

    default: str | None = Field(None, description="of every key that has none of its own; unlimited if unset")
    keys: dict[str, str] = Field(default_factory=dict, description='by the name of a key; "unlimited" for none')
    url: SecretStr | None = Field(None, description="of Redis; that of the cache if unset")
    timeout_seconds: float = Field(0.05, gt=0, description="that a request waits for Redis at most")

    @model_validator(mode="after")
    def _limits(self) -> Self:
        from limits import parse_many

        for name, text in (("default", self.default), *((f"keys.{name}", text) for name, text in self.keys.items())):
            if text in (None, UNLIMITED):
                continue
            try:
                usable = all(item.amount > 0 for item in parse_many(text))
            except ValueError:
                usable = False
            if not usable:
                raise ValueError(f'{name} is {text!r}, not like "100/minute" or "10/second; 5000/hour"')
        return self


class WorkSettings(BaseModel, extra="forbid"):
    """Blocking work of one process by its kind: threads, and how many calls may wait for one before 429."""

    parsing_threads: int = Field(2, ge=1, description="that read large requests and write large answers")
    parsing_waiting: int = Field(512, ge=0)
    search_threads: int | None = Field(
        None, ge=1, description="that search indexes for selections; if unset 16, with Milvus milvus.connections"
    )
    search_waiting: int = Field(512, ge=0)
    read_threads: int = Field(4, ge=1, description="that list and describe indexes and read single documents")
    read_waiting: int = Field(64, ge=0)
    write_threads: int = Field(4, ge=1, description="that create, fill and delete indexes")
    write_waiting: int = Field(60, ge=0, description="uploads count among these from their beginning to their end")


class TraceSettings(BaseModel, extra="forbid"):
    """Spans of OpenTelemetry, sent nowhere unless there is a url. The rest is in the standard OTEL_* variables."""

    url: str | None = Field(None, pattern=r"^https?://", description="of an OTLP/HTTP collector: .../v1/traces")


class RetrieverSettings(BaseModel, extra="forbid"):
    """The retriever: processes elsewhere if there is a url, else the indexes of this machine."""

    url: Urls = Field((), description="http:// of a `boundarymorph retriever`; several see the same documents")
    timeout_seconds: float = Field(30.0, gt=0, description="one call of the only one, a second try included")
    attempt_seconds: float = Field(10.0, gt=0, description="one try at one of several")
    connections: int = Field(64, ge=1, description="connections to each at most")
    api_key: SecretStr | None = Field(None, description="what it is sent as a Bearer token")


class MilvusCollection(BaseModel, extra="forbid"):
    """A collection of Milvus that is there already, and what its fields are called."""

    collection: str = Field(min_length=1, description="its name in Milvus")
    id: str = Field("id", description="the primary key: strings or integers")
    vector: str = "vector"
    text: str = "text"
    title: str | None = None
    encoder: str | None = Field(None, description="full name of what made its vectors; queries bring theirs if unset")


class MilvusSettings(BaseModel, extra="forbid"):
    """Milvus, in place of the indexes of this machine, if there is a url."""

    url: str | None = Field(None, min_length=1, description="http://, https://, or a file PATH.db: milvus-lite")
    token: SecretStr | None = Field(None, description="a token, or USER:PASSWORD")
    database: str = Field("", description="its default one if empty")
    prefix: str = Field(
        "boundarymorph_", pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$", description="of the collections that are made here"
    )
    timeout_seconds: float = Field(10.0, gt=0, description="one call of it, retries included")
    connections: int = Field(16, ge=1, description="searches that wait for it at a time")
    vectors: Literal["milvus", "local"] = Field("milvus", description="local: kept on disk here once fetched")
    vector_bytes: int = Field(2**30, ge=2**16, description="of disk for the kept vectors of each index")
    collections: dict[str, MilvusCollection] = Field(default_factory=dict, description="your own, by name of the index")


class Settings(BaseSettings):
    """Every setting of the service.

    The environment (BOUNDARYMORPH_PORT, BOUNDARYMORPH_LIMITS__BUDGET) wins over the TOML file that BOUNDARYMORPH_CONFIG
    names, by default boundarymorph.toml in the working directory.
    """

    model_config = SettingsConfigDict(
        env_prefix="BOUNDARYMORPH_", env_nested_delimiter="__", extra="forbid", frozen=True, validate_default=True
    )

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8080, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    data_directory: Path = Field(Path("data"), description="where the indexes live")
    index_log_bytes: int = Field(
        4 * 2**20, ge=2**16, description="of an index's write-ahead log, from which on a write empties it"
    )
    threads: int | None = Field(None, ge=1, description="threads of each model; all cores if unset")
    search_device: str = Field(
        "cpu", pattern=r"^(cpu|cuda(:\d+)?|faiss(:\d+)?)$", description="cuda: PyTorch; faiss: FAISS on a GPU"
    )
    filter_bytes: int = Field(64 * 2**20, ge=0, description="of memory for matches of recent filters, in each index")
    selector_threads: int = Field(2, ge=1, description="threads for the mathematics of all sessions")
    max_length: int = Field(512, ge=8, le=512, description="tokens that the embedded models read")
    log_level: str = Field("info", pattern="^(critical|error|warning|info|debug)$")
    budget: int = Field(50, ge=0, description="B where a request names none")
    k: int = Field(50, ge=1, description="k where a request names none")
    depth: int = Field(10_000, ge=1, description="N taken from an index where a request names none")
    batch_size: int = Field(5, ge=1, description="documents a round where a request names none")
    deadline_seconds: float = Field(60.0, gt=0, description="of a request that names no deadline of its own")
    body_seconds: float = Field(60.0, gt=0, description="that a body may take to arrive, except of a streamed upload")
    event_seconds: float = Field(
        30.0, gt=0, description="that a client may take to read one event of a stream before it is hung up on"
    )
    method: str = Field(methods.DEFAULT, description="how to select where a request does not say")
    auto_budget: int = Field(200, ge=0, description='calls at most where a request says "auto", within the limit')
    auto_settle: float = Field(0.02, gt=0, lt=1, description='expected loss at which "auto" stops')
    encoder: EncoderSettings = Field(default_factory=EncoderSettings)
    retriever: RetrieverSettings = Field(default_factory=RetrieverSettings)
    milvus: MilvusSettings = Field(default_factory=MilvusSettings)
    scorer: ScorerSettings = Field(default_factory=ScorerSettings)
    keys: Keys = Field(
        (), description="NAME:SCOPES:SHA256 or NAME:SCOPES:SHA256:INDEXES, as `boundarymorph key` prints"
    )
    without_keys: bool = Field(False, description="serve without keys on an address that others can reach")
    log_format: Literal["text", "json"] = Field("text", description="of the lines on stderr")
    cache: CacheSettings = Field(default_factory=CacheSettings)
    rate_limits: RateLimitSettings = Field(default_factory=RateLimitSettings)
    work: WorkSettings = Field(default_factory=WorkSettings)
    ready_interval_seconds: float = Field(10.0, gt=0, description="between canaries to the parts behind /readyz")
    ready_timeout_seconds: float = Field(5.0, gt=0, description="that a part may take to answer one")
    traces: TraceSettings = Field(default_factory=TraceSettings)
    workers: int = Field(1, ge=1, le=256, description="processes that answer on one port, each with models of its own")
    worker_restarts: int = Field(5, ge=0, description="of one worker within worker_restart_seconds; one more ends all")
    worker_restart_seconds: float = Field(300.0, gt=0, description="after which the death of a worker is forgotten")
    drain_seconds: float = Field(0.0, ge=0, description="after SIGTERM: unready, but still open to new requests")
    grace_seconds: int = Field(30, ge=1, description="after that: what is running may finish")
    limits: Limits = Field(default_factory=Limits)

    @model_validator(mode="after")
    def _one_place_for_indexes(self) -> Self:
        if self.retriever.url and self.milvus.url is not None:
            raise ValueError("give retriever.url or milvus.url, not both: a retriever has a milvus.url of its own")
        return self

    @model_validator(mode="after")
    def _defaults_within_limits(self) -> Self:
        if self.method not in methods.METHODS:
            raise ValueError(f"method is {self.method!r}, not one of {', '.join(methods.METHODS)}")
        for name, limit in DEFAULTS_WITHIN.items():
            default, most = getattr(self, name), getattr(self.limits, limit)
            if default > most:
                raise ValueError(f"{name} is {default:,}, over limits.{limit}, which is {most:,}")
        return self

    @property
    def sessions(self) -> int:
        """Selections at a time in one process. On a few cores, more of them only make each other late."""
        if self.limits.sessions is not None:
            return self.limits.sessions
        if self.scorer.url or self.scorer.model is not None:
            return SESSIONS
        cores = self.threads or os.cpu_count() or 1
        return max(SESSIONS_A_CORE, SESSIONS_A_CORE * cores // self.workers)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, _config_file())

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Read the settings; overrides that are None do not count.

        Raises InvalidConfiguration, naming each mistake, a BOUNDARYMORPH_* variable that is no setting included.
        """
        if unknown := _unknown_variables():
            raise InvalidConfiguration(f"bad settings: {'; '.join(unknown)}")
        try:
            return cls(**{name: value for name, value in overrides.items() if value is not None})
        except ValidationError as error:
            raise InvalidConfiguration(f"bad settings: {mistakes(error)}") from None
        except (TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidConfiguration(f"bad settings: {_config_file()}: {error}") from None
        except ValueError as error:  # JSON in a variable that does not parse
            raise InvalidConfiguration(f"bad settings: {error}") from None

    def masked(self) -> dict[str, Any]:
        """All values as plain data, secrets, and URLs that hold one, replaced by MASK."""
        shown: dict[str, Any] = _plain(self)
        return shown


def mistakes(error: ValidationError) -> str:
    """What is wrong with each field, on one line."""
    return "; ".join(
        ": ".join([*filter(None, [".".join(map(str, detail["loc"]))]), detail["msg"].removeprefix("Value error, ")])
        for detail in error.errors()
    )


def toml(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """What `masked` gives, as a file that loads again: flat values first, then one table each for the nested ones.

    Unset values are comments, and so are secrets, which are not shown.
    """
    lines, tables = [], []
    for given, value in values.items():
        name = _quoted(given)
        if isinstance(value, Mapping):
            inner = (*path, given)
            tables.append(f"\n[{'.'.join(map(_quoted, inner))}]\n{toml(value, inner)}")
        elif value is None:
            lines.append(f"# {name} is unset\n")
        elif value == MASK:
            variable = PREFIX + "__".join((*path, given)).upper()
            lines.append(f"# {name} is a secret and not shown; set {variable}\n")
        else:
            lines.append(f"{name} = {_toml_value(value)}\n")
    return "".join(lines + tables)


def _quoted(name: str) -> str:
    return name if BARE_KEY.fullmatch(name) else _toml_value(name)


def _toml_value(value: object) -> str:
    """JSON is TOML, but for the one control character that JSON does not escape."""
    return orjson.dumps(value).decode().replace("\x7f", "\\u007f")


def _unknown_variables() -> list[str]:
    """What is wrong with each variable of the environment that begins like a setting's and is none."""
    known = [name.upper() for name in _variables(Settings)]
    found = []
    for variable, value in sorted(os.environ.items()):
        prefix, name = variable[: len(PREFIX)].upper(), variable[len(PREFIX) :].upper()
        if prefix != PREFIX or prefix + name in OTHER_VARIABLES or _is_setting(Settings, name.split("__")):
            continue
        if SERVICE_LINK.fullmatch(variable) or SERVICE_LINK_URL.match(value):
            continue
        near = get_close_matches(name, known, n=1, cutoff=0.7)
        hint = f"; did you mean {PREFIX}{near[0]}?" if near else "; `boundarymorph config` lists the settings"
        found.append(f"there is no setting {variable}{hint}")
    return found


def _is_setting(model: type[BaseModel], parts: list[str]) -> bool:
    """Whether these parts of a variable's name lead to a field, or into one whose names are the user's."""
    field = model.model_fields.get(parts[0].lower())
    if field is None:
        return False
    inner = field.annotation
    if len(parts) == 1 or get_origin(inner) is dict:
        return True
    return isinstance(inner, type) and issubclass(inner, BaseModel) and _is_setting(inner, parts[1:])


def _variables(model: type[BaseModel]) -> Iterator[str]:
    """What follows the prefix in the variables of all settings."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from (f"{name}__{rest}" for rest in _variables(inner))
        else:
            yield name


def _config_file() -> Path | None:
    named = os.environ.get(CONFIG_VARIABLE)
    if named is None:
        return DEFAULT_CONFIG if DEFAULT_CONFIG.is_file() else None
    path = Path(named)
    if not path.is_file():
        raise InvalidConfiguration(f"{CONFIG_VARIABLE} names {named}, which is not a file")
    return path


def _plain(value: object, name: str = "") -> Any:
    match value:
        case BaseModel():
            return {inner: _plain(getattr(value, inner), inner) for inner in type(value).model_fields}
        case Mapping():
            return {inner: _plain(held) for inner, held in value.items()}
        case SecretStr():
            text = value.get_secret_value()
            return text if not text or (name == "url" and not _holds_secret(text)) else MASK
        case Path():
            return str(value)
        case tuple():
            return MASK if any(isinstance(held, str) and _holds_secret(held) for held in value) else list(value)
        case str():
            return MASK if _holds_secret(value) else value
        case _:
            return value


def _holds_secret(text: str) -> bool:
    """Whether this is a URL that may hold a password: before its host, or in its query."""
    _, separator, rest = text.partition("://")
    return bool(separator) and ("@" in rest or _SECRET_PARAMETER.search(rest) is not None)
