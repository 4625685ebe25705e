"""`boundarymorph select`: makes one selection in this process."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Annotated

import typer

from boundarymorph.cli.common import DataDirectory, console, json_object
from boundarymorph.settings import Settings

Method = Annotated[str | None, typer.Option(help="trend, or boundarymorph: the paper's.", show_default="trend")]
Spend = Annotated[str, typer.Option(help="If every document fits: order makes calls for their order, set makes none.")]
Filter = Annotated[
    str | None, typer.Option(help='Only documents whose metadata match it, as JSON: {"year": {"gte": 2020}}.')
]


def select(
    index: Annotated[str, typer.Argument(help="Index to take the candidates from.")],
    query: Annotated[str, typer.Argument(help="The information need, in plain words.")],
    budget: Annotated[str | None, typer.Option("--budget", "-B", help='Calls, or "auto".', show_default="50")] = None,
    k: Annotated[int | None, typer.Option("-k", help="Documents to return.", show_default="50")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Return up to this many tokens, instead of k.")] = None,
    min_relevance: Annotated[float | None, typer.Option(help="Only what likely scores at least this, up to k.")] = None,
    distinct: Annotated[str | None, typer.Option(help='Few of one text or field: "text", "page", or JSON.')] = None,
    depth: Annotated[int | None, typer.Option("--depth", "-N", help="Candidates.", show_default="10000")] = None,
    batch_size: Annotated[str | None, typer.Option(help='Documents per round, or "auto".', show_default="auto")] = None,
    calibration: Annotated[str | None, typer.Option(help="Its name.", show_default="the index's own")] = None,
    method: Method = None,
    spend: Spend = "order",
    filter: Filter = None,
    hybrid: Annotated[bool, typer.Option("--hybrid", help="Rank candidates by vectors and by words together.")] = False,
    instruction: Annotated[str | None, typer.Option(help="What counts, for a scorer that takes one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer of POST /select.")] = False,
    data_directory: DataDirectory = None,
) -> None:
    """Select documents from an index in this process, without a running service."""
    from boundarymorph.access.calibrations import Calibrations
    from boundarymorph.api.select_schemas import SelectRequest, SelectResponse
    from boundarymorph.api.translate import response_of, task_of
    from boundarymorph.cli import terminal
    from boundarymorph.server import composition

    settings = Settings.load(data_directory=data_directory)
    given = {
        "budget": _number(budget),
        "k": k,
        "max_tokens": max_tokens,
        "min_relevance": min_relevance,
        "distinct": json_object("--distinct", distinct) if distinct and distinct.startswith("{") else distinct,
        "depth": depth,
        "batch_size": _number(batch_size),
        "method": method,
        "spend": spend,
        "filter": None if filter is None else json_object("--filter", filter),
        "hybrid": hybrid,
        "instruction": instruction,
    }
    request = SelectRequest.model_validate({"query": query, "index": index, "return_documents": not as_json, **given})

    task_of(request, settings, time.monotonic())  # reports an exceeded limit before any model is loaded

    async def answer() -> SelectResponse:
        built = composition.build_gateway(settings) if settings.retriever.url else composition.build(settings)
        try:
            chosen = Calibrations(settings).of(calibration, "", index)
            task = replace(task_of(request, settings, time.monotonic()), calibration=chosen)
            return response_of(await built.selector.select(task), task)
        finally:
            await built.close()

    response = asyncio.run(answer())
    if as_json:
        typer.echo(response.model_dump_json(indent=2))
    else:
        terminal.print_selection(console, query, response.model_dump())


def _number(text: str | None) -> int | str | None:
    """Return the text as an int if it is a whole number; otherwise the request validates it."""
    return int(text) if text is not None and text.isdecimal() else text
