"""Define the routes for health and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from boundarymorph.access.callers import Forbidden, Scope, Unauthenticated, is_loopback
from boundarymorph.access.limits import Access
from boundarymorph.api.dependencies import AccessOf, ServiceOf
from boundarymorph.api.openapi import CachedBytes
from boundarymorph.api.schemas import Health, Ready
from boundarymorph.telemetry import metrics

router = APIRouter(tags=["operations"])


@router.get("/livez", summary="Is the process alive?")
async def livez() -> Health:
    """Answer as soon as the process listens."""
    return Health(status="ok")


@router.get("/health", include_in_schema=False)
@router.get("/readyz", summary="Can it serve?", responses={503: {"model": Ready, "description": "Not now"}})
async def readyz(request: Request, service: ServiceOf, access: AccessOf, response: Response) -> Ready:
    """Return whether the process can serve: with 200 if it can, else with 503.

    It can from the time when its models are loaded until it begins to stop, while each part behind it answers its
    probes. A gateway whose scorer is unavailable is not ready, but still answers requests with what it has.

    No key is needed. Details, which name hosts and paths, are shown only to keys of scope `admin` or, if there are no
    keys, to callers on the same machine.
    """
    ready = service.health()
    if ready.status != "ok":
        response.status_code = 503
    return ready if _may_read_details(request, access) else _without_details(ready)


def _without_details(ready: Ready) -> Ready:
    away = [name for name, part in ready.parts.items() if part.status == "away"]
    parts = {name: part.model_copy(update={"detail": None}) for name, part in ready.parts.items()}
    detail = f"no answer from: {', '.join(away)}" if ready.status == "unready" else None
    return Ready(status=ready.status, detail=detail, parts=parts)


def _may_read_details(request: Request, access: Access) -> bool:
    if access.keys:
        return _has(Scope.ADMIN, request, access)
    return request.client is not None and is_loopback(request.client.host)


def _has(scope: Scope, request: Request, access: Access) -> bool:
    """Return whether the request has a key of this scope, or the service has no keys."""
    try:
        access.keys.caller(request.headers.get("authorization")).restrict(scope)
    except (Unauthenticated, Forbidden):
        return False
    return True


@router.get("/metrics", summary="Prometheus metrics", response_class=Response)
async def prometheus(request: Request, access: AccessOf) -> Response:
    """Return the metrics in Prometheus's text format.

    No key is needed. The names of keys are shown only to keys of scope `metrics` or `admin`; for others, the counts of
    all keys are added up.
    """
    named = any(_has(scope, request, access) for scope in (Scope.METRICS, Scope.ADMIN))
    kept: Mapping[bool, CachedBytes] = request.app.state.exposition
    return Response(await kept[named].get(), media_type=CONTENT_TYPE_LATEST)


def install(app: FastAPI, seconds: float) -> None:
    """Let an application render its metrics at most once per this many seconds."""
    app.state.exposition = {
        named: CachedBytes(partial(metrics.exposition, named=named), seconds) for named in (True, False)
    }
