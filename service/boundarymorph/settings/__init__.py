"""Read the configuration once, from the environment and from a TOML file that it names."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_origin

import orjson
from pydantic import BaseModel, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from boundarymorph import reading
from boundarymorph.errors import InvalidConfiguration, InvalidInput
from boundarymorph.selection import methods
from boundarymorph.settings.sections import SERVICE as SERVICE
from boundarymorph.settings.sections import UNLIMITED as UNLIMITED
from boundarymorph.settings.sections import AgentSettings as AgentSettings
from boundarymorph.settings.sections import AttachedTable as AttachedTable
from boundarymorph.settings.sections import CacheSettings as CacheSettings
from boundarymorph.settings.sections import EncoderSettings as EncoderSettings
from boundarymorph.settings.sections import Hosts, Keys, PolicySettings, RelevanceKind, RerankSettings
from boundarymorph.settings.sections import JudgeSettings as JudgeSettings
from boundarymorph.settings.sections import Limits as Limits
from boundarymorph.settings.sections import ModelSettings as ModelSettings
from boundarymorph.settings.sections import RateLimitSettings as RateLimitSettings
from boundarymorph.settings.sections import RetrieverSettings as RetrieverSettings
from boundarymorph.settings.sections import ScorerSettings as ScorerSettings
from boundarymorph.settings.sections import StoreSettings as StoreSettings
from boundarymorph.settings.sections import TraceSettings as TraceSettings
from boundarymorph.settings.sections import header_key as header_key
from boundarymorph.settings.sections import secret as secret

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

PREFIX = "BOUNDARYMORPH_"
CONFIG_VARIABLE = "BOUNDARYMORPH_CONFIG"
CLIENT_VARIABLES = ("BOUNDARYMORPH_URL", "BOUNDARYMORPH_API_KEY")
OTHER_VARIABLES = (CONFIG_VARIABLE, *CLIENT_VARIABLES)  # variables that are not settings
# Kubernetes sets these in every pod for a Service whose name begins with "boundarymorph".
SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)", re.IGNORECASE)
SERVICE_LINK_URL = re.compile(r"(tcp|udp|sctp)://")
DEFAULT_CONFIG = Path("boundarymorph.toml")


def unknown_variables(settings: type[BaseModel]) -> list[str]:
    """Return a message for each variable that has the prefix but is not a setting."""
    known = dict(_variables(settings))
    mappings = tuple(
        f"{name}__" for name, kind in known.items() if get_origin(kind) is dict
    )  # mappings whose keys the user chooses
    found = []
    for variable, value in sorted(os.environ.items()):
        prefix, name = variable[: len(PREFIX)].upper(), variable[len(PREFIX) :].upper()
        if prefix != PREFIX or prefix + name in OTHER_VARIABLES or name in known or name.startswith(mappings):
            continue
        if SERVICE_LINK.fullmatch(variable) or SERVICE_LINK_URL.match(value):
            continue
        near = get_close_matches(name, known, n=1, cutoff=0.7)
        hint = f"; did you mean {PREFIX}{near[0]}?" if near else "; `boundarymorph config` lists the settings"
        found.append(f"there is no setting {variable}{hint}")
    return found


def _variables(model: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    """Yield the names of all variables, without the prefix, and the types of their values."""
    for field, info in model.model_fields.items():
        yield field.upper(), info.annotation
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from ((f"{field.upper()}__{name}", kind) for name, kind in _variables(info.annotation))


def config_file() -> Path | None:
    """Return the file that CONFIG_VARIABLE names, or DEFAULT_CONFIG if it exists.

    Raises:
        InvalidConfiguration: If the named file does not exist.
    """
    named = os.environ.get(CONFIG_VARIABLE)
    if named is None:
        return DEFAULT_CONFIG if DEFAULT_CONFIG.is_file() else None
    path = Path(named)
    if not path.is_file():
        raise InvalidConfiguration(f"{CONFIG_VARIABLE} names {named}, which is not a file")
    return path


class TomlFile(TomlConfigSettingsSource):
    """A file of settings, with or without a byte order mark.

    Raises InvalidConfiguration if it is not UTF-8.
    """

    def _read_file(self, file_path: Path | Traversable) -> dict[str, Any]:
        try:
            text = reading.without_byte_order_mark(file_path.read_bytes(), "the file")
            if (wrong := reading.complaint(text)) is not None:
                raise InvalidInput(wrong)
        except InvalidInput as error:
            raise InvalidConfiguration(f"bad settings: {file_path}: {error}") from None
        return tomllib.loads(text.decode())


SESSIONS, SESSIONS_A_CORE = 64, 4
DEFAULTS_WITHIN = {  # setting: the limit that it must not exceed
    "budget": "budget",
    "k": "k",
    "depth": "pool",
    "rounds": "rounds",
    "deadline_seconds": "deadline_seconds",
}
MASKED = str(SecretStr("any"))  # as pydantic writes each secret
_KEY = re.compile(r"[^:]+:[^:]+:[0-9a-f]{64}(:[^:]*)?")  # a key with a hash; anything else may be the secret itself
_CREDENTIALS = re.compile(  # in a URL: before its host, or in its query
    r"[A-Za-z][A-Za-z0-9+.-]*:/.*@|://.*[?&][^=&]*(?i:pass|key|token|secret|auth|sig)[^=&]*="
)


class Settings(BaseSettings):
    """Every setting of the service.

    Environment variables (BOUNDARYMORPH_PORT, BOUNDARYMORPH_LIMITS__BUDGET) override the TOML file that
    BOUNDARYMORPH_CONFIG names, by default boundarymorph.toml in the working directory.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, validate_default=True
    )

    host: str = Field("127.0.0.1", description="The address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="The port to listen on. 0 takes a free one.")
    data_directory: Path = Field(Path("data"), description="The folder of the indexes, on a local disk.")
    threads: int | None = Field(
        None, ge=1, description="The threads of each model. If unset, as many as there are cores."
    )
    search_device: str = Field(
        "cpu",
        pattern=r"^(cpu|faiss(:\d+)?)$",
        description="The device that searches: `cpu`, or `faiss` or `faiss:N` for FAISS on a GPU.",
    )
    search_threads: int = Field(16, ge=1, description="The threads that search indexes.")
    open_indexes: int = Field(32, ge=1, description="The most local indexes whose files and vectors are kept open.")
    max_length: int = Field(512, ge=8, le=512, description="The most tokens that the embedded models read.")
    log_level: Literal["critical", "error", "warning", "info", "debug"] = Field(
        "info", description='The least severe level that is logged: "critical", "error", "warning", "info", or "debug".'
    )
    budget: int = Field(50, ge=0, description="The default of B, the most cross-encoder calls of a request.")
    k: int = Field(50, ge=1, description="The default of k, the number of documents in an answer.")
    depth: int = Field(10_000, ge=1, description="The default of N, the number of candidates from an index.")
    rounds: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description='The default of the most requests to the scorer. "auto" is 3 for a fixed budget.'
    )
    deadline_seconds: float = Field(60.0, gt=0, description="The default of the time of a selection.")
    body_seconds: float = Field(
        60.0, gt=0, description="The longest time to receive a body, except for a streamed upload."
    )
    body_pause_seconds: float = Field(60.0, gt=0, description="The longest pause in the body of a streamed upload.")
    head_seconds: float = Field(10.0, gt=0, description="The longest time to receive the request line and the headers.")
    keep_alive_seconds: float = Field(
        75.0,
        gt=0,
        description="The time after which an idle connection is closed. It must be longer than in the load balancer.",
    )
    event_seconds: float = Field(
        30.0,
        gt=0,
        description="The longest time for which a client may read nothing of its answer before it is disconnected.",
    )
    method: str = Field(
        methods.DEFAULT,
        description='The default of the selection method: "trend", or the one of the paper, "boundarymorph".',
    )
    relevance: RelevanceKind = Field(
        "human",
        description='The default of the kind of relevance: "human" for the judgement of people, "scorer" for the score '
        "alone.",
    )
    vectors: Literal["lexical", "encoder"] = Field(
        "lexical",
        description='The default of the way to make vectors for a pool without embeddings: "lexical" or "encoder".',
    )
    auto_budget: int = Field(200, ge=0, description='The largest budget of a request whose budget is "auto".')
    auto_settle: float = Field(
        0.01, gt=0, lt=1, description='The expected loss at which a selection with the budget "auto" stops.'
    )
    negligible: float = Field(
        0.01,
        ge=0,
        lt=1,
        description="The share of the best document's relevance below which `max_tokens` leaves documents out.",
    )
    encoder: EncoderSettings = Field(default_factory=EncoderSettings)
    retriever: RetrieverSettings = Field(default_factory=RetrieverSettings)
    stores: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")], StoreSettings] = Field(
        default_factory=dict, description="Stores whose tables are indexes, by name."
    )
    index_store: str | None = Field(None, description="The store that holds new indexes. If unset, it is this machine.")
    scorer: ScorerSettings = Field(default_factory=ScorerSettings)
    rerank: RerankSettings = Field(default_factory=RerankSettings)
    policies: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")], PolicySettings] = Field(
        default_factory=dict,
        description='Defaults of requests by name. "default" applies to all requests that choose no other policy.',
    )
    keys: Keys = Field(
        (),
        description="The keys of callers, NAME:SCOPES:SHA256 or NAME:SCOPES:SHA256:INDEXES, as `boundarymorph key` "
        "prints them.",
    )
    without_keys: bool = Field(False, description="Whether to serve without keys on an address that others can reach.")
    allowed_hosts: Hosts = Field(
        (),
        description='The hostnames that web pages may use to call the service: "search.example.org", '
        '"*.example.org", or "*" for any. Names of this machine and of private networks are always allowed. If this is '
        "unset and there are keys, any name is allowed.",
    )
    public_url: str | None = Field(
        None,
        pattern=r"^https?://",
        description="The URL under which callers reach the service, with a proxy's path, for links to documents and "
        "/openapi.json. If unset, it is the address of each request.",
    )
    log_format: Literal["text", "json"] = Field(
        "text", description='The format of log lines on standard error: "text", or "json" for an object per line.'
    )
    cache: CacheSettings = Field(default_factory=CacheSettings)
    calibration: Path | None = Field(
        None, description="A file of `boundarymorph calibrate --pools`. Relevance in pools is then a probability."
    )
    rate_limits: RateLimitSettings = Field(default_factory=RateLimitSettings)
    metrics_seconds: float = Field(1.0, ge=0, description="The age up to which an answer of /metrics is used again.")
    ready_interval_seconds: float = Field(
        10.0, gt=0, description="The time between probes of the parts behind /readyz."
    )
    playground: bool = Field(True, description="Whether to serve /playground, a page for trying selections.")
    agents: AgentSettings = Field(default_factory=AgentSettings)
    traces: TraceSettings = Field(default_factory=TraceSettings)
    drain_seconds: float = Field(
        0.0, ge=0, description="The time after SIGTERM in which the service is not ready but still accepts requests."
    )
    grace_seconds: int = Field(30, ge=1, description="The time after that for running requests to finish.")
    limits: Limits = Field(default_factory=Limits)

    @model_validator(mode="after")
    def _one_place_for_indexes(self) -> Self:
        if self.retriever.url and self.stores:
            raise ValueError("give retriever.url or stores, not both: a retriever has stores of its own")
        if self.index_store is not None and self.index_store not in self.stores:
            raise ValueError(f"index_store {self.index_store!r} is not in stores; add it there, or name another")
        return self

    @model_validator(mode="after")
    def _policies_within_limits(self) -> Self:
        keys = [key for policy in self.policies.values() for key in policy.for_keys]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"policies: {key!r} is in for_keys of several; a key has one policy")
        named = {f"policies.{name}": policy.budget for name, policy in self.policies.items()}
        for name, budget in {"rerank": self.rerank.budget, **named}.items():
            if isinstance(budget, int) and budget > self.limits.budget:
                raise ValueError(f"{name}.budget is {budget:,}, over limits.budget")
        return self

    @model_validator(mode="after")
    def _defaults_within_limits(self) -> Self:
        if self.method not in methods.METHODS:
            raise ValueError(f"method is {self.method!r}, not one of {', '.join(methods.METHODS)}")
        for name, limit in DEFAULTS_WITHIN.items():
            default, most = getattr(self, name), getattr(self.limits, limit)
            if default != "auto" and default > most:
                raise ValueError(f"{name} is {default:,}, over limits.{limit}, which is {most:,}")
        return self

    def shown(self) -> str:
        values = _without_secrets(self.model_dump(mode="json"))
        return orjson.dumps(values, option=orjson.OPT_INDENT_2).decode()

    @property
    def sessions(self) -> int:
        """Concurrent selections in one process. On a few cores, more of them only delay each other."""
        if self.limits.sessions is not None:
            return self.limits.sessions
        if self.scorer.url or self.scorer.model is not None:
            return SESSIONS
        cores = self.threads or os.cpu_count() or 1
        return SESSIONS_A_CORE * cores

    @property
    def counters_url(self) -> str | None:
        """URL of the Redis where processes count together, or None if each counts for itself."""
        return secret(self.rate_limits.url or self.cache.url)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlFile(settings_cls, config_file())

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Read the settings; overrides that are None are ignored.

        Raises:
            InvalidConfiguration: With each mistake, including any BOUNDARYMORPH_* variable that is not a setting.
        """
        if unknown := unknown_variables(cls):
            raise InvalidConfiguration(f"bad settings: {'; '.join(unknown)}")
        try:
            return cls(**{name: value for name, value in overrides.items() if value is not None})
        except ValidationError as error:
            raise InvalidConfiguration(f"bad settings: {mistakes(error)}") from None
        except TOMLDecodeError as error:
            raise InvalidConfiguration(f"bad settings: {config_file()}: {error}") from None
        except (ValueError, OSError) as error:  # a variable with malformed JSON, a file that cannot be read
            raise InvalidConfiguration(f"bad settings: {error}") from None


def _without_secrets(value: Any, name: str = "") -> Any:
    """Return plain data with MASKED in place of possible secrets."""
    match value:
        case dict() if name == "body" and value:  # sent to a language model
            return MASKED
        case dict():
            return {inner: _without_secrets(held, inner) for inner, held in value.items()}
        case list():
            return [_without_secrets(held, name) for held in value]
        case str() if _CREDENTIALS.search(value) or (name == "keys" and not _KEY.fullmatch(value)):
            return MASKED
    return value


def mistakes(error: ValidationError) -> str:
    return "; ".join(
        ": ".join([*filter(None, [".".join(map(str, detail["loc"]))]), reading.mistake_message(detail, error.title)])
        for detail in error.errors()
    )
