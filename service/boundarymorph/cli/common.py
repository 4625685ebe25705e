"""What several commands share: the console, options, and error exits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import orjson
import typer
from rich.console import Console
from rich.markup import escape

from boundarymorph.errors import InvalidInput

console = Console(emoji=False)

DataDirectory = Annotated[Path | None, typer.Option(help="Where the indexes live.", show_default="data")]
Host = Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")]
LogLevel = Annotated[str | None, typer.Option(help="critical, error, warning, info or debug.", show_default="info")]


Stores = Annotated[
    list[str] | None,
    typer.Option(
        "--store",
        help="A store whose tables are indexes too: pgvector://, lancedb://, qdrant://, elasticsearch://, "
        "opensearch:// or milvus://, with NAME= before it if there are several of a kind; repeatable.",
    ),
]


def stores_of(given: list[str] | None) -> dict[str, dict[str, str]] | None:
    """Return the settings of the stores that options name. Raises InvalidInput if two have the same name."""
    stores: dict[str, dict[str, str]] = {}
    for each in given or ():
        before, _, _ = each.partition("://")
        name, equals, _ = before.partition("=")
        if name in stores:
            raise InvalidInput(f"--store: two stores are called {name!r}; give each a name, as in NAME={each}")
        stores[name] = {"url": each.removeprefix(f"{name}=") if equals else each}
    return stores or None


def fail(message: str) -> NoReturn:
    """Print a message on stderr and exit with 1."""
    stderr = Console(stderr=True, emoji=False)
    stderr.print(f"[red]error:[/red] {escape(message)}", highlight=False, soft_wrap=True)
    sys.exit(1)


def json_object(option: str, text: str) -> dict[str, Any]:
    """Parse the text of an option as a JSON object. Raises InvalidInput."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"{option} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"{option} must be a JSON object")
    return value
