"""Health and metrics."""

from __future__ import annotations

from fastapi import APIRouter, Response

from boundarymorph.api.dependencies import StateOf
from boundarymorph.api.schemas import Health, PartHealth, Ready
from boundarymorph.telemetry import metrics

router = APIRouter(tags=["operations"])


@router.get("/livez", summary="Is the process alive?")
async def livez() -> Health:
    """Answers as soon as the process listens."""
    return Health(status="ok")


@router.get("/readyz", summary="Can it serve?", responses={503: {"model": Ready, "description": "Not now"}})
async def readyz(state: StateOf, response: Response) -> Ready:
    """200 once the models are loaded, as long as each part behind the process answers its canaries, and until it is
    told to stop. A gateway whose scorer is away says so here, and goes on answering by what it has."""
    parts = {}
    missing = None
    if state.readiness is not None:
        missing = state.readiness.missing
        parts = {
            name: PartHealth(status="ok" if part.answers else "away", since=part.since, detail=part.detail)
            for name, part in state.readiness.parts.items()
        }
    if state.ready and not state.draining and missing is None:
        return Ready(status="ok", parts=parts)
    response.status_code = 503
    if state.failure is not None:
        return Ready(status="failed", detail=state.failure, parts=parts)
    if state.draining:
        return Ready(status="draining", detail="finishing what is under way", parts=parts)
    if state.ready:
        return Ready(status="unready", detail=missing, parts=parts)
    return Ready(status="starting", detail=state.waiting)


@router.get("/metrics", summary="Prometheus metrics", response_class=Response)
async def prometheus() -> Response:
    """The text format that Prometheus scrapes."""
    content, media_type = metrics.exposition()
    return Response(content, media_type=media_type)
