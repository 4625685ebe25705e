"""The routes of judgements: what people say of answers, to calibrate with."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from boundarymorph.access import bodies
from boundarymorph.access.bodies import bound
from boundarymorph.access.keys import Scope
from boundarymorph.api import openapi
from boundarymorph.api.dependencies import AccessOf, BuiltOf, allowed, permitted
from boundarymorph.api.schemas import Deleted, Judgments, Kept
from boundarymorph.calibration.feedback import Event
from boundarymorph.telemetry import metrics

router = APIRouter(prefix="/judgments", tags=["judgements"])
JudgingOf = Annotated[str, Depends(allowed(Scope.JUDGE))]
AdminOf = Annotated[str, Depends(allowed(Scope.ADMIN))]
Place = Annotated[str, Query(description="name of the index")]
LEAST = 1e-6  # how close to 0 or 1 a relevance is taken at its word


@router.post(
    "",
    summary="Say how relevant documents were",
    openapi_extra=openapi.body(Judgments),
    responses=openapi.problems(404, 413, 422, 503),
)
async def add(request: Request, access: AccessOf, caller: JudgingOf, parts: BuiltOf) -> Kept:
    """Keeps grades and clicks, by which `boundarymorph calibrate INDEX --update` learns. The index must exist."""
    given = await bodies.parsed(request, access, Judgments)
    permitted(request).require(given.index)
    limits = access.settings.limits
    bound("query", len(given.query), limits.query_characters, "characters")
    bound("judgments", len(given.judgments), limits.judgments, "judgements")
    await parts.selector.retriever.documents(given.index, [given.judgments[0].document])  # raises UnknownIndex
    events = [Event(given.query, one.document, one.grade, one.rank, bool(one.clicked)) for one in given.judgments]
    kept = await access.work.write.run(partial(access.feedback.add, given.index, events, caller, time.time()))
    _observe(given, access.calibrations.folder.names())
    return Kept(kept=kept)


@router.get("", summary="Count the judgements of an index", responses=openapi.problems(404, 422, 503))
async def count(request: Request, access: AccessOf, caller: JudgingOf, index: Place) -> Kept:
    """Return how many there are."""
    permitted(request).require(index)
    return Kept(kept=await access.work.read.run(access.feedback.count, index))


@router.delete("", summary="Delete judgements", responses=openapi.problems(404, 422, 503))
async def delete(
    request: Request,
    access: AccessOf,
    caller: AdminOf,
    index: Place,
    query: Annotated[str | None, Query(description="only those of this query")] = None,
) -> Deleted:
    """Delete the judgements of an index, or of one query."""
    permitted(request).require(index)
    return Deleted(deleted=await access.work.write.run(access.feedback.delete, index, query))


def _observe(given: Judgments, known: Sequence[str]) -> None:
    """Count judgements, and record how well relevance predicted grades."""
    name = given.calibration if given.calibration in known else None
    for one in given.judgments:
        metrics.judgments.labels("click" if one.grade is None else "grade").inc()
        if one.grade is not None and one.relevance is not None:
            said = min(max(one.relevance, LEAST), 1.0 - LEAST)
            metrics.judgment_log_loss.labels(name or "").observe(-math.log(said if one.grade > 0 else 1.0 - said))
