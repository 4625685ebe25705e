"""Many selections by a service, whose answers are written as lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import typer

from boundarymorph import reading
from boundarymorph.cli import demo, terminal
from boundarymorph.cli.common import fail, new_console
from boundarymorph.errors import InvalidInput
from boundarymorph.settings import Settings

NO_CLIENT = "select --queries needs the Python client: pip install boundarymorph-client"


def select_many(
    path: Path, fields: Mapping[str, Any], kept: Path | None, url: str | None, data_directory: Path | None
) -> None:
    """Write an answer for each query in a file that has none.

    fields: of all requests; kept: the file of answers, None for standard output; url: of the service, None to start
    one. Exits with 1, before anything is asked, for a file with a mistake.
    """
    try:
        from boundarymorph_client import BoundaryMorphError, Client
        from boundarymorph_client.batches import answered
    except ModuleNotFoundError:
        fail(NO_CLIENT)
    console = new_console(stderr=True)
    try:
        there = answered(kept) if kept is not None else set()
        left = sum(request["id"] not in there for request in _requests(path, fields))
        problems = again = 0
        with ExitStack() as stack:
            if url is None and left:
                folder = Settings.load(data_directory=data_directory).data_directory
                url = str(stack.enter_context(demo.service(folder)).base_url)
            client = stack.enter_context(Client(url))
            advance = stack.enter_context(terminal.steps(console, "selecting", left))
            for answer in stack.enter_context(closing(client.select_batch(_requests(path, fields), kept=kept))):
                if kept is None:
                    typer.echo(answer.model_dump_json(exclude_unset=True))
                problems += answer.problem is not None
                again += not answer.is_final
                advance(1)
    except (BoundaryMorphError, OSError, ValueError) as error:
        fail(str(error))
    console.print(f"{left:,} answers, {problems:,} of them problems; {len(there):,} were there")
    if again:
        fail(f"{again:,} problems may pass: repeat the command" + (" with --out" if kept is None else ""))


def _requests(path: Path, fields: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the requests, whose ids are the numbers of their lines where they have none.

    Raises InvalidInput, naming the line, for one that asks nothing, and for an id of two lines or of another kind.
    """
    places: dict[str | int, str] = {}
    with reading.opened_path(path) as stream:
        for place, number, value in reading.records(stream, str(path)):
            given = {"query": value} if isinstance(value, str) else value
            asked = {"id": number, **fields, **given}
            query, id = asked.get("query") or "", asked["id"]
            if not asked.get("queries") and isinstance(query, str) and not reading.has_content(query):
                raise InvalidInput(f"{place} has no 'query' to read; write one, or remove the line")
            if type(id) not in (str, int):
                raise InvalidInput(f"{place} has the id {id!r}; make it a text or a whole number")
            if id in places:
                raise InvalidInput(f"{place} has the id {id!r} of {places[id]}; give each line its own, or none")
            places[id] = place
            yield asked
