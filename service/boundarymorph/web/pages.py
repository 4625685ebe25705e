"""The pages /playground and /docs."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources.abc import Traversable
from pathlib import Path

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

from boundarymorph.errors import NotInstalled
from boundarymorph.settings import Settings
from boundarymorph.web.files import STATIC, StaticFile

PAGE = "index.html"
CHARTS = ("uPlot.iife.min.js", "uPlot.min.css")
SWAGGER_CARRIER = "fastapi-swagger"
SWAGGER_UI = ("swagger-ui-bundle.js", "swagger-ui.css")  # in a package that follows each release of it


def playground(settings: Settings) -> APIRouter:
    """Return the routes of the playground, to which / leads; none if the settings turn it off."""
    if not settings.playground:
        return APIRouter()
    routes = APIRouter(include_in_schema=False)
    routes.include_router(_page("playground", tuple(STATIC / "vendor" / name for name in CHARTS)))

    async def entrance() -> Response:
        return RedirectResponse("playground")

    routes.add_api_route("/", entrance)
    return routes


def docs() -> APIRouter:
    """Return the routes of the page with the API description. Without Swagger UI's files it says what is missing."""
    try:
        carrier = distribution(SWAGGER_CARRIER)
        files = tuple(Path(str(carrier.locate_file(f"fastapi_swagger/resources/{name}"))) for name in SWAGGER_UI)
        return _page("docs", files)
    except (PackageNotFoundError, FileNotFoundError):
        return _missing("docs", f"/docs needs the package {SWAGGER_CARRIER}; /openapi.json has the same description")


def _missing(name: str, why: str) -> APIRouter:
    """Return the route of a page that cannot be shown."""
    routes = APIRouter(include_in_schema=False)

    async def missing() -> Response:
        raise NotInstalled(why)

    routes.add_api_route(f"/{name}", missing)
    return routes


@cache
def _page(name: str, others: tuple[Traversable, ...]) -> APIRouter:
    """Return the routes of a page at /NAME, with the files of its folder and others below it."""
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
