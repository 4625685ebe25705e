"""What several commands share: the console, options, and error exits."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import orjson
import typer
from rich.console import Console
from rich.markup import escape

from boundarymorph.errors import InvalidInput
from boundarymorph.settings import Settings

if TYPE_CHECKING:
    from boundarymorph.scoring.bill import Amount
    from boundarymorph.server.composition import AllInOne, Gateway


def new_console(**options: Any) -> Console:
    """Return a console for sentences, whose lines are not broken and whose numbers and paths are not coloured."""
    return Console(emoji=False, highlight=False, soft_wrap=True, **options)


console = new_console()
PRICES = "scorer.judge.input_price and scorer.judge.output_price, of a million tokens"

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
    new_console(stderr=True).print(f"[red]error:[/red] {escape(message)}")
    sys.exit(1)


@asynccontextmanager
async def parts(settings: Settings) -> AsyncIterator[AllInOne | Gateway]:
    """Yield the parts of a service, or of a gateway to the retriever that the settings name, for one command."""
    from boundarymorph.server import composition

    built = composition.build_gateway(settings) if settings.retriever.url else composition.build(settings)
    try:
        if isinstance(built, composition.Gateway):
            await built.retriever.check()  # which tells the encoder
        yield built
    finally:
        await built.close()


def allow_cost(console: Console, done: str, pairs: int, most: Amount, *, asked: bool) -> None:
    """Say what it may cost that pairs are `done`, and ask whether to go on. Raises InvalidInput if not.

    asked: whether it was allowed beforehand.
    """
    priced = f"which cost {most.cost:,.2f}" if most.nanos else f"at a cost that is unknown without {PRICES}"
    console.print(
        f"{pairs:,} pairs are to be {done}: at most {most.tokens:,} tokens, {priced}, and likely a quarter of that"
    )
    if not asked and not (console.is_terminal and typer.confirm("Go on?")):
        raise InvalidInput(f"nothing was {done.split()[0]}: allow it with --yes, or set a ceiling with --max-cost")


def check_ceiling(settings: Settings, most_cost: float | None) -> None:
    """Raise InvalidInput for a ceiling of cost without prices, below which anything would stay."""
    if most_cost is not None and not (settings.scorer.judge.input_price or settings.scorer.judge.output_price):
        raise InvalidInput(f"--max-cost needs prices, or nothing would ever count against it: set {PRICES}")


def json_object(option: str, text: str) -> dict[str, Any]:
    """Parse the text of an option as a JSON object. Raises InvalidInput."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"{option} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"{option} must be a JSON object")
    return value
