"""The command line: `boundarymorph serve | retriever | scorer | index | select | evaluate | config | demo | ...`."""

from __future__ import annotations

import asyncio
import gzip
import sys
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NoReturn, cast

import orjson
import typer
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from boundarymorph import __version__
from boundarymorph.errors import BoundaryMorphError, InvalidConfiguration, InvalidInput
from boundarymorph.settings import Settings, mistakes, toml

if TYPE_CHECKING:
    from boundarymorph.retrieval.catalog import IndexCatalog
    from boundarymorph.retrieval.encoders import Encoder
    from boundarymorph.retrieval.indexes import Catalog
    from boundarymorph.scoring.scorer import Scorer

app = typer.Typer(
    help="Budgeted reranking: spend B cross-encoder calls where they change which k documents are returned.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
index = typer.Typer(
    help="Build, list and delete indexes: those of this machine, or in Milvus where milvus.url is set. A running "
    "service sees every change."
)
app.add_typer(index, name="index", no_args_is_help=True)
console = Console(emoji=False)
SCORER_PORT, RETRIEVER_PORT = 8081, 8082  # so that all run on one machine

DataDirectory = Annotated[Path | None, typer.Option(help="Where the indexes live.", show_default="data")]
Host = Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")]
MilvusUrl = Annotated[
    str | None,
    typer.Option(help="Milvus that holds the indexes: http:// or a file PATH.db.", show_default="this machine"),
]
GZIP = b"\x1f\x8b"  # what such a file begins with
LogLevel = Annotated[str | None, typer.Option(help="critical, error, warning, info or debug.", show_default="info")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


def _source(path: Path) -> Path:
    """A file that is there, or - for standard input."""
    if str(path) != "-" and not path.is_file():
        raise typer.BadParameter(f"file {str(path)!r} does not exist, or is a directory")
    return path


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def serve(
    host: Host = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.", show_default="8080")] = None,
    data_directory: DataDirectory = None,
    scorer_url: Annotated[
        list[str] | None,
        typer.Option(
            help="Where a cross-encoder is: http:// of ours, tei://, vllm://, infinity://, cohere:// or jina://, with "
            "?model=NAME where one is to be named; repeatable: replicas of one model.",
            show_default="the embedded one",
        ),
    ] = None,
    retriever_url: Annotated[
        list[str] | None,
        typer.Option(
            help="Where the indexes are: http:// of `boundarymorph retriever`; repeatable: several that see the same "
            "documents.",
            show_default="this machine",
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that answer on one port.", show_default="1")] = None,
    milvus_url: MilvusUrl = None,
    log_level: LogLevel = None,
) -> None:
    """Run the service: in one process with its embedded models, or in front of a scorer and a retriever elsewhere."""
    from boundarymorph.server import process
    from boundarymorph.server.app import create_app

    settings = Settings.load(
        host=host,
        port=port,
        data_directory=data_directory,
        scorer={"url": tuple(scorer_url)} if scorer_url else None,
        retriever={"url": tuple(retriever_url)} if retriever_url else None,
        milvus={"url": milvus_url} if milvus_url else None,
        workers=workers,
        log_level=log_level,
    )
    raise typer.Exit(process.serve(create_app, settings, "boundarymorph"))


@app.command()
def scorer(
    model: Annotated[
        str | None, typer.Option(help="Hugging Face name or folder.", show_default="the embedded one")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Commit, branch or tag of --model.", show_default="its main branch")
    ] = None,
    host: Host = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.", show_default="8081")] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, bf16, fp16 or int8.", show_default="bf16 on a GPU, else fp32")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or cuda:N.", show_default="cuda if there is one")
    ] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens of a pair.", show_default="the model's own")] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Template of a causal reranker, where its name does not tell.")
    ] = None,
    instruction: Annotated[str | None, typer.Option(help="What a causal reranker is told to judge by.")] = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Tokens of a batch.", show_default="by the device")] = None,
    queue_tokens: Annotated[int | None, typer.Option(help="Tokens that may wait.", show_default="1000000")] = None,
    log_level: LogLevel = None,
) -> None:
    """Serve one cross-encoder over HTTP, for `serve --scorer-url`."""
    from boundarymorph.server import process
    from boundarymorph.server.app import create_scorer_app

    options = {
        "model": model,
        "revision": revision,
        "precision": precision,
        "device": device,
        "max_length": max_length,
        "prompt": prompt,
        "instruction": instruction,
        "batch_tokens": batch_tokens,
        "queue_tokens": queue_tokens,
    }
    chosen = {name: value for name, value in options.items() if value is not None}
    settings = Settings.load(host=host, port=port, log_level=log_level, scorer=chosen or None)
    if "port" not in settings.model_fields_set:
        settings = settings.model_copy(update={"port": SCORER_PORT})
    raise typer.Exit(process.serve(create_scorer_app, settings, "boundarymorph-scorer"))


@app.command()
def retriever(
    host: Host = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.", show_default="8082")] = None,
    data_directory: DataDirectory = None,
    milvus_url: MilvusUrl = None,
    log_level: LogLevel = None,
) -> None:
    """Serve the indexes of this machine, or of a Milvus, over HTTP, for `serve --retriever-url`."""
    from boundarymorph.server import process
    from boundarymorph.server.app import create_retriever_app

    settings = Settings.load(
        host=host,
        port=port,
        data_directory=data_directory,
        milvus={"url": milvus_url} if milvus_url else None,
        log_level=log_level,
    )
    if "port" not in settings.model_fields_set:
        settings = settings.model_copy(update={"port": RETRIEVER_PORT})
    raise typer.Exit(process.serve(create_retriever_app, settings, "boundarymorph-retriever"))


@app.command()
def key(
    name: Annotated[str, typer.Argument(help="Who it is for.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="select, write or admin; repeatable.", show_default="select")
    ] = None,
    index: Annotated[
        list[str] | None,
        typer.Option(help="Index that it is for, or the beginning of its name and *; repeatable.", show_default="all"),
    ] = None,
) -> None:
    """Make an API key: the secret, which is shown once, and the line for the setting `keys`."""
    from boundarymorph.access import keys

    scopes = scope or ["select"]
    unknown = set(scopes) - set(keys.Scope)
    if unknown:
        _fail(f"there is no scope {', '.join(sorted(unknown))}; there are {', '.join(keys.Scope)}")
    secret, made = keys.make(name, [keys.Scope(value) for value in scopes], index or [])
    typer.echo(f"secret  {secret}\nkeys    {made}")


@index.command("build")
def build_index(
    name: Annotated[str, typer.Argument(help="Name of the index; made if it is not there.")],
    source: Annotated[
        Path,
        typer.Option(
            "--from",
            callback=_source,
            help="NDJSON, gzipped or not: id (or _id, as in BEIR), text, optional title, metadata, embedding; - reads "
            "standard input.",
        ),
    ],
    strict: Annotated[bool, typer.Option(help="Write nothing at all if any line is bad.")] = False,
    kind: Annotated[
        str | None, typer.Option(help="flat, ivf, hnsw or sq8: how a new index is searched.", show_default="flat")
    ] = None,
    words: Annotated[bool, typer.Option(help="Keep the words of a new index too, for BM25 and hybrid search.")] = True,
    dimension: Annotated[
        int | None,
        typer.Option(
            min=1, help="Of own vectors: every line brings its embedding.", show_default="the encoder's vectors"
        ),
    ] = None,
    data_directory: DataDirectory = None,
) -> None:
    """Add or replace documents. What is there unchanged is not embedded again, so an interrupted build just goes on."""
    from boundarymorph.cli import terminal
    from boundarymorph.retrieval.ingestion import IngestReport, ingest, parse_ndjson
    from boundarymorph.retrieval.live import LiveIndex
    from boundarymorph.server import composition as wiring

    settings = Settings.load(data_directory=data_directory)

    async def build() -> IngestReport:
        with _indexes(settings) as catalog:
            if dimension is not None:
                return await fill(catalog, None, dimension)
            encoder = wiring.build_encoder(settings)
            try:
                await encoder.check()
                return await fill(catalog, encoder, encoder.dimension)
            finally:
                await encoder.close()

    async def fill(catalog: Catalog, encoder: Encoder | None, size: int) -> IngestReport:
        made_by = None if encoder is None else encoder.name
        existed = catalog.exists(name)
        live = catalog.create(name, encoder=made_by, dimension=size, kind=kind, lexical=words)
        try:
            with _opened(source) as (stream, length):
                entries = parse_ndjson(_chunks(stream, source), size, max_line_bytes=settings.limits.line_bytes)
                with terminal.ingestion(console, name, length) as tell:
                    report = await ingest(live, encoder, entries, strict=strict, on_progress=tell)
            if isinstance(live, LiveIndex):
                await asyncio.to_thread(live.settle)  # so that services start from a search snapshot
        finally:
            with suppress(BoundaryMorphError):  # what keeps it from being removed is told already
                if not existed and not live.count():
                    catalog.delete(name)
        return report

    start = time.monotonic()
    report = asyncio.run(build())
    terminal.print_ingestion(console, name, report, time.monotonic() - start)
    if report.skipped and not (report.added or report.updated or report.unchanged):
        _fail(f"no line of {_named(source)} is a usable document; a new index is not kept without any")
    if not report.documents:
        console.print(f"{_named(source)} is empty; a new index is not kept without documents", highlight=False)


@index.command("list")
def list_indexes(data_directory: DataDirectory = None) -> None:
    """The indexes by name."""
    from boundarymorph.cli import terminal

    with _indexes(Settings.load(data_directory=data_directory)) as catalog:
        infos = catalog.list()
    columns = ("name", "documents", "dimension", "kind", "encoder", "bytes", "created")
    table = Table(*columns, box=None, pad_edge=False)
    for info in infos:
        encoder = info.encoder or "own vectors"
        size = (f"{info.count:,}", str(info.dimension), info.kind)
        table.add_row(info.name, *size, encoder, f"{info.bytes:,}", info.created)
    terminal.print_whole(console, table)


@index.command("info")
def describe_index(
    name: Annotated[str, typer.Argument(help="Name of the index.")], data_directory: DataDirectory = None
) -> None:
    """One index, with its search snapshot and the recall of its search structure, measured on its own vectors."""
    with _indexes(Settings.load(data_directory=data_directory)) as catalog:
        info = catalog.describe(name)
    rows = [
        ("documents", f"{info.count:,}"),
        ("dimension", str(info.dimension)),
        ("kind", info.kind),
        ("metric", info.metric),
        ("encoder", info.encoder or "own vectors"),
        ("bytes", f"{info.bytes:,}"),
        ("created", info.created),
    ]
    if info.snapshot is not None:
        rows.append(("snapshot", f"{info.snapshot.name}, {info.snapshot.count:,} documents"))
        rows += [(f"recall@{depth:,}", f"{recall:.4f}") for depth, recall in info.snapshot.recall.items()]
    for label, value in rows:
        typer.echo(f"{label:<14} {value}")


@index.command("compact")
def compact_index(
    name: Annotated[str, typer.Argument(help="Name of the index.")], data_directory: DataDirectory = None
) -> None:
    """Write a search snapshot of all that is there now. Services do this by themselves as an index grows."""
    with _local_indexes(data_directory, "index compact") as catalog:
        done = catalog.get(name).compact()
    console.print(f"{name} {'compacted' if done else 'is being compacted by another process'}", highlight=False)


@index.command("words")
def index_words(
    name: Annotated[str, typer.Argument(help="Name of the index.")], data_directory: DataDirectory = None
) -> None:
    """Index the words of an index that was made without, for BM25 and hybrid search. Services read and write meanwhile;
    if it is interrupted, it goes on where it was."""
    from boundarymorph.cli import terminal

    with _local_indexes(data_directory, "index words") as catalog, terminal.progress(console) as progress:
        bar = progress.add_task(f"words of {name}", total=None)
        made = catalog.get(name).index_words(
            lambda done, total: progress.update(bar, completed=done, total=total),
        )
    console.print(f"{name} {'has its words now' if made else 'has had its words before'}", highlight=False)


@index.command("snapshot")
def snapshot_index(
    name: Annotated[str, typer.Argument(help="Name of the index.")],
    target: Annotated[Path, typer.Option("--to", help="A new folder.")],
    data_directory: DataDirectory = None,
) -> None:
    """Copy a whole index, as it is at one moment, into a folder with checksums, for `index restore`. Services go on
    reading and writing. It is not the search snapshot that `index info` shows, which is a part of the index."""
    with _local_indexes(data_directory, "index snapshot") as catalog:
        copy = catalog.get(name).back_up(target)
    console.print(
        f"{name}: {copy.count:,} documents, {copy.bytes:,} bytes in {target}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


@index.command("restore")
def restore_index(
    name: Annotated[str, typer.Argument(help="Name that the index is to have.")],
    source: Annotated[Path, typer.Option("--from", exists=True, file_okay=False, help="What `index snapshot` wrote.")],
    replace: Annotated[bool, typer.Option(help="In place of the index of this name.")] = False,
    data_directory: DataDirectory = None,
) -> None:
    """Bring an index back from its copy, once all of it is seen to be sound. A running service sees it at once."""
    with _local_indexes(data_directory, "index restore") as catalog:
        info = catalog.restore(name, source, replace=replace)
    console.print(f"{name}: {info.count:,} documents restored", highlight=False)


@index.command("delete")
def delete_index(
    name: Annotated[str, typer.Argument(help="Name of the index.")], data_directory: DataDirectory = None
) -> None:
    """Remove an index with all its documents."""
    with _indexes(Settings.load(data_directory=data_directory)) as catalog:
        catalog.delete(name)
    console.print(f"{name} deleted", highlight=False)


@app.command()
def select(
    index: Annotated[str, typer.Argument(help="Index to take the candidates from.")],
    query: Annotated[str, typer.Argument(help="The information need, in plain words.")],
    budget: Annotated[str | None, typer.Option("--budget", "-B", help='Calls, or "auto".', show_default="50")] = None,
    k: Annotated[int | None, typer.Option("-k", help="Documents to return.", show_default="50")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Return what fits into so many tokens, instead of k.")] = None,
    depth: Annotated[int | None, typer.Option("--depth", "-N", help="Candidates.", show_default="10000")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Documents scored a round.", show_default="5")] = None,
    method: Annotated[
        str | None, typer.Option(help="trend, or boundarymorph: the paper's.", show_default="trend")
    ] = None,
    filter: Annotated[
        str | None,
        typer.Option(help='Only documents whose metadata pass it, as JSON: {"year": {"$gte": 2020}}.'),
    ] = None,
    hybrid: Annotated[
        bool, typer.Option("--hybrid", help="Candidates by vectors and by words, ranked together.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what POST /select answers.")] = False,
    data_directory: DataDirectory = None,
) -> None:
    """Select documents from an index, in this process: no service needs to run."""
    from boundarymorph.api.schemas import SelectRequest, SelectResponse
    from boundarymorph.api.translate import response_of, task_of
    from boundarymorph.cli import terminal
    from boundarymorph.server import composition as wiring

    settings = Settings.load(data_directory=data_directory)
    given = {
        "budget": int(budget) if budget is not None and budget.isdecimal() else budget,
        "k": k,
        "max_tokens": max_tokens,
        "depth": depth,
        "batch_size": batch_size,
        "method": method,
        "filter": None if filter is None else _json_object("--filter", filter),
        "hybrid": hybrid,
    }
    request = SelectRequest.model_validate({"query": query, "index": index, "return_documents": not as_json, **given})

    task_of(request, settings, time.monotonic())  # what is over a limit is told before any model is loaded

    async def answer() -> SelectResponse:
        rooms = wiring.build(settings) if not settings.retriever.url else wiring.build_gateway(settings)
        try:
            task = task_of(request, settings, time.monotonic())
            return response_of(await rooms.selector.select(task), task)
        finally:
            await rooms.close()

    response = asyncio.run(answer())
    if as_json:
        typer.echo(response.model_dump_json(indent=2))
    else:
        terminal.print_selection(console, query, response.model_dump())


@app.command()
def config() -> None:
    """Print the settings in force as a configuration file. Secrets are left out, with a comment in their place."""
    typer.echo(toml(Settings.load().masked()), nl=False)


@app.command()
def demo(
    query: Annotated[str, typer.Option(help="What to look for.")] = "work with dates, times and time zones",
    budget: Annotated[int, typer.Option("--budget", "-B", help="Cross-encoder calls.")] = 50,
    k: Annotated[int, typer.Option("-k", help="Documents to return.")] = 50,
    data_directory: DataDirectory = None,
) -> None:
    """Index the docstrings of Python's standard library in a service of its own, and select from them over HTTP."""
    from boundarymorph.cli import demo as demonstration

    directory = Settings.load(data_directory=data_directory).data_directory
    demonstration.run(console, directory, query, budget, k)


@app.command()
def evaluate(
    table: Annotated[
        list[Path] | None, typer.Option(exists=True, dir_okay=False, help="Pools with known scores (.npz); repeatable.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="A BEIR folder or ir_datasets:ID, scored once with the embedded models.")
    ] = None,
    methods: Annotated[
        str, typer.Option(help="Names or groups: baselines, product, ablations, kernels; NAME@5 runs rounds of 5.")
    ] = "baselines,product",
    budgets: Annotated[str, typer.Option("--budgets", "-B", help="Cross-encoder calls a query.")] = "25,50",
    k: Annotated[str, typer.Option("--k", "-k", help="Sizes of the chosen set.")] = "50,100,200",
    out: Annotated[Path, typer.Option(file_okay=False, help="Where the report goes.")] = Path("build/evaluation"),
    write_table: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Where the table made from --data goes.", show_default="OUT/NAME.npz"),
    ] = None,
    depth: Annotated[int, typer.Option("--depth", "-N", min=2, help="Candidates a query, with --data.")] = 2_000,
    queries: Annotated[int | None, typer.Option(min=1, help="Only the first so many of each collection.")] = None,
    call_seconds: Annotated[
        float | None,
        typer.Option(min=0, help="Time of one call, for the latency table.", show_default="as in the table"),
    ] = None,
    chat_url: Annotated[
        str | None, typer.Option(help="OpenAI-compatible endpoint: adds the agentic loop and the audit; needs --data.")
    ] = None,
    chat_model: Annotated[str, typer.Option(help="Model that the endpoint is asked for.")] = "default",
    chat_key: Annotated[str | None, typer.Option(envvar="BOUNDARYMORPH_CHAT_KEY", help="Its API key.")] = None,
) -> None:
    """Compare selectors on pools with known scores: a report with tables and plots, and summary.json."""
    try:
        from boundarymorph.cli import evaluate as evaluate_command
        from boundarymorph.evaluation.chat import Chat
    except ModuleNotFoundError as error:
        _fail(f"evaluate needs {error.name}: pip install 'boundarymorph[evaluation]'")

    settings = Settings.load()

    def models() -> tuple[Encoder, Scorer]:
        from boundarymorph.server import composition as wiring

        return wiring.build_encoder(settings), wiring.build_scorer(settings)

    request = evaluate_command.Request(
        tables=table or [],
        data=data,
        methods=[name.strip() for name in methods.split(",") if name.strip()],
        budgets=evaluate_command.with_numbers(budgets, "--budgets"),
        ks=evaluate_command.with_numbers(k, "--k"),
        out=out,
        write_table=write_table,
        depth=depth,
        queries=queries,
        call_seconds=call_seconds,
        chat=Chat(chat_url, chat_model, api_key=chat_key) if chat_url else None,
    )
    evaluate_command.evaluate(request, models, console)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    """Entry point: errors that a user can act on are one line on stderr and exit code 1."""
    try:
        app(prog_name="boundarymorph")
    except BoundaryMorphError as error:
        _fail(str(error))
    except ValidationError as error:
        _fail(mistakes(error))


def _fail(message: str) -> NoReturn:
    stderr = Console(stderr=True, emoji=False)
    stderr.print(f"[red]error:[/red] {escape(message)}", highlight=False, soft_wrap=True)
    sys.exit(1)


@contextmanager
def _indexes(settings: Settings) -> Iterator[Catalog]:
    """The indexes that a service with these settings has, open for a command. Raises InvalidConfiguration."""
    from boundarymorph.server import composition as wiring

    if settings.retriever.url:
        raise InvalidConfiguration(
            f"retriever.url is set: the indexes are at {', '.join(settings.retriever.url)}; run this command where "
            "that retriever runs, or use the routes under /indexes"
        )
    # On this machine commands search on the CPU, whatever search_device is, and so write search snapshots.
    catalog = wiring.build_catalog(settings) if settings.milvus.url is None else wiring.build_indexes(settings)
    try:
        yield catalog
    finally:
        catalog.close()


@contextmanager
def _local_indexes(data_directory: Path | None, command: str) -> Iterator[IndexCatalog]:
    """The indexes of this machine, for a command that only these have. Raises InvalidConfiguration."""
    settings = Settings.load(data_directory=data_directory)
    if settings.milvus.url is not None:
        raise InvalidConfiguration(
            f"milvus.url is set: the indexes are in Milvus, and `{command}` is for indexes on this machine only"
        )
    with _indexes(settings) as catalog:
        yield cast("IndexCatalog", catalog)


def _json_object(option: str, text: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"{option} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"{option} must be a JSON object")
    return value


def _named(source: Path) -> str:
    return "standard input" if str(source) == "-" else str(source)


@contextmanager
def _opened(source: Path) -> Iterator[tuple[BinaryIO, int | None]]:
    """What a file holds, unpacked, and how many bytes that is, if it can be known beforehand."""
    if str(source) == "-":
        file, length = cast(BufferedReader, sys.stdin.buffer), None
    else:
        file, length = source.open("rb"), source.stat().st_size
    with file:
        if file.peek(len(GZIP)).startswith(GZIP):
            with gzip.open(file) as unpacked:
                yield cast(BinaryIO, unpacked), None
        else:
            yield file, length


async def _chunks(stream: BinaryIO, source: Path) -> AsyncIterator[bytes]:
    """Raises InvalidInput for a damaged gzip file."""
    try:
        while chunk := await asyncio.to_thread(stream.read, 1 << 18):
            yield chunk
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InvalidInput(
            f"{_named(source)} is a damaged gzip file: {error}; what came before the damage is written, unless --strict"
        ) from error
