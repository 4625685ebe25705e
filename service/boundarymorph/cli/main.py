"""Define the commands `boundarymorph serve`, `index`, `select`, `evaluate` and others."""

from __future__ import annotations

import inspect
import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer
from pydantic import ValidationError

from boundarymorph import __version__
from boundarymorph.cli import index as index_commands
from boundarymorph.cli import serve
from boundarymorph.cli.calibrate import calibrate
from boundarymorph.cli.common import DataDirectory, console, fail, option
from boundarymorph.cli.mcp import mcp
from boundarymorph.cli.select import select
from boundarymorph.errors import BoundaryMorphError, UnknownIndex, missing_package
from boundarymorph.settings import Settings, mistakes

app = typer.Typer(
    help="Budgeted reranking: spend B cross-encoder calls where they change which k documents are returned.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(serve.serve)
app.command()(serve.scorer)
app.command()(serve.retriever)


@app.command()
def key(
    name: Annotated[str, typer.Argument(help="Who it is for.")],
    scope: Annotated[list[str] | None, option("select, write, admin or metrics; repeatable.", default="select")] = None,
    index: Annotated[
        list[str] | None, option("Index that the key may use, or a prefix and *; repeatable.", default="all")
    ] = None,
    tenant: Annotated[str, option("Share known scores only with the keys of this tenant.", default="none")] = "",
) -> None:
    """Make an API key: print the secret, once, and the line for the setting `keys`."""
    from boundarymorph.access import callers

    scopes = scope or ["select"]
    unknown = set(scopes) - set(callers.Scope)
    if unknown:
        fail(f"there is no scope {', '.join(sorted(unknown))}; there are {', '.join(callers.Scope)}")
    secret, made = callers.make_key(name, [callers.Scope(value) for value in scopes], index or [], tenant)
    typer.echo(f"secret  {secret}\nkeys    {made}")


app.add_typer(index_commands.app, name="index")
app.command()(select)
app.command()(calibrate)
app.command()(mcp)


@app.command()
def config(
    describe: Annotated[bool, typer.Option(help="Print a boundarymorph.toml that describes every setting.")] = False,
) -> None:
    """Print the settings in force as JSON, without secrets."""
    from boundarymorph.settings.template import template

    typer.echo(template() if describe else Settings.load().shown(), nl=not describe)


@app.command()
def openapi() -> None:
    """Print the OpenAPI document of a service with API keys."""
    import json

    from boundarymorph.access import callers
    from boundarymorph.server.app import create_app

    _, key = callers.make_key("anyone", list(callers.Scope))
    typer.echo(json.dumps(create_app(Settings.load(keys=(str(key),))).openapi(), indent=2, ensure_ascii=False))


@app.command()
def demo(
    query: Annotated[str | None, option("What to look for.", default="work with dates, times and time zones")] = None,
    budget: Annotated[int, option("Cross-encoder calls.", "--budget", "-B", min=0)] = 50,
    k: Annotated[int, option("Documents to return.", "-k", min=1)] = 50,
    data_directory: DataDirectory = None,
) -> None:
    """Start a service, index the docstrings of Python's standard library, and select from them."""
    from boundarymorph.cli import demo as demonstration

    settings = Settings.load(data_directory=data_directory)
    demonstration.run(console, settings, query or demonstration.QUERY, budget, k)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def evaluate() -> None:
    """Compare selectors on pools with known scores. Needs the extra `evaluation`."""
    fail(missing_package("evaluate", "boundarymorph-evaluation", "evaluation"))


# Packages beside this one bring commands of their own. The last command of a name is the one that runs.
for _found in entry_points(group="boundarymorph.commands"):
    app.command(name=_found.name)(_found.load())


def _version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, option("Print the version and exit.", "--version", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def _unwrap(commands: typer.Typer) -> None:
    """Join the lines of the commands' descriptions, so that a terminal can break them."""
    for command in commands.registered_commands:
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


_unwrap(app)
_unwrap(index_commands.app)


def main() -> None:
    """Run the command line.

    An error that a user can act on becomes one line on standard error and exit code 1.
    """
    encoding = sys.getfilesystemencoding()
    if encoding != "utf-8" and any(any("\ud800" <= letter <= "\udfff" for letter in given) for given in sys.argv):
        fail(f"an argument is not text in the encoding of this locale, {encoding}: set PYTHONUTF8=1 or LANG=C.UTF-8")
    try:
        app(prog_name="boundarymorph")
    except UnknownIndex as error:
        fail(f"{error}; `boundarymorph index list` shows the indexes")
    except BoundaryMorphError as error:
        fail(str(error))
    except ValidationError as error:
        fail(mistakes(error))
