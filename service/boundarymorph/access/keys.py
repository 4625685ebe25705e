"""API keys: who calls, and what they may do."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from boundarymorph.errors import BoundaryMorphError, InvalidConfiguration, UnknownIndex

ANONYMOUS = "anonymous"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH = re.compile(r"[0-9a-f]{64}")
_INDEXES = re.compile(r"(\*|[a-z0-9][a-z0-9._-]{0,63}\*?)")


class Scope(StrEnum):
    """What a key is for. SELECT reads: selections, indexes, documents, scores; WRITE changes documents and makes
    indexes; ADMIN deletes indexes."""

    SELECT = "select"
    WRITE = "write"
    ADMIN = "admin"


class Unauthenticated(BoundaryMorphError):
    """There is no key, or none that is known."""

    slug = "unauthenticated"


class Forbidden(BoundaryMorphError):
    """The key is not for this."""

    slug = "forbidden"


@dataclass(frozen=True, slots=True)
class Key:
    """A key as it is configured: never the secret itself.

    sha256: of the secret, hexadecimal. indexes: names of the indexes that it is for, or beginnings of names followed by
    `*`; empty for all indexes.
    """

    name: str
    scopes: frozenset[Scope]
    sha256: str
    indexes: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.name}:{','.join(sorted(self.scopes))}:{self.sha256}"
        return f"{text}:{','.join(self.indexes)}" if self.indexes else text

    def is_for(self, index: str) -> bool:
        """Whether it may use an index of this name, be there one or not."""
        return not self.indexes or any(
            index.startswith(pattern[:-1]) if pattern.endswith("*") else index == pattern for pattern in self.indexes
        )


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request. keys: those that the secret is of; empty where the service has no keys."""

    name: str
    keys: tuple[Key, ...] = ()

    def within(self, scope: Scope) -> Caller:
        """The caller with those keys alone that have this scope. Raises Forbidden if there are none."""
        if not self.keys:
            return self
        keys = tuple(key for key in self.keys if scope in key.scopes)
        if not keys:
            raise Forbidden(f"the API key of {self.name} is not for '{scope}'")
        return Caller(self.name, keys)

    @property
    def sees_all(self) -> bool:
        """Whether it may use every index."""
        return not self.keys or any(not key.indexes for key in self.keys)

    def sees(self, index: str) -> bool:
        """Whether it may use an index of this name, be there one or not."""
        return not self.keys or any(key.is_for(index) for key in self.keys)

    def require(self, index: str) -> None:
        """Raises UnknownIndex for an index that it may not use, which does not reveal whether there is one."""
        if not self.sees(index):
            raise UnknownIndex(f"there is no index {index!r} for the API key of {self.name}")


def parse(text: str) -> Key:
    """Read `NAME:SCOPE,SCOPE:SHA256` or `NAME:SCOPE,SCOPE:SHA256:INDEX,INDEX*`. Raises InvalidConfiguration."""
    name, scopes, sha256, indexes = [*text.split(":", 3), "", "", ""][:4]
    limited = text.count(":") > 2
    known = {str(scope) for scope in Scope}
    if not _NAME.fullmatch(name) or not _HASH.fullmatch(sha256) or not scopes or not set(scopes.split(",")) <= known:
        raise InvalidConfiguration(
            f"the key {name[:64]!r} is not NAME:SCOPES:SHA256 or NAME:SCOPES:SHA256:INDEXES with scopes of "
            f"{', '.join(Scope)}; `boundarymorph key NAME` makes one"
        )
    if limited and not all(map(_INDEXES.fullmatch, indexes.split(","))):
        raise InvalidConfiguration(
            f"the key {name!r} is for indexes {indexes[:200]!r}, which are not names, or beginnings of names followed "
            "by *, separated by commas"
        )
    return Key(name, frozenset(map(Scope, scopes.split(","))), sha256, tuple(indexes.split(",")) if limited else ())


def make(name: str, scopes: Collection[Scope], indexes: Sequence[str] = ()) -> tuple[str, Key]:
    """A new secret, to be shown once, and the key to be configured. Raises InvalidConfiguration."""
    secret = f"bm_{secrets.token_urlsafe(32)}"
    return secret, parse(str(Key(name, frozenset(scopes), _sha256(secret), tuple(indexes))))


class KeyRing:
    """All keys of a service. Several of one name are the same caller, so that one can follow another."""

    def __init__(self, keys: Sequence[str]) -> None:
        """keys: as `parse` reads them. Raises InvalidConfiguration."""
        self._keys = [parse(text) for text in keys]

    def __bool__(self) -> bool:
        return bool(self._keys)

    @property
    def callers(self) -> set[str]:
        """All names that `caller` may give."""
        return {key.name for key in self._keys} or {ANONYMOUS}

    def caller(self, authorization: str | None) -> Caller:
        """Who sends this Authorization header; anonymous where there are no keys at all. Raises Unauthenticated."""
        if not self._keys:
            return Caller(ANONYMOUS)
        kind, _, secret = (authorization or "").partition(" ")
        if kind.lower() != "bearer" or not secret:
            raise Unauthenticated("this service wants an API key: Authorization: Bearer KEY")
        given = _sha256(secret.strip())
        # All are compared, whatever the result, so that the time reveals nothing.
        matches = [key for key in self._keys if hmac.compare_digest(key.sha256, given)]
        if not matches:
            raise Unauthenticated("this API key is not known here")
        return Caller(matches[0].name, tuple(matches))


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
