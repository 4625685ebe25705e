"""Read the addresses of servers, and identify the model at an address."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

import httpx

from boundarymorph.errors import InvalidConfiguration, InvalidInput
from boundarymorph.remote.wire import Description, Format, MalformedAnswer

_SEPARATOR = re.compile(r"[/\\]")
_ON_THE_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")  # OWNER/NAME; few paths of folders have this form
_DECODINGS = 4  # decodings of a path by a chain of proxies


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server and its wire format.

    Attributes:
        base: Scheme, host, port, and path prefix, without a trailing slash.
        model: The name of the model; None for the one that the server has.
        revision: Its revision, if the operator names it.
        activation: See `Spelling`.
    """

    format: Format
    base: str
    model: str | None = None
    revision: str | None = None
    activation: str | None = None


def identify(description: Description, endpoint: Endpoint, address: str) -> Description:
    """Return the description with a name that identifies the model and how its results are read.

    Caches use the name. It ends in the operator's revision or, without one, in a hash of `address`, the base URL of the
    first server of the model. Names of servers with a revision, of the hub and of hosted services stay as they are.

    Raises:
        MalformedAnswer: If the server has another revision than the operator's.
    """
    if endpoint.activation not in (None, "none"):
        description = replace(description, name=f"{description.name}/{endpoint.activation}")
    named, wanted = description.revision, endpoint.revision
    if named is not None:
        if wanted is not None and not (named.startswith(wanted) or wanted.startswith(named)):
            raise MalformedAnswer(
                f"it serves revision {named}, not {wanted}: give the commit, or leave the revision out"
            )
        return description
    if wanted is None:
        hosted = endpoint.base == endpoint.format.home
        if hosted or (description.weights is not None and _ON_THE_HUB.fullmatch(description.weights)):
            return description
        wanted = hashlib.sha256(address.encode()).hexdigest()[:8]
    return replace(description, name=f"{description.name}@{wanted}")


def own_url(host: str, port: int) -> str:
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - listening is not done here
    return f"http://{f'[{reachable}]' if ':' in reachable else reachable}:{port}"


def segment(text: str) -> str:
    """Return a name as one segment of a path.

    Raises:
        InvalidInput: For a part `.` or `..`, however often it is percent-encoded, because a proxy may read another
            path.
    """
    read = text
    for _ in range(_DECODINGS):
        if any(part.partition(";")[0] in (".", "..") for part in _SEPARATOR.split(read)):
            raise InvalidInput(f"the path cannot be passed on, as proxies may read it as another one: {text[:100]!r}")
        read = unquote(before := read)
        if read == before:
            return quote(text, safe="")
    raise InvalidInput(f"the path is percent-encoded too often: {text[:100]!r}")


@dataclass(frozen=True, slots=True)
class Spelling:
    """The addresses of one kind of server.

    Attributes:
        noun: The kind, with its article.
        foreign: Wire formats by scheme.
        own: The format of plain HTTP and HTTPS, if accepted.
        activations: Values of `?activation=`, which turn results into scores.
    """

    noun: str
    foreign: Mapping[str, Format]
    own: Format | None = None
    activations: tuple[str, ...] = ()


def parse(url: str, spelling: Spelling) -> Endpoint:
    """Read `SCHEME://HOST:PORT/PREFIX?model=NAME`.

    Raises:
        InvalidConfiguration: If it is malformed; the message does not contain the password.
    """
    noun = spelling.noun
    parts = _split(url, noun)
    wire_format, transport = _scheme(parts, spelling)
    base = _base(parts, wire_format, transport, noun)
    options = _options(parts, noun, ("model", "activation") if spelling.activations else ("model",))
    model, activation = options.get("model"), options.get("activation")
    if activation is not None and activation not in spelling.activations:
        raise InvalidConfiguration(f"activation is {activation!r}, not one of {', '.join(spelling.activations)}")
    if model is None and wire_format.description_path is None:
        raise InvalidConfiguration(f"{wire_format.name} needs the name of a model: {parts.scheme}://...?model=NAME")
    return Endpoint(wire_format, base, model, activation=activation)


def parse_plain(url: str, noun: str) -> str:
    """Return `http(s)://HOST:PORT/PREFIX` without the last slash.

    Raises:
        InvalidConfiguration: If it is malformed; the message does not contain the password.
    """
    parts = _split(url, noun)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise InvalidConfiguration(f"the URL of {noun} must be http://HOST:PORT or https://HOST:PORT")
    return _address(parts, parts.scheme, parts.path.rstrip("/"))


def _split(url: str, noun: str) -> SplitResult:
    if any(character.isspace() or not character.isprintable() for character in url):
        raise InvalidConfiguration(f"the URL of {noun} contains white space or control characters")
    try:
        parts = urlsplit(url)
        if parts.port == 0:
            raise ValueError("there is no port 0")
    except ValueError:
        raise InvalidConfiguration(f"the URL of {noun} has a malformed host or port") from None
    if "@" in parts.netloc:
        raise InvalidConfiguration(f"the URL of {noun} contains credentials; set the key separately")
    if parts.fragment or url.endswith("#"):
        raise InvalidConfiguration(f"the URL of {noun} must not have a fragment")
    return parts


def _scheme(parts: SplitResult, spelling: Spelling) -> tuple[Format, str]:
    if spelling.own is not None and parts.scheme in ("http", "https"):
        return spelling.own, parts.scheme
    name, plus, transport = parts.scheme.partition("+")
    if name not in spelling.foreign or (plus and transport not in ("http", "https")):
        own = [] if spelling.own is None else [f"http(s)://HOST:PORT for {spelling.noun} of this service"]
        known = ", ".join([*own, *(f"{name}://" for name in spelling.foreign)])
        raise InvalidConfiguration(f"'{parts.scheme}' is not a kind of {spelling.noun.split()[-1]}; there are {known}")
    wire_format = spelling.foreign[name]
    return wire_format, transport or ("https" if wire_format.home else "http")


def _base(parts: SplitResult, wire_format: Format, transport: str, noun: str) -> str:
    prefix = parts.path.rstrip("/")
    if not parts.hostname:
        if wire_format.home and transport == "https" and not prefix and not parts.netloc:
            return wire_format.home
        raise InvalidConfiguration(f"the URL of {noun} needs a host: {parts.scheme}://HOST:PORT")
    version, _, route = wire_format.path.strip("/").rpartition("/")
    if wire_format.version_optional:
        prefix = prefix.removesuffix(f"/{version}")
    for ending in filter(None, (version, route)):
        if prefix.endswith(f"/{ending}"):
            raise InvalidConfiguration(f"leave /{ending} off the URL of {noun}; {wire_format.path} is added to it")
    return _address(parts, transport, prefix or wire_format.prefix)


def _address(parts: SplitResult, transport: str, prefix: str) -> str:
    host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
    port = "" if parts.port is None else f":{parts.port}"
    base = f"{transport}://{host}{port}{prefix}"
    try:
        httpx.URL(base)
    except httpx.InvalidURL as error:
        raise InvalidConfiguration(f"{base} is not a valid address: {error}") from error
    return base


def _options(parts: SplitResult, noun: str, known: tuple[str, ...]) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        if key not in known:
            taken = " and ".join(f"?{name}=NAME" if name == "model" else f"?{name}=" for name in known)
            raise InvalidConfiguration(f"the URL of {noun} takes {taken}, not '{key}'")
        if not value or key in options:
            raise InvalidConfiguration(f"the URL of {noun} must name its {key} once: ?{key}=NAME")
        options[key] = value
    return options
