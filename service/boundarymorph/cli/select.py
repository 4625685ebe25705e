"""`boundarymorph select`: makes one selection in this process, or many by a service."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from boundarymorph.cli.common import DataDirectory, command_of, console, json_object, parts
from boundarymorph.settings import Settings


@dataclass(frozen=True, kw_only=True)
class SelectOptions:
    """Fields of `POST /select`, and how its answer is printed."""

    index: Annotated[str, typer.Argument(help="Index to take the candidates from.")]
    query: Annotated[str | None, typer.Argument(help="The information need, in plain words.", show_default=False)] = (
        None
    )
    queries: Annotated[
        Path | None,
        typer.Option(
            help="Make many selections, and write an answer a line: a file with a query a line, or an object with "
            "fields of POST /select and an id in place of its number.",
            exists=True,
            dir_okay=False,
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to which these are added. What it answers is not asked again: after an interruption, repeat the "
            "command.",
            show_default="standard output",
        ),
    ] = None
    url: Annotated[
        str | None,
        typer.Option(
            envvar="BOUNDARYMORPH_URL", help="Of the service that makes them.", show_default="one that is started"
        ),
    ] = None
    also: Annotated[list[str] | None, typer.Option(help="A further query for the same set and budget.")] = None
    budget: Annotated[str | None, typer.Option("--budget", "-B", help='Calls, or "auto".', show_default="50")] = None
    k: Annotated[int | None, typer.Option("-k", help="Documents to return.", show_default="50")] = None
    max_tokens: Annotated[int | None, typer.Option(help="Return up to this many tokens, instead of k.")] = None
    min_relevance: Annotated[float | None, typer.Option(help="Only what likely scores at least this, up to k.")] = None
    distinct: Annotated[str | None, typer.Option(help='Few of one text or field: "text", "page", or JSON.')] = None
    diversity: Annotated[float, typer.Option(help="0 to 1: how much documents should differ.")] = 0.0
    depth: Annotated[int | None, typer.Option("--depth", "-N", help="Candidates.", show_default="10000")] = None
    rounds: Annotated[str | None, typer.Option(help='Trips to the scorer, or "auto".', show_default="auto")] = None
    calibration: Annotated[str | None, typer.Option(help="Its name.", show_default="the index's own")] = None
    relevance: Annotated[str | None, typer.Option(help="To people, or by the scorer alone.", show_default="people")] = (
        None
    )
    method: Annotated[str | None, typer.Option(help="trend, or boundarymorph: the paper's.", show_default="trend")] = (
        None
    )
    spend: Annotated[
        str, typer.Option(help="If every document fits: order makes calls for their order, set makes none.")
    ] = "order"
    filter: Annotated[
        str | None, typer.Option(help='Only documents whose metadata match it, as JSON: {"year": {"gte": 2020}}.')
    ] = None
    hybrid: Annotated[bool, typer.Option("--hybrid", help="Rank candidates by vectors and by words together.")] = False
    instruction: Annotated[str | None, typer.Option(help="What counts, for a scorer that takes one.")] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer of POST /select.")] = False
    data_directory: DataDirectory = None

    @property
    def request(self) -> dict[str, Any]:
        """The body of the request. Raises InvalidInput for an option that is no JSON."""
        asked = {"queries": [self.query, *self.also]} if self.also else {"query": self.query}
        return asked | self.fields

    @property
    def fields(self) -> dict[str, Any]:
        """The body without what is asked. Raises InvalidInput for an option that is no JSON."""
        distinct, filter = self.distinct, self.filter
        given = {
            "index": self.index,
            "budget": _number(self.budget),
            "k": self.k,
            "max_tokens": self.max_tokens,
            "min_relevance": self.min_relevance,
            "distinct": json_object("--distinct", distinct) if distinct and distinct.startswith("{") else distinct,
            "diversity": self.diversity,
            "depth": self.depth,
            "rounds": _number(self.rounds),
            "method": self.method,
            "relevance": self.relevance,
            "spend": self.spend,
            "filter": None if filter is None else json_object("--filter", filter),
            "hybrid": self.hybrid,
            "instruction": self.instruction,
            "return_documents": not (self.as_json or self.queries),
        }
        return {name: value for name, value in given.items() if value is not None}


@command_of(SelectOptions)
def select(options: SelectOptions) -> None:
    """Select documents from an index in this process, without a running service; of many queries, with one."""
    if (options.query is None) == (options.queries is None) or (options.queries and options.also):
        raise typer.BadParameter("give a query, or a file with --queries")
    if options.out is not None and options.queries is None:
        raise typer.BadParameter("--out goes with --queries; for one query, use --json > FILE")
    if options.queries is not None:
        from boundarymorph.cli.many import select_many

        fields = options.fields | ({"calibration": options.calibration} if options.calibration else {})
        select_many(options.queries, fields, options.out, options.url, options.data_directory)
        return
    from boundarymorph.access.callers import CalibrationChoice, Caller
    from boundarymorph.api.select_answers import SelectResponse
    from boundarymorph.api.select_schemas import SelectRequest
    from boundarymorph.api.translate import response_of, task_of
    from boundarymorph.cli import terminal

    settings = Settings.load(data_directory=options.data_directory)
    request = SelectRequest.model_validate(options.request)
    task_of(request, settings, time.monotonic())  # reports an exceeded limit before any model is loaded

    async def answer() -> SelectResponse:
        async with parts(settings) as built:
            choice = CalibrationChoice(options.calibration, Caller(""))
            return response_of(await built.selector.select(task_of(request, settings, time.monotonic(), choice)))

    response = asyncio.run(answer())
    if options.as_json:
        typer.echo(response.model_dump_json(indent=2))
    else:
        queries = ", ".join([str(options.query), *(options.also or ())])
        terminal.print_selection(console, queries, response.model_dump())


def _number(text: str | None) -> int | str | None:
    """Return the text as an int if it is a whole number; otherwise the request validates it."""
    return int(text) if text is not None and text.isdecimal() else text
