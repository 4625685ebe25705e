"""`boundarymorph select`: makes one selection in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from boundarymorph.cli import source as sources
from boundarymorph.cli.common import DataDirectory, console, json_object, parts
from boundarymorph.settings import Settings

Method = Annotated[str | None, typer.Option(help="trend, or boundarymorph: the paper's.", show_default="trend")]
Spend = Annotated[str, typer.Option(help="If every document fits: order makes calls for their order, set makes none.")]
Filter = Annotated[
    str | None, typer.Option(help='Only documents whose metadata match it, as JSON: {"year": {"gte": 2020}}.')
]


Queries = Annotated[
    Path | None,
    typer.Option(
        callback=sources.checked, help="Instead: a file of queries: one a line, ID<tab>TEXT, or JSON; - for stdin."
    ),
]


def select(
    index: Annotated[str, typer.Argument(help="Index to take the candidates from.")],
    query: Annotated[str | None, typer.Argument(help="The information need, in plain words.")] = None,
    also: Annotated[list[str] | None, typer.Option(help="A further query for the same set and budget.")] = None,
    queries: Queries = None,
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="For --queries: a file for the answers, which is continued.")
    ] = None,
    budget: Annotated[str | None, typer.Option("--budget", "-B", help='Calls, or "auto".', show_default="50")] = None,
    k: Annotated[int | None, typer.Option("-k", help="Documents to return.", show_default="50")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Return up to this many tokens, instead of k.")] = None,
    min_relevance: Annotated[float | None, typer.Option(help="Only what likely scores at least this, up to k.")] = None,
    distinct: Annotated[str | None, typer.Option(help='Few of one text or field: "text", "page", or JSON.')] = None,
    diversity: Annotated[float, typer.Option(help="0 to 1: how much documents should differ.")] = 0.0,
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
    """Select documents from an index in this process, without a running service.

    With --queries and --out it makes a selection for each query of a file, at the lowest priority, and writes the
    answers as lines of JSON. Run it again with the same options to go on where it stopped.
    """
    settings = Settings.load(data_directory=data_directory)
    given = {
        "budget": _number(budget),
        "k": k,
        "max_tokens": max_tokens,
        "min_relevance": min_relevance,
        "distinct": json_object("--distinct", distinct) if distinct and distinct.startswith("{") else distinct,
        "diversity": diversity,
        "depth": depth,
        "batch_size": _number(batch_size),
        "method": method,
        "spend": spend,
        "filter": None if filter is None else json_object("--filter", filter),
        "hybrid": hybrid,
        "instruction": instruction,
    }
    options = {"index": index, **{name: value for name, value in given.items() if value is not None}}
    if query is not None and queries is None and out is None:
        asked = {"queries": [query, *also]} if also else {"query": query}
        _one(settings, {**asked, "return_documents": not as_json, **options}, calibration, as_json=as_json)
    elif query is None and not also and queries is not None and out is not None:
        _many(settings, queries, out, options, calibration)
    else:
        raise typer.BadParameter("give a query, or --queries and --out")


def _one(settings: Settings, given: Mapping[str, Any], calibration: str | None, *, as_json: bool) -> None:
    from boundarymorph.access.calibrations import Calibrations
    from boundarymorph.access.keys import Caller
    from boundarymorph.api.select_answers import SelectResponse
    from boundarymorph.api.select_schemas import SelectRequest
    from boundarymorph.api.translate import response_of, task_of
    from boundarymorph.cli import terminal

    request = SelectRequest.model_validate(given)
    task_of(request, settings, time.monotonic())  # reports an exceeded limit before any model is loaded

    async def answer() -> SelectResponse:
        async with parts(settings) as built:
            calibrations = Calibrations(settings.calibration.keys)
            chosen = await calibrations.of(calibration, Caller(""), built.retriever, request.index)
            task = replace(task_of(request, settings, time.monotonic()), calibration=chosen)
            return response_of(await built.selector.select(task), task)

    response = asyncio.run(answer())
    if as_json:
        typer.echo(response.model_dump_json(indent=2))
    else:
        asked = [one.query for one in request.queries or ()] or [request.query or ""]
        terminal.print_selection(console, ", ".join(asked), response.model_dump())


def _many(settings: Settings, queries: Path, out: Path, options: Mapping[str, Any], calibration: str | None) -> None:
    from boundarymorph.cli import batch, terminal

    found = batch.queries(queries)  # reports a malformed line before any model is loaded
    total = len(found)
    answers = batch.Answers(out, {**options, "calibration": calibration})
    known = len(answers.done)
    batch.lowest_priority()

    async def run() -> int:
        async with parts(settings) as built:
            with terminal.progress(console) as bar:
                task = bar.add_task("selecting", total=total)
                defaults = {"on_failure": "error", **options}
                advance = partial(bar.advance, task)
                return await batch.select_all(
                    built.selector, settings, iter(found), defaults, calibration, answers, built.retriever, advance
                )

    try:
        failed = asyncio.run(run())
    finally:
        answers.close()
    console.print(f"{total} queries: {known} were done, {total - known - failed} were made now, {failed} failed: {out}")
    if failed:
        raise typer.Exit(1)


def _number(text: str | None) -> int | str | None:
    """Return the text as an int if it is a whole number; otherwise the request validates it."""
    return int(text) if text is not None and text.isdecimal() else text
