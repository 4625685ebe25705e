"""Health and metrics."""

from __future__ import annotations

from fastapi import APIRouter, Response

from boundarymorph.api.schemas import Health
from boundarymorph.api.state import StateOf
from boundarymorph.telemetry import metrics

router = APIRouter(tags=["operations"])


@router.get("/livez", summary="Is the process alive?")
async def livez() -> Health:
    """Answers as soon as the process listens."""
    return Health(status="ok")


@router.get("/readyz", summary="Can it serve?", responses={503: {"model": Health, "description": "Not yet"}})
async def readyz(state: StateOf, response: Response) -> Health:
    """200 once the models are loaded and a canary has gone through each of them, until it is told to stop."""
    if state.ready and not state.draining:
        return Health(status="ok")
    response.status_code = 503
    if state.failure is not None:
        return Health(status="failed", detail=state.failure)
    if state.draining:
        return Health(status="draining", detail="finishing what is under way")
    return Health(status="starting", detail=state.waiting)


@router.get("/metrics", summary="Prometheus metrics", response_class=Response)
async def prometheus() -> Response:
    """The text format that Prometheus scrapes."""
    content, media_type = metrics.exposition()
    return Response(content, media_type=media_type)
