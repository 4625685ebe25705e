"""The static files of a page, with headers that let the browser load nothing else."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

from fastapi import Request, Response

STATIC = files(__package__) / "static"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}
SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class StaticFile:
    """A file that is read once. A browser that has it already gets 304."""

    def __init__(self, source: Traversable) -> None:
        """Raises KeyError for a type that is not in TYPES, and OSError."""
        self._content = source.read_bytes()
        self._type = TYPES[PurePosixPath(source.name).suffix]
        self._tag = f'"{hashlib.sha256(self._content).hexdigest()[:32]}"'

    def answer(self, request: Request) -> Response:
        """Return the response to a GET."""
        headers = {**SECURITY, "ETag": self._tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == self._tag:
            return Response(status_code=304, headers=headers)
        return Response(self._content, media_type=self._type, headers=headers)
