"""Serve /playground and /docs, with headers that let the browser load nothing else."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

from boundarymorph.errors import NotInstalled
from boundarymorph.settings import Settings

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
    """A file that is read once; a browser that has it already receives 304."""

    def __init__(self, source: Traversable) -> None:
        """Read the file. Raises OSError, and KeyError for a type that is not in TYPES."""
        self._content = source.read_bytes()
        self._type = TYPES[PurePosixPath(source.name).suffix]
        self._tag = f'W/"{hashlib.sha256(self._content).hexdigest()[:32]}"'  # weak: equal for each encoding

    def answer(self, request: Request) -> Response:
        headers = {**SECURITY, "ETag": self._tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == self._tag:
            return Response(status_code=304, headers=headers)
        return Response(self._content, media_type=self._type, headers=headers)


PAGE = "index.html"
SWAGGER_CARRIER = "fastapi-swagger"
SWAGGER_UI = ("swagger-ui-bundle.js", "swagger-ui.css")  # from a package that follows each release of Swagger UI


def playground(settings: Settings) -> APIRouter:
    """Return the routes of the playground, to which / leads, or none if it is turned off."""
    if not settings.playground:
        return APIRouter()
    routes = APIRouter(include_in_schema=False)
    routes.include_router(_page("playground"))

    async def entrance() -> Response:
        return RedirectResponse("playground")

    routes.add_api_route("/", entrance)
    return routes


def docs() -> APIRouter:
    """Return the routes of the page with the API description.

    Without Swagger UI's files, the page names the missing package.
    """
    try:
        carrier = distribution(SWAGGER_CARRIER)
        files = tuple(Path(str(carrier.locate_file(f"fastapi_swagger/resources/{name}"))) for name in SWAGGER_UI)
        return _page("docs", (STATIC / "playground" / "icon.svg", *files))
    except (PackageNotFoundError, FileNotFoundError):
        routes = APIRouter(include_in_schema=False)

    async def missing() -> Response:
        raise NotInstalled(f"/docs needs the package {SWAGGER_CARRIER}; /openapi.json has the same description")

    routes.add_api_route("/docs", missing)
    return routes


@cache
def _page(name: str, others: tuple[Traversable, ...] = ()) -> APIRouter:
    """Return the routes of a page at /NAME, and below it its folder's and other files."""
    files = {source.name: StaticFile(source) for source in (*(STATIC / name).iterdir(), *others)}
    page = files.pop(PAGE)
    routes = APIRouter(include_in_schema=False)

    async def whole(request: Request) -> Response:
        return page.answer(request)

    async def part(request: Request, file: str) -> Response:
        if file not in files:
            raise HTTPException(404)
        return files[file].answer(request)

    async def with_slash() -> Response:
        return RedirectResponse(f"../{name}")

    routes.add_api_route(f"/{name}", whole, name=name)
    routes.add_api_route(f"/{name}/", with_slash)
    routes.add_api_route(f"/{name}/{{file}}", part)
    return routes
