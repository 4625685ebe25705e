"""`boundarymorph select`: makes one selection in this process."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from boundarymorph.cli.common import DataDirectory, command_of, console, json_object, parts
from boundarymorph.settings import Settings


@dataclass(frozen=True, kw_only=True)
class SelectOptions:
    """Fields of `POST /select`, and how its answer is printed."""

    index: Annotated[str, typer.Argument(help="Index to take the candidates from.")]
    query: Annotated[str, typer.Argument(help="The information need, in plain words.")]
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
            "return_documents": not self.as_json,
        }
        asked = {"queries": [self.query, *self.also]} if self.also else {"query": self.query}
        return asked | {name: value for name, value in given.items() if value is not None}


@command_of(SelectOptions)
def select(options: SelectOptions) -> None:
    """Select documents from an index in this process, without a running service."""
    from boundarymorph.access.calibrations import Calibrations
    from boundarymorph.access.keys import Caller
    from boundarymorph.api.select_answers import SelectResponse
    from boundarymorph.api.select_schemas import SelectRequest
    from boundarymorph.api.translate import distinct_by_default, response_of, task_of
    from boundarymorph.cli import terminal

    settings = Settings.load(data_directory=options.data_directory)
    request = SelectRequest.model_validate(options.request)
    task_of(request, settings, time.monotonic())  # reports an exceeded limit before any model is loaded

    async def answer() -> SelectResponse:
        async with parts(settings) as built:
            calibrations = Calibrations(settings.calibration.keys)
            chosen, field = await calibrations.of(options.calibration, Caller(""), built.retriever, request.index)
            task = replace(task_of(request, settings, time.monotonic()), calibration=chosen)
            task = distinct_by_default(task, request, field)
            return response_of(await built.selector.select(task), task)

    response = asyncio.run(answer())
    if options.as_json:
        typer.echo(response.model_dump_json(indent=2))
    else:
        queries = ", ".join([options.query, *(options.also or ())])
        terminal.print_selection(console, queries, response.model_dump())


def _number(text: str | None) -> int | str | None:
    """Return the text as an int if it is a whole number; otherwise the request validates it."""
    return int(text) if text is not None and text.isdecimal() else text
