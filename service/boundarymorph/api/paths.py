"""The routes at a path, and the nearest one to a path that has none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import lru_cache
from http import HTTPMethod

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

LONGEST = 100  # characters of a path that is compared
KEPT = 1_000  # comparisons
_POLICY = re.compile("^/p/[^/]+(?=/)")


def methods_at(request: Request) -> list[str]:
    """Return the methods of all routes at the path of a request."""
    return [
        method
        for method in HTTPMethod
        if any(
            route.matches({**request.scope, "method": "GET" if method == "HEAD" else str(method)})[0] is Match.FULL
            for route in request.app.router.routes
        )
    ]


def nearest(request: Request) -> str | None:
    """Return the path of the route that is most like the one of a request, if any is."""
    known = tuple(dict.fromkeys(route.path_format for route in _described(request.app.router.routes)))
    return _nearest(request.scope["path"][:LONGEST], known)


def _described(routes: Sequence[BaseRoute]) -> list[APIRoute]:
    return [route for route in routes if isinstance(route, APIRoute) and route.include_in_schema]


@lru_cache(KEPT)
def _nearest(path: str, known: tuple[str, ...]) -> str | None:
    found = get_close_matches(_POLICY.sub("", path.lower()), known, n=1)
    return found[0] if found else None


class WithSlash:
    """ASGI middleware that answers a path with a slash at its end as the path without, if only that has a route.

    Not for DELETE: some clients resolve /indexes/a/documents/.. to /indexes/a/ and would delete the index.
    """

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute]) -> None:
        self._app, self._routes = app, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].endswith("/") and scope["method"] != "DELETE":
            without = {**scope, "path": scope["path"].removesuffix("/")}
            if not self._has(scope) and self._has(without):
                scope["path"] = without["path"]
        await self._app(scope, receive, send)

    def _has(self, scope: Scope) -> bool:
        return any(route.matches(scope)[0] is not Match.NONE for route in self._routes)
