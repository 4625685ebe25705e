"""Pairs that are worth judging."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from boundarymorph.cli.common import new_console, parts
from boundarymorph.settings import Settings


@dataclass(frozen=True)
class Plan:
    """What a command is to do. name: of the calibration; index: whose, or None for pools; requests: of `/select` by
    query; budget: calls to find the best of a query; gain: what is learned."""

    name: str
    index: str | None
    requests: Mapping[str, Mapping[str, Any]]
    budget: int
    gain: Literal["relevant", "grade"]


async def pairs(plan: Plan, settings: Settings, count: int) -> list[dict[str, str | None]]:
    """Pairs worth judging, at most `count` a query, with title and text."""
    from boundarymorph.api.select_schemas import SelectRequest
    from boundarymorph.api.translate import task_of
    from boundarymorph.cli import terminal
    from boundarymorph.selector.judging import Judging

    found: list[dict[str, str | None]] = []
    doing = f"finding pairs to judge, at most {plan.budget:,} calls a query; queries"
    async with parts(settings) as built:
        judging = Judging(built.selector, built.retriever, built.scorer)
        with terminal.steps(new_console(stderr=True), doing, len(plan.requests)) as advance:
            for number, (query, request) in enumerate(plan.requests.items()):
                wanted = SelectRequest.model_validate({**request, "budget": plan.budget})
                task = task_of(wanted, settings, time.monotonic())
                for document in await judging.suggest(task, count, seed=number):
                    pair = {"query": query, "document": document.id, "title": document.title, "text": document.text}
                    found.append(pair)
                advance(1)
    return found
