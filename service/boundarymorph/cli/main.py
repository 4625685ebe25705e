"""The command line: `boundarymorph serve | retriever | scorer | index | select | mcp | top | evaluate | demo | ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from boundarymorph import __version__
from boundarymorph.cli import index as index_commands
from boundarymorph.cli import ray, serve
from boundarymorph.cli.calibrate import calibrate
from boundarymorph.cli.check import check
from boundarymorph.cli.common import DataDirectory, console, fail
from boundarymorph.cli.mcp import mcp
from boundarymorph.cli.select import select
from boundarymorph.cli.top import top
from boundarymorph.errors import BoundaryMorphError
from boundarymorph.settings import Settings, mistakes
from boundarymorph.settings.dump import to_toml

CallSeconds = Annotated[
    float | None,
    typer.Option(min=0, help="Time of one call, for the latency table.", show_default="as in the table"),
]
ChatUrl = Annotated[
    str | None, typer.Option(help="OpenAI-compatible URL: adds the agentic loop; needs --data or --texts.")
]
ScorerUrls = Annotated[
    list[str] | None,
    typer.Option(help="URL of the scorer for --data, as --scorer-url of serve.", show_default="the embedded model"),
]
Calibrate = Annotated[
    int | None,
    typer.Option(
        min=3, help="Calibrate by the grades of so many queries of each table, and report the others with and without."
    ),
]
WriteTable = Annotated[
    Path | None,
    typer.Option(dir_okay=False, help="Where the table made from --data goes.", show_default="OUT/NAME.npz"),
]
Data = Annotated[
    str | None, typer.Option(help="A BEIR folder or ir_datasets:ID, scored once with the embedded models.")
]
Methods = Annotated[
    str,
    typer.Option(
        help="Names or groups: baselines, product, ablations, kernels; NAME@5 runs rounds of 5, NAME@auto growing."
    ),
]
EvaluatedIndex = Annotated[
    str | None, typer.Option("--index", help="Instead: an index with its vectors; needs --judgments.")
]
EvaluatedJudgments = Annotated[
    Path | None, typer.Option("--judgments", help="What calibrate reads and writes: query, document, grade.")
]
Splits = Annotated[int, typer.Option("--calibrate-splits", min=1, help="How often, each time with other queries.")]
MostCost = Annotated[
    float | None, typer.Option(min=0, help="The most that a language model may cost, by scorer.judge's prices.")
]

app = typer.Typer(
    help="Budgeted reranking: spend B cross-encoder calls where they change which k documents are returned.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(serve.serve)
app.command()(serve.scorer)
retriever_app = typer.Typer(callback=serve.retriever, invoke_without_command=True)
retriever_app.command()(check)
app.add_typer(retriever_app, name="retriever")
app.command()(ray.ray)


@app.command()
def key(
    name: Annotated[str, typer.Argument(help="Who it is for.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="select, write, admin or metrics; repeatable.", show_default="select")
    ] = None,
    index: Annotated[
        list[str] | None,
        typer.Option(help="Index that the key may use, or a prefix and *; repeatable.", show_default="all"),
    ] = None,
    tenant: Annotated[
        str, typer.Option(help="Share known scores only with the keys of this tenant.", show_default="none")
    ] = "",
) -> None:
    """Make an API key: prints the secret, once, and the line for the setting `keys`."""
    from boundarymorph.access import keys

    scopes = scope or ["select"]
    unknown = set(scopes) - set(keys.Scope)
    if unknown:
        fail(f"there is no scope {', '.join(sorted(unknown))}; there are {', '.join(keys.Scope)}")
    secret, made = keys.make(name, [keys.Scope(value) for value in scopes], index or [], tenant)
    typer.echo(f"secret  {secret}\nkeys    {made}")


app.add_typer(index_commands.app, name="index")
app.command()(select)
app.command()(calibrate)
app.command()(mcp)
app.command()(top)


@app.command()
def config() -> None:
    """Print the settings in force as a configuration file. Secrets are replaced by comments."""
    typer.echo(to_toml(Settings.load()), nl=False)


@app.command()
def openapi() -> None:
    """Print the OpenAPI document of a service with API keys."""
    import json

    from boundarymorph.access import keys
    from boundarymorph.server.app import create_app

    _, key = keys.make("anyone", list(keys.Scope))
    typer.echo(json.dumps(create_app(Settings.load(keys=(str(key),))).openapi(), indent=2, ensure_ascii=False))


@app.command()
def demo(
    query: Annotated[
        str | None, typer.Option(help="What to look for.", show_default="work with dates, times and time zones")
    ] = None,
    budget: Annotated[int, typer.Option("--budget", "-B", min=0, help="Cross-encoder calls.")] = 50,
    k: Annotated[int, typer.Option("-k", min=1, help="Documents to return.")] = 50,
    multilingual: Annotated[
        bool, typer.Option("--multilingual", help="A German query, with models that are downloaded; needs torch.")
    ] = False,
    data_directory: DataDirectory = None,
) -> None:
    """Start a service, index the docstrings of Python's standard library, and select from them over HTTP."""
    from boundarymorph.cli import demo as demonstration

    run = demonstration.run_multilingual if multilingual else demonstration.run
    asked = query or (demonstration.GERMAN if multilingual else demonstration.QUERY)
    run(console, Settings.load(data_directory=data_directory), asked, budget, k)


@app.command()
def evaluate(
    table: Annotated[
        list[Path] | None, typer.Option(exists=True, dir_okay=False, help="Pools with known scores (.npz); repeatable.")
    ] = None,
    texts: Annotated[list[str] | None, typer.Option(help="Texts of tables, named as --data; repeatable.")] = None,
    data: Data = None,
    index: EvaluatedIndex = None,
    judgments: EvaluatedJudgments = None,
    methods: Methods = "baselines,product",
    budgets: Annotated[str, typer.Option("--budgets", "-B", help="Cross-encoder calls a query.")] = "25,50",
    k: Annotated[str, typer.Option("--k", "-k", help="Sizes of the chosen set.")] = "50,100,200",
    out: Annotated[Path, typer.Option(file_okay=False, help="Where the report goes.")] = Path("build/evaluation"),
    write_table: WriteTable = None,
    depth: Annotated[int, typer.Option("--depth", "-N", min=2, help="Candidates a query, with --data.")] = 2_000,
    queries: Annotated[int | None, typer.Option(min=1, help="Use only the first so many of each collection.")] = None,
    scorer: ScorerUrls = None,
    max_cost: MostCost = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before a language model costs money.")] = False,
    call_seconds: CallSeconds = None,
    jobs: Annotated[int, typer.Option(min=1, help="Queries at a time, a process each.")] = 1,
    chat_url: ChatUrl = None,
    chat_model: Annotated[str, typer.Option(help="Name of the model at that URL.")] = "default",
    chat_key: Annotated[str | None, typer.Option(envvar="BOUNDARYMORPH_CHAT_KEY", help="Its API key.")] = None,
    calibrate: Calibrate = None,
    splits: Splits = 10,
) -> None:
    """Compare selectors on pools with known scores. Writes a report with tables and plots, and summary.json."""
    try:
        from boundarymorph.cli import evaluate as evaluate_command
        from boundarymorph.evaluation.methods.agentic import Chat
    except ModuleNotFoundError as error:
        fail(f"evaluate needs {error.name}: pip install 'boundarymorph[evaluation]'")

    evaluation = evaluate_command.Evaluation(
        tables=table or [],
        texts=texts or [],
        data=data,
        index=index,
        judgments=judgments,
        methods=[name.strip() for name in methods.split(",") if name.strip()],
        budgets=evaluate_command.with_numbers(budgets, "--budgets"),
        ks=evaluate_command.with_numbers(k, "--k"),
        out=out,
        write_table=write_table,
        depth=depth,
        queries=queries,
        call_seconds=call_seconds,
        jobs=jobs,
        scorer=scorer or [],
        max_cost=max_cost,
        yes=yes,
        chat=Chat(chat_url, chat_model, api_key=chat_key) if chat_url else None,
        calibrate=calibrate,
        splits=splits,
    )
    evaluate_command.evaluate(evaluation, console)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    """Run the command line. An error that a user can act on becomes one line on stderr and exit code 1."""
    try:
        app(prog_name="boundarymorph")
    except BoundaryMorphError as error:
        fail(str(error))
    except ValidationError as error:
        fail(mistakes(error))
