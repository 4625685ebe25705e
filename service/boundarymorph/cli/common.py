"""Provide the console, options, and error exits that several commands share."""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar, cast, get_type_hints

import orjson
import typer
from rich.console import Console
from rich.markup import escape

from boundarymorph.errors import InvalidInput
from boundarymorph.settings import Settings

if TYPE_CHECKING:
    from boundarymorph.api.lifecycle import Parts
    from boundarymorph.retrieval.remote import RemoteRetriever

Options = TypeVar("Options")


def new_console(**options: Any) -> Console:
    """Return a console that neither breaks lines nor colours numbers and paths."""
    return Console(emoji=False, highlight=False, soft_wrap=True, **options)


def option(help: str, *names: str, default: str | bool = True, **more: Any) -> Any:
    """Return an option of a command; its description shows `default` as the default."""
    return typer.Option(*names, help=help, show_default=default, **more)


console = new_console()
DataDirectory = Annotated[Path | None, option("Where the indexes live.", default="data")]
Host = Annotated[str | None, option("Address to listen on.", default="127.0.0.1")]
LogLevel = Annotated[str | None, option("critical, error, warning, info or debug.", default="info")]
Stores = Annotated[
    list[str] | None,
    typer.Option(
        "--store",
        help="A store of indexes: pgvector://, lancedb://, qdrant://, elasticsearch://, "
        "opensearch:// or milvus://, with NAME= before it if there are several of a kind; repeatable.",
    ),
]


def command_of(options: type[Options]) -> Callable[[Callable[[Options], None]], Callable[..., None]]:
    """Make a command from a function of a dataclass, whose fields become arguments and options."""

    def decorate(function: Callable[[Options], None]) -> Callable[..., None]:
        @wraps(function)
        def command(**values: Any) -> None:
            function(options(**values))

        del command.__wrapped__  # otherwise typer would read the parameters of `function`
        command.__annotations__ = get_type_hints(options, include_extras=True)
        command.__signature__ = inspect.signature(options, eval_str=True)  # type: ignore[attr-defined]
        return command

    return decorate


def stores_of(given: list[str] | None) -> dict[str, dict[str, str]] | None:
    """Return the settings of the stores that options name.

    Raises:
        InvalidInput: If two stores have the same name.
    """
    stores: dict[str, dict[str, str]] = {}
    for each in given or ():
        before, _, _ = each.partition("://")
        name, equals, _ = before.partition("=")
        if name in stores:
            raise InvalidInput(f"--store: two stores are called {name!r}; give each a name, as in NAME={each}")
        stores[name] = {"url": each.removeprefix(f"{name}=") if equals else each}
    return stores or None


def fail(message: str) -> NoReturn:
    new_console(stderr=True).print(f"[red]error:[/red] {escape(message)}")
    sys.exit(1)


@asynccontextmanager
async def parts(settings: Settings) -> AsyncIterator[Parts]:
    """Yield the parts of a service, or of a gateway to the retriever that the settings name."""
    from boundarymorph.server import composition

    built = composition.build_gateway(settings) if settings.retriever.url else composition.build(settings)
    try:
        if settings.retriever.url:
            await cast("RemoteRetriever", built.retriever).check()  # a connection tells which encoder it uses
        yield built
    finally:
        await built.close()


def json_object(option: str, text: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"{option} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"{option} must be a JSON object")
    return value
