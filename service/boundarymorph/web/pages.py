"""/playground and /docs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import distribution
from importlib.resources.abc import Traversable
from pathlib import Path

from fastapi import APIRouter, Request, Response

from boundarymorph.settings import Settings
from boundarymorph.web.files import STATIC, StaticFile

SWAGGER_UI = ("swagger-ui-bundle.js", "swagger-ui.css")  # in a package that follows each release of it
Answer = Callable[[Request], Awaitable[Response]]


def playground(settings: Settings) -> APIRouter:
    """The page where a selection can be tried and seen; nothing where the settings say so."""
    routes = APIRouter(include_in_schema=False)
    if settings.playground:
        page, *parts = sorted((STATIC / "playground").iterdir(), key=lambda file: file.name != "index.html")
        charts = [file for file in (STATIC / "vendor").iterdir() if not file.name.endswith("LICENSE")]
        _add(routes, "/playground", page, {file.name: file for file in (*parts, *charts)})
    return routes


def docs() -> APIRouter:
    """The description of an application's API."""
    routes = APIRouter(include_in_schema=False)
    page, *parts = sorted((STATIC / "docs").iterdir(), key=lambda file: file.name != "index.html")
    carrier = distribution("fastapi-swagger")
    swagger_ui = [Path(str(carrier.locate_file(f"fastapi_swagger/resources/{name}"))) for name in SWAGGER_UI]
    _add(routes, "/docs", page, {file.name: file for file in (*parts, *swagger_ui)})
    return routes


def _add(routes: APIRouter, path: str, page: Traversable, parts: Mapping[str, Traversable]) -> None:
    routes.add_api_route(path, _answering(page), name=path.removeprefix("/"))
    for name, file in parts.items():
        routes.add_api_route(f"{path}/{name}", _answering(file))


def _answering(source: Traversable) -> Answer:
    file = StaticFile(source)

    async def answer(request: Request) -> Response:
        return file.answer(request)

    return answer
