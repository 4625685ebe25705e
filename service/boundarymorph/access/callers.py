"""Identify callers by API keys, and decide which pages may call and which policy applies."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import AliasChoices, BaseModel, TypeAdapter, ValidationError

from boundarymorph.errors import BoundaryMorphError, InvalidConfiguration, InvalidInput, UnknownIndex, UnknownPolicy
from boundarymorph.settings import Settings
from boundarymorph.settings.sections import Calls

if TYPE_CHECKING:  # the library has policies, and no HTTP
    from starlette.datastructures import Headers

ANONYMOUS = "anonymous"
NO_KEY = "this service needs an API key: Authorization: Bearer KEY"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH = re.compile(r"[0-9a-f]{64}")
_INDEXES = re.compile(r"(\*|[a-z0-9][a-z0-9._-]{0,63}(/[^\s,:*]{0,255})?\*?)")


class Scope(StrEnum):
    """A permission of a key.

    SELECT allows selections and reading indexes, documents, and scores. WRITE allows changing documents and creating
    indexes. ADMIN allows deleting indexes. METRICS, and ADMIN too, shows in the metrics which key did what.
    """

    SELECT = "select"
    WRITE = "write"
    ADMIN = "admin"
    METRICS = "metrics"


class Unauthenticated(BoundaryMorphError):
    """The request has no key, or an unknown one."""


class Forbidden(BoundaryMorphError):
    """The key lacks the permission."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key as configured, without the secret.

    Attributes:
        sha256: The hash of the secret, hexadecimal.
        indexes: The indexes that it may use, by name or by a prefix and `*`; empty for all.
        tenant: Keys of one tenant share scores; so do all keys without a tenant, where this is empty.
    """

    name: str
    scopes: frozenset[Scope]
    sha256: str
    indexes: tuple[str, ...] = ()
    tenant: str = ""

    def __str__(self) -> str:
        text = f"{self.name}:{','.join(sorted(self.scopes))}:{self.sha256}:{','.join(self.indexes)}:{self.tenant}"
        return text.rstrip(":")

    def is_for(self, index: str) -> bool:
        return not self.indexes or any(
            index.startswith(pattern[:-1]) if pattern.endswith("*") else index == pattern for pattern in self.indexes
        )


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request.

    Attributes:
        name: The name of its keys.
        keys: The keys with its secret; empty if the service has no keys.
    """

    name: str
    keys: tuple[Key, ...] = ()

    @property
    def tenant(self) -> str:
        return self.keys[0].tenant if self.keys else ""

    def restrict(self, scope: Scope) -> Caller:
        """Return the caller with only its keys of this scope. Raises Forbidden if there are none."""
        if not self.keys:
            return self
        keys = tuple(key for key in self.keys if scope in key.scopes)
        if not keys:
            raise Forbidden(f"the API key of {self.name} does not have the scope '{scope}'")
        return Caller(self.name, keys)

    @property
    def sees_all(self) -> bool:
        return not self.keys or any(not key.indexes for key in self.keys)

    def sees(self, index: str) -> bool:
        return not self.keys or any(key.is_for(index) for key in self.keys)

    def require(self, index: str) -> None:
        """Raise UnknownIndex for an index that the caller may not use.

        The error does not reveal whether the index exists.
        """
        if not self.sees(index):
            raise UnknownIndex(f"there is no index {index!r} for the API key of {self.name}")


def parse_key(text: str) -> Key:
    """Parse `NAME:SCOPE,SCOPE:SHA256`, which indexes and a tenant may follow.

    They follow as `:INDEX,INDEX*` or `:INDEX,INDEX*:TENANT`. The indexes of a tenant may be empty.

    Raises:
        InvalidConfiguration: If the text is malformed.
    """
    name, scopes, sha256, indexes, tenant = [*text.split(":", 4), "", "", "", ""][:5]
    colons = text.count(":")
    limited = bool(indexes) or colons == 3
    known = {str(scope) for scope in Scope}
    if not _NAME.fullmatch(name) or not _HASH.fullmatch(sha256) or not scopes or not set(scopes.split(",")) <= known:
        which = repr(name) if ":" in text and _NAME.fullmatch(name) else "(not shown, as it may be a secret)"
        raise InvalidConfiguration(
            f"the key {which} is not NAME:SCOPES:SHA256, NAME:SCOPES:SHA256:INDEXES or "
            f"NAME:SCOPES:SHA256:INDEXES:TENANT with scopes of {', '.join(Scope)}; `boundarymorph key NAME` makes one"
        )
    if colons > 3 and not _NAME.fullmatch(tenant):
        raise InvalidConfiguration(f"the key {name!r} has a tenant {tenant[:200]!r}, which is not like a key's name")
    if limited and not all(map(_INDEXES.fullmatch, indexes.split(","))):
        raise InvalidConfiguration(
            f"the key {name!r} is for indexes {indexes[:200]!r}, which must be names, or prefixes of names followed "
            "by *, separated by commas"
        )
    given = tuple(indexes.split(",")) if limited else ()
    return Key(name, frozenset(map(Scope, scopes.split(","))), sha256, given, tenant)


def make_key(name: str, scopes: Collection[Scope], indexes: Sequence[str] = (), tenant: str = "") -> tuple[str, Key]:
    """Return a new secret, to be shown once, and the key to configure.

    Raises:
        InvalidConfiguration: For a bad name, scope, index, or tenant.
    """
    secret = f"bm_{secrets.token_urlsafe(32)}"
    return secret, parse_key(str(Key(name, frozenset(scopes), _sha256(secret), tuple(indexes), tenant)))


class KeyRing:
    """All keys of a service.

    Keys with the same name belong to the same caller, so that a key can be rotated.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        """Read keys in the format of `parse_key`. Raises InvalidConfiguration."""
        self._keys = [parse_key(text) for text in keys]
        for same in ("name", "sha256"):
            tenants = {(getattr(key, same), key.tenant) for key in self._keys}
            if len(tenants) > len({getattr(key, same) for key in self._keys}):
                raise InvalidConfiguration(f"keys of one {same} have several tenants; a caller has one")

    def __bool__(self) -> bool:
        return bool(self._keys)

    @property
    def callers(self) -> set[str]:
        return {key.name for key in self._keys} or {ANONYMOUS}

    def caller(self, authorization: str | None) -> Caller:
        """Return the caller with this Authorization header, anonymous if there are no keys.

        Raises:
            Unauthenticated: If the key is missing or unknown.
        """
        if not self._keys:
            return Caller(ANONYMOUS)
        kind, _, secret = (authorization or "").partition(" ")
        if kind.lower() != "bearer" or not secret:
            raise Unauthenticated(NO_KEY)
        given = _sha256(secret.strip())
        # All keys are compared, so that the time taken reveals nothing.
        matches = [key for key in self._keys if hmac.compare_digest(key.sha256, given)]
        if not matches:
            raise Unauthenticated("this API key is not known")
        return Caller(matches[0].name, tuple(matches))


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


HERE = ("localhost", "127.0.0.1", "::1")
PRIVATE = ("localhost", "internal", "svc", "cluster.local")  # domains in which nobody can register a name
NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/octet-stream")
UNDECLARED = ("", "application/x-www-form-urlencoded")  # sent by curl and others if the user sets no type


class UnsupportedMediaType(InvalidInput):
    """The service, or the route, does not accept this content type."""


class UnsupportedEncoding(UnsupportedMediaType):
    """The body is compressed."""

    slug = UnsupportedMediaType.slug


class Origins:
    """The names that the service answers to, and the pages of other sites that may call it.

    A page that is open in a browser on this network can send requests to a service here: by its own name, if that
    resolves to the service's address (DNS rebinding), or in a form that needs no permission. That matters where there
    are no keys.

    Attributes:
        allowed: Names of hosts beside those of this machine and of private networks, which are always allowed.
            `*.example.com` allows every name under example.com, and `*` allows any name.
        with_keys: Whether callers need a key; then all names are accepted if `allowed` is empty.
    """

    def __init__(self, allowed: Sequence[str], *, with_keys: bool) -> None:
        self._allowed = tuple(name.lower() for name in allowed)
        self._any = "*" in allowed or (with_keys and not allowed)

    def check(self, headers: Headers) -> None:
        """Check the Host, Origin and Content-* headers of a request.

        Raises:
            Forbidden: For the wrong host or page.
            UnsupportedMediaType: For a compressed or non-JSON body.
        """
        origin = headers.get("origin")
        if not self._any:
            given = headers.get("host", HERE[0])  # browsers always send this header; some probes do not
            host, page = _name(f"//{given}"), _name(origin or "")
            if not (_is_private(host) or self._allows(host)):
                raise Forbidden(f"this service does not answer for the host {given[:100]!r}; add it to allowed_hosts")
            if origin is not None and not (page in (*HERE, host) or self._allows(page)):
                raise Forbidden(f"pages from {origin[:100]!r} may not call this service; add the host to allowed_hosts")
        if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
            return
        if (encoding := headers.get("content-encoding", "").strip().lower()) not in ("", "identity"):
            raise UnsupportedEncoding(
                f"the body has the content encoding {encoding[:100]!r}, which is not read here; send it as it is"
            )
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (*NDJSON, "application/json", *(UNDECLARED if origin is None else ())) and not (
            kind.startswith("application/") and kind.endswith("+json")
        ):
            raise UnsupportedMediaType(f"send the body as application/json, or documents as {NDJSON[0]}, not {kind!r}")

    def _allows(self, name: str) -> bool:
        return any(name == one or (one.startswith("*.") and name.endswith(one[1:])) for one in self._allowed)


def _name(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").removesuffix(".")
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Return whether a host, or the sender of a request, is this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_private(name: str) -> bool:
    """Return whether no other site can have this name.

    Such a name is an address, a name without dots, or one of a private domain.
    """
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return bool(name) and ("." not in name or name.endswith(tuple(f".{suffix}" for suffix in PRIVATE)))
    return True


DEFAULT_POLICY = "default"
SHOWN = 100  # characters of a name, in messages
SUFFIX: TypeAdapter[Calls] = TypeAdapter(Calls)


def share_of(share: float, count: int) -> int:
    """Return this share of `count` documents as a number of calls, rounded up."""
    return math.ceil(round(share * count, 6))


@dataclass(frozen=True, slots=True)
class Policy:
    """Fields for requests that do not set their own.

    A budget below 1 is a share of the documents in the request.
    """

    name: str = DEFAULT_POLICY
    fields: Mapping[str, Any] = field(default_factory=dict)

    def applied(self, data: object, request: type[BaseModel], documents: object) -> object:
        """Return a body, which may be malformed, with the policy's values for missing fields."""
        if not isinstance(data, dict):
            return data
        defaults = dict(self.fields)
        if isinstance(share := defaults.get("budget"), float):
            defaults["budget"] = share_of(share, len(documents)) if isinstance(documents, list) else None
        for name, info in request.model_fields.items():
            alias = info.validation_alias
            spellings = alias.choices if isinstance(alias, AliasChoices) else [name]
            if any(data.get(str(spelling)) is not None for spelling in spellings):
                defaults.pop(name, None)
        known = {name: defaults[name] for name in request.model_fields if defaults.get(name) is not None}
        return {**data, **known}


class Policies:
    def __init__(self, settings: Settings, callers: Collection[str]) -> None:
        """Read the policies of the settings.

        Args:
            settings: The settings with the policies.
            callers: The names of all keys.

        Raises:
            InvalidConfiguration: If a policy names an unknown key.
        """
        self._named = {DEFAULT_POLICY: Policy()}
        self._meant_for: dict[str, tuple[str, ...]] = {}  # by name, the keys that a policy is for
        self._of_key: dict[str, Policy] = {}
        for name, given in settings.policies.items():
            self._named[name] = Policy(name, given.model_dump(exclude={"for_keys"}, exclude_none=True))
            self._meant_for[name] = given.for_keys
            for key in given.for_keys:
                if key not in callers:
                    raise InvalidConfiguration(f"policies.{name}.for_keys: there is no key named {key!r}")
                self._of_key[key] = self._named[name]

    def names(self, caller: str) -> list[str]:
        return sorted(name for name in self._named if caller in (self._meant_for.get(name) or (caller,)))

    def resolve(self, caller: str, path: str | None = None, model: object = None) -> Policy:
        """Return the policy in the path, else `model`, else the caller's key.

        `NAME@50`, `NAME@0.2` and `NAME@auto` replace its budget.

        Raises:
            UnknownPolicy: For an unknown name in a path.
            InvalidInput: For a bad budget.
        """
        if path is not None:
            if found := self._chosen(path):
                return found
            raise UnknownPolicy(f"there is no policy {path[:SHOWN]!r}; there is {', '.join(self.names(caller))}")
        found = self._chosen(model) if isinstance(model, str) else None
        return found or self._of_key.get(caller) or self._named[DEFAULT_POLICY]

    def _chosen(self, text: str) -> Policy | None:
        name, at, budget = text.partition("@")
        policy = self._named.get(name)
        if policy is None or not at:
            return policy
        try:
            return replace(policy, fields={**policy.fields, "budget": SUFFIX.validate_python(budget)})
        except ValidationError:
            raise InvalidInput(
                f"{text[:SHOWN]!r}: after the name of a policy and @ comes a number of calls (@50), a share of the "
                "documents (@0.2) or @auto"
            ) from None
