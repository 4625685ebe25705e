"""API keys: who calls, and what they may do."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from boundarymorph.errors import BoundaryMorphError, InvalidConfiguration

ANONYMOUS = "anonymous"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH = re.compile(r"[0-9a-f]{64}")


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
    """A key as it is configured: never the secret itself. sha256: of the secret, hexadecimal."""

    name: str
    scopes: frozenset[Scope]
    sha256: str

    def __str__(self) -> str:
        return f"{self.name}:{','.join(sorted(self.scopes))}:{self.sha256}"


def parse(text: str) -> Key:
    """Read `NAME:SCOPE,SCOPE:SHA256`. Raises InvalidConfiguration."""
    name, _, rest = text.partition(":")
    scopes, _, sha256 = rest.partition(":")
    known = {str(scope) for scope in Scope}
    if not _NAME.fullmatch(name) or not _HASH.fullmatch(sha256) or not scopes or not set(scopes.split(",")) <= known:
        raise InvalidConfiguration(
            f"the key {name[:64]!r} is not NAME:SCOPES:SHA256 with scopes of {', '.join(Scope)}; "
            "`boundarymorph key NAME` makes one"
        )
    return Key(name, frozenset(map(Scope, scopes.split(","))), sha256)


def make(name: str, scopes: Collection[Scope]) -> tuple[str, Key]:
    """A new secret, to be told once, and the key to be configured. Raises InvalidConfiguration."""
    secret = f"bm_{secrets.token_urlsafe(32)}"
    return secret, parse(str(Key(name, frozenset(scopes), _sha256(secret))))


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

    def caller(self, authorization: str | None, scope: Scope) -> str:
        """The name of who sends this Authorization header; anonymous where there are no keys at all.

        Raises Unauthenticated or Forbidden.
        """
        if not self._keys:
            return ANONYMOUS
        kind, _, secret = (authorization or "").partition(" ")
        if kind.lower() != "bearer" or not secret:
            raise Unauthenticated("this service wants an API key: Authorization: Bearer KEY")
        given = _sha256(secret.strip())
        # All are compared, whatever comes out, so that the time tells nothing.
        matches = [key for key in self._keys if hmac.compare_digest(key.sha256, given)]
        if not matches:
            raise Unauthenticated("this API key is not known here")
        if not any(scope in key.scopes for key in matches):
            raise Forbidden(f"the API key of {matches[0].name} is not for '{scope}'")
        return matches[0].name


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
