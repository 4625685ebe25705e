"""How a scorer's address is spelt."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, urlsplit

import httpx

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.scoring.remote.dialects import BOUNDARYMORPH, FOREIGN, Dialect

SPELLINGS = "http(s)://HOST:PORT for a BoundaryMORPH scorer, " + ", ".join(f"{name}://" for name in FOREIGN)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server and how it is spoken to.

    base: scheme, host, port and path prefix, without a slash at the end; model: the one that is wanted there, or None
    for the one that it serves.
    """

    dialect: Dialect
    base: str
    model: str | None = None


def parse(url: str) -> Endpoint:
    """Read `SCHEME://HOST:PORT/PREFIX?model=NAME`.

    `http` and `https` are scorers of this service; `tei`, `vllm` and `infinity` are servers of that kind over plain
    HTTP, `cohere` and `jina` the hosted services over TLS. `+http` or `+https` after one of the five says otherwise.

    Raises InvalidConfiguration, whose message repeats no password.
    """
    parts = _split(url)
    dialect, transport = _scheme(parts)
    base = _base(parts, dialect, transport)
    model = _model(parts)
    if model is None and dialect.needs_model:
        raise InvalidConfiguration(f"{dialect.name} needs the name of a model: {parts.scheme}://...?model=NAME")
    return Endpoint(dialect, base, model)


def _split(url: str) -> SplitResult:
    if any(character.isspace() or not character.isprintable() for character in url):
        raise InvalidConfiguration("the URL of a scorer contains white space or control characters")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise InvalidConfiguration("the URL of a scorer has a malformed host or port") from error
    if "@" in parts.netloc:
        raise InvalidConfiguration("the URL of a scorer carries credentials; set the key apart from it")
    if parts.fragment or url.endswith("#"):
        raise InvalidConfiguration("the URL of a scorer has no use for a fragment")
    return parts


def _scheme(parts: SplitResult) -> tuple[Dialect, str]:
    if parts.scheme in ("http", "https"):
        return BOUNDARYMORPH, parts.scheme
    name, plus, transport = parts.scheme.partition("+")
    if name not in FOREIGN or (plus and transport not in ("http", "https")):
        raise InvalidConfiguration(f"'{parts.scheme}' is no kind of scorer; there are {SPELLINGS}")
    return FOREIGN[name], transport or ("https" if FOREIGN[name].home else "http")


def _base(parts: SplitResult, dialect: Dialect, transport: str) -> str:
    prefix = parts.path.rstrip("/")
    if not parts.hostname:
        if dialect.home and transport == "https" and not prefix and not parts.netloc:
            return dialect.home
        raise InvalidConfiguration(f"the URL of a scorer needs a host: {parts.scheme}://HOST:PORT")
    version, _, route = dialect.score_path.strip("/").rpartition("/")
    for ending in filter(None, (version, route)):
        if prefix.endswith(f"/{ending}"):
            raise InvalidConfiguration(f"leave /{ending} off the URL of a scorer; {dialect.score_path} is added to it")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = "" if parts.port is None else f":{parts.port}"
    base = f"{transport}://{host}{port}{prefix}"
    try:
        httpx.URL(base)
    except httpx.InvalidURL as error:
        raise InvalidConfiguration(f"{base} is no address: {error}") from error
    return base


def _model(parts: SplitResult) -> str | None:
    model = None
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        if key != "model":
            raise InvalidConfiguration(f"the URL of a scorer takes ?model=NAME, not '{key}'")
        if not value or model is not None:
            raise InvalidConfiguration("the URL of a scorer names its model once: ?model=NAME")
        model = value
    return model
