"""Which names a service answers to, and which web pages may call it.

A page of another site that somebody opens in a browser on this machine or network can send requests to a service here:
with its own name, if it lets that name resolve to the service's address (DNS rebinding), or to the service's name, in a
form that needs no permission of the service. It cannot read an API key, so this matters where there are none.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from boundarymorph.access.keys import Forbidden
from boundarymorph.errors import InvalidInput

HERE = ("localhost", "127.0.0.1", "::1")
PRIVATE = ("localhost", "internal", "svc", "cluster.local")  # nobody can register a name that ends in one of these
NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/octet-stream")
UNDECLARED = ("", "application/x-www-form-urlencoded")  # as curl and others send a body whose type nobody has named


class UnsupportedMediaType(InvalidInput):
    """The service, or the route, does not accept this content type."""


class Origins:
    """allowed: names besides those of this machine and of private networks, `*.` before one for all under it, `*` for
    any. with_keys: whether callers need a key; then all names are accepted if `allowed` is empty."""

    def __init__(self, allowed: Sequence[str], *, with_keys: bool) -> None:
        self._allowed = tuple(name.lower() for name in allowed)
        self._any = "*" in allowed or (with_keys and not allowed)

    def check(self, headers: Headers) -> None:
        """Raises Forbidden for the wrong host, or a page of another site, and UnsupportedMediaType for a body that is
        neither JSON nor NDJSON."""
        origin = headers.get("origin")
        if not self._any:
            given = headers.get("host", HERE[0])  # browsers always send one, some probes do not
            host, page = _name(f"//{given}"), _name(origin or "")
            if not (_is_private(host) or self._allows(host)):
                raise Forbidden(f"this service does not answer for the host {given[:100]!r}; add it to allowed_hosts")
            if origin is not None and not (page in (*HERE, host) or self._allows(page)):
                raise Forbidden(f"pages from {origin[:100]!r} may not call this service; add the host to allowed_hosts")
        if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
            return
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (*NDJSON, "application/json", *(UNDECLARED if origin is None else ())) and not (
            kind.startswith("application/") and kind.endswith("+json")
        ):
            raise UnsupportedMediaType(f"send the body as application/json, or documents as {NDJSON[0]}, not {kind!r}")

    def _allows(self, name: str) -> bool:
        return any(name == one or (one.startswith("*.") and name.endswith(one[1:])) for one in self._allowed)


def _name(url: str) -> str:
    """Return the host of a URL; empty if it has none."""
    try:
        return (urlsplit(url).hostname or "").removesuffix(".")
    except ValueError:
        return ""


def _is_private(name: str) -> bool:
    """Whether no other site can have this name: an address, a name without dots, or one of a private domain."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return bool(name) and ("." not in name or name.endswith(tuple(f".{suffix}" for suffix in PRIVATE)))
    return True
