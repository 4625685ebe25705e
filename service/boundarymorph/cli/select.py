"""Run `boundarymorph select`: one selection in this process, or many by a service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from boundarymorph.cli import source as sources
from boundarymorph.cli.common import DataDirectory, command_of, console, fail, json_object, new_console, option, parts
from boundarymorph.errors import InvalidInput
from boundarymorph.reading import has_content
from boundarymorph.settings import Settings

OWN = ("query", "queries", "also", "url", "as_json", "data_directory")  # options that are not fields of all requests


@dataclass(frozen=True, kw_only=True)
class SelectOptions:
    """The fields of `POST /select`, and the form in which its answer is printed."""

    index: Annotated[str, typer.Argument(help="Index to take the candidates from.")]
    query: Annotated[str | None, typer.Argument(help="The information need, in plain words.", show_default=False)] = (
        None
    )
    queries: Annotated[
        Path | None,
        sources.existing(
            "Make many selections by a service, and print an answer a line: a file with a query a line, or an object "
            "with fields of POST /select and an id in place of its number."
        ),
    ] = None
    url: Annotated[
        str | None,
        option(
            "URL of the service that makes the selections.", default="one that is started", envvar="BOUNDARYMORPH_URL"
        ),
    ] = None
    also: Annotated[list[str] | None, option("A further query for the same set and budget.")] = None
    budget: Annotated[str | None, option('Calls, or "auto".', "--budget", "-B", default="50")] = None
    k: Annotated[int | None, option("Documents to return.", "-k", default="50")] = None
    max_tokens: Annotated[int | None, option("Return up to this many tokens, instead of k.")] = None
    min_relevance: Annotated[float | None, option("Only what likely scores at least this, up to k.")] = None
    distinct: Annotated[str | None, option('Few of one text or field: "text", "page", or JSON.')] = None
    boost: Annotated[
        list[str] | None,
        option('A rule by which relevance is multiplied: {"exp": {"field": "day", "origin": "now", "scale": "30d"}}.'),
    ] = None
    diversity: Annotated[float, option("0 to 1: how much documents should differ.")] = 0.0
    depth: Annotated[int | None, option("Candidates.", "--depth", "-N", default="10000")] = None
    rounds: Annotated[str | None, option('Trips to the scorer, or "auto".', default="auto")] = None
    relevance: Annotated[
        str | None,
        option("What relevance is: human: what people are expected to find; scorer: the score alone.", default="human"),
    ] = None
    method: Annotated[str | None, option("trend, or boundarymorph: the paper's.", default="trend")] = None
    spend: Annotated[str, option("If every document fits: order makes calls for their order, set makes none.")] = (
        "order"
    )
    filter: Annotated[
        str | None, option('Only documents whose metadata match it, as JSON: {"year": {"gte": 2020}}.')
    ] = None
    hybrid: Annotated[bool, option("Rank candidates by vectors and by words together.", "--hybrid")] = False
    instruction: Annotated[str | None, option("What counts, for a scorer that takes one.")] = None
    as_json: Annotated[bool, option("Print the answer of POST /select.", "--json")] = False
    data_directory: DataDirectory = None

    @property
    def fields(self) -> dict[str, Any]:
        """Return the body of the request without the query.

        Raises:
            InvalidInput: For an option that is not JSON.
        """
        distinct, filter = self.distinct, self.filter
        given = asdict(self) | {
            "budget": _number(self.budget),
            "distinct": json_object("--distinct", distinct) if distinct and distinct.startswith("{") else distinct,
            "boost": [json_object("--boost", rule) for rule in self.boost or ()] or None,
            "rounds": _number(self.rounds),
            "filter": None if filter is None else json_object("--filter", filter),
        }
        return {name: value for name, value in given.items() if value is not None and name not in OWN}


@command_of(SelectOptions)
def select(options: SelectOptions) -> None:
    """Select documents from an index, in this process; for many queries, with a service."""
    if (options.query is None) == (options.queries is None) or (options.queries and options.also):
        raise typer.BadParameter(
            'give a query, as in `boundarymorph select INDEX "how to parse a date"`, or a file of them with --queries'
        )
    if options.queries is not None:
        select_many(options.queries, options.fields, options.url, options.data_directory)
        return
    from boundarymorph.api.select_answers import SelectResponse
    from boundarymorph.api.select_response import response_of
    from boundarymorph.api.select_schemas import SelectRequest
    from boundarymorph.api.select_task import task_of
    from boundarymorph.cli import terminal

    settings = Settings.load(data_directory=options.data_directory)
    asked = {"queries": [options.query, *options.also]} if options.also else {"query": options.query}
    request = SelectRequest.model_validate(asked | options.fields)
    task_of(request, settings, time.monotonic())  # reports an exceeded limit before any model is loaded

    async def answer() -> SelectResponse:
        async with parts(settings) as built:
            task = task_of(request, settings, time.monotonic(), window=built.scorer.max_length)
            return response_of(await built.selector.select(task))

    response = asyncio.run(answer())
    if options.as_json:
        typer.echo(response.model_dump_json(indent=2))
    else:
        queries = ", ".join([str(options.query), *(options.also or ())])
        terminal.print_selection(console, queries, response.model_dump())


def _number(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text


def select_many(path: Path, fields: Mapping[str, Any], url: str | None, data_directory: Path | None) -> None:
    """Print an answer for each query in a file.

    Args:
        path: The file with the queries.
        fields: The fields of all requests.
        url: The URL of the service; None starts one.
        data_directory: The indexes of a started service.
    """
    from boundarymorph.cli import demo, terminal

    try:
        from boundarymorph_client import BoundaryMorphError, Client
    except ModuleNotFoundError:
        fail("select --queries needs the Python client: pip install --find-links dist boundarymorph-client")
    console, failed = new_console(stderr=True), 0
    try:
        requests = list(_requests(path, fields))
        with ExitStack() as stack:
            if url is None and requests:
                folder = Settings.load(data_directory=data_directory).data_directory
                url = str(stack.enter_context(demo.service(folder)).base_url)
            client = stack.enter_context(Client(url))
            advance = stack.enter_context(terminal.steps(console, "selecting", len(requests)))
            results = stack.enter_context(closing(client.select_batch(request for _, request in requests)))
            for (id, _), result in zip(requests, results, strict=True):
                if isinstance(result, BoundaryMorphError):
                    failed += 1
                    answer: dict[str, object] = {"error": str(result)}
                else:
                    answer = {"answer": result.model_dump(mode="json", exclude_unset=True)}
                typer.echo(orjson.dumps({"id": id} | answer))
                advance(1)
    except (BoundaryMorphError, OSError, ValueError) as error:
        fail(str(error))
    if failed:
        fail(f"{failed:,} of {len(requests):,} selections failed")


def _requests(path: Path, fields: Mapping[str, Any]) -> Iterator[tuple[object, dict[str, Any]]]:
    """Yield the id, by default a number, and the request of each line.

    Raises:
        InvalidInput: For a line without a query.
    """
    for place, number, value in sources.records(path):
        request = {"id": number, **fields, **({"query": value} if isinstance(value, str) else value)}
        query = request["query"] = request.pop("queries", None) or request.get("query") or ""
        if not query or (isinstance(query, str) and not has_content(query)):
            raise InvalidInput(f"{place} has no 'query' to read; write one, or remove the line")
        yield request.pop("id"), request
