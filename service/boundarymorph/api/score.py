"""Define the scorer's own routes: POST /score and GET /info."""

from __future__ import annotations

import time

from fastapi import APIRouter, Depends, Request, Response

from boundarymorph.access.callers import Scope
from boundarymorph.api import bodies, openapi
from boundarymorph.api.dependencies import AccessOf, ScorerOf, allowed
from boundarymorph.api.schemas import ScoreRequest, ScoreResponse, ScorerInfo
from boundarymorph.api.visit import visit_of
from boundarymorph.reading import check_bound
from boundarymorph.scoring.scorer import score_content

router = APIRouter(tags=["scoring"], dependencies=[Depends(allowed(Scope.SELECT))])


@router.post(
    "/score",
    summary="Score texts against a query",
    openapi_extra=openapi.body(ScoreRequest),
    response_model=ScoreResponse,
    responses=openapi.problems(413, 422, 429, 502, 503, 504),
)
async def score(request: Request, access: AccessOf, scorer: ScorerOf) -> Response:
    """Score all texts or none.

    A request that cannot be done in time gets 429 with Retry-After before any work. If the caller disconnects, its
    texts leave the queue.
    """
    arrival = time.monotonic()
    wanted, limits = await bodies.read_model(request, access, ScoreRequest), access.settings.limits
    check_bound("query", len(wanted.query), limits.query_characters, "characters")
    check_bound("instruction", len(wanted.instruction or ""), limits.query_characters, "characters")
    check_bound("texts", len(wanted.texts), limits.texts, "texts")
    check_bound("texts", max(map(len, wanted.texts), default=0), limits.text_characters, "characters")
    scores = await bodies.while_connected(
        request,
        score_content(
            wanted.texts,
            lambda texts: scorer.score(
                wanted.query,
                texts,
                deadline=None if wanted.deadline_ms is None else arrival + wanted.deadline_ms / 1e3,
                truncate=wanted.truncate,
                instruction=wanted.instruction,
                caller=visit_of(request).caller,
            ),
        ),
    )
    answer = ScoreResponse(model=scorer.name, scores=scores.values.tolist(), truncated=scores.truncated)
    return Response(answer.model_dump_json(), media_type="application/json")


@router.get("/info", summary="Which model, and what it takes", responses=openapi.problems(503))
async def info(access: AccessOf, scorer: ScorerOf) -> ScorerInfo:
    """Describe the scorer. Scorers with the same model name give the same scores."""
    model = scorer.model
    return ScorerInfo(
        model=model.name,
        backend=model.backend,
        max_length=model.max_length,
        max_texts=access.settings.limits.texts,
        batch_tokens=scorer.batch_tokens,
        queue_tokens=scorer.queue_tokens,
        instructed=scorer.takes_instruction,
    )
