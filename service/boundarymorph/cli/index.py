"""Run `boundarymorph index ...`, which manages the indexes of this machine and in stores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import orjson
import typer
from rich.table import Table

from boundarymorph.cli import source as sources
from boundarymorph.cli.common import DataDirectory, command_of, console, fail, json_object, option
from boundarymorph.errors import BoundaryMorphError, InvalidConfiguration
from boundarymorph.reading import quantity
from boundarymorph.settings import Settings

if TYPE_CHECKING:
    from boundarymorph.cli.files import TableColumns
    from boundarymorph.retrieval.interfaces import Catalog, IndexDescription
    from boundarymorph.retrieval.local.catalog import LocalCatalog
    from boundarymorph.retrieval.uploads import IngestReport

SKIPPED = 4  # the exit code of a build that skipped lines
INTERRUPTED = 130  # the exit code after Ctrl-C
LONGEST_PASSAGE = 100_000  # characters
Name = Annotated[str, typer.Argument(help="Name of the index.")]

JsonOption = Annotated[bool, option("Print what the route of the API answers.", "--json")]

app = typer.Typer(
    help="Build, list, and delete indexes on this machine and in stores. A running service sees every change.",
    no_args_is_help=True,
)


@dataclass(frozen=True, kw_only=True)
class Build:
    """The options of `index build`: the documents to index, and how."""

    name: Annotated[str, typer.Argument(help="Name of the index; created if it does not exist.")]
    source: Annotated[
        Path,
        sources.existing(
            "A folder of .md and .txt files, or an .md file; a table, .csv or .tsv; or lines of JSON or an array: "
            "id (or _id, as in BEIR), text, optional title, metadata, embedding. Files may be gzipped; - reads lines "
            "from standard input.",
            "--from",
            folders=True,
        ),
    ]
    strict: Annotated[bool, option("Write nothing if any line is invalid.")] = False
    kind: Annotated[
        str | None, option("How to search a new index: flat or ivf; in a store flat or hnsw.", default="flat")
    ] = None
    words: Annotated[bool, option("Keep the words of a new index too, for BM25 and hybrid search.")] = True
    dimension: Annotated[
        int | None,
        option("Dimension of your own vectors: every line has an embedding.", default="the encoder's vectors", min=1),
    ] = None
    encoder: Annotated[
        Literal["none"] | None, option("none: an index without vectors, searched by BM25.", default="the service's")
    ] = None
    passages: Annotated[
        int | None,
        option(
            "The most characters of a passage, into which longer texts are cut. Selections then have one passage of "
            "each document. 0: leave texts whole.",
            default="1200 for folders and tables, else 0",
            min=0,
            max=LONGEST_PASSAGE,
        ),
    ] = None
    id_column: Annotated[
        str | None, option("Column of a table that has the ids.", default="id, or the row's number")
    ] = None
    text_column: Annotated[str | None, option("Column of a table that has the texts.", default="text")] = None
    title_column: Annotated[str | None, option("Column of a table that has the titles.", default="title")] = None
    data_directory: DataDirectory = None


@app.command("build")
@command_of(Build)
def build_index(options: Build) -> None:
    """Add or replace documents, and repeat an interrupted build at little cost.

    Unchanged documents are not embedded again. Exits with 4 if lines or files were skipped; the other documents are
    kept.
    """
    from boundarymorph.cli import files, terminal
    from boundarymorph.retrieval.uploads import IngestReport

    name, source = options.name, options.source
    settings = Settings.load(data_directory=options.data_directory)
    if options.encoder is not None and (options.kind, options.words, options.dimension) != (None, True, None):
        raise typer.BadParameter("an index without an encoder takes no --kind, --no-words and --dimension")
    columns = files.TableColumns(options.id_column, options.text_column, options.title_column)
    if columns != files.TableColumns() and not files.is_table(source):
        raise typer.BadParameter("columns are those of a table, whose name ends in .csv or .tsv")
    start, report = time.monotonic(), IngestReport()
    if source.is_dir() and (others := files.other_suffixes(source)):
        named = ", ".join(f"{count:,} {suffix or 'without a suffix'}" for suffix, count in others.items())
        read = ", ".join(files.SUFFIXES)
        console.print(f"files that are not read: {named}; convert them to one of {read}", markup=False)
    with sources.interruptible():
        try:
            documents = asyncio.run(_fill(settings, options, columns, report))
        except KeyboardInterrupt:
            so_far = quantity(report.stored, "document", "documents")
            console.print(f"stopped after {so_far}; repeat the command to go on")
            raise typer.Exit(INTERRUPTED) from None
    unit = "file" if files.is_texts(source) else "line"
    seconds = time.monotonic() - start
    terminal.print_ingestion(console, name, report, seconds, unit=unit, documents=documents)
    if report.skipped and not report.stored:
        fail(f"no {unit} of {sources.named(source)} is a usable document; correct them, and repeat the command")
    if not report.documents:
        console.print(f"{sources.named(source)} is empty; give at least one document")
    if report.skipped:
        raise typer.Exit(SKIPPED)


@app.command("list")
def list_indexes(as_json: JsonOption = False, data_directory: DataDirectory = None) -> None:
    """List the indexes by name. Exits with 1 if one cannot be read."""
    from boundarymorph.retrieval.interfaces import IndexDescription, UnreadableIndex

    with _indexes(data_directory) as catalog:
        listed = catalog.list()
    described = [index for index in listed if isinstance(index, IndexDescription)]
    unreadable = [index for index in listed if isinstance(index, UnreadableIndex)]
    if as_json:
        failed = [{"name": index.name, "detail": str(index.error)} for index in unreadable]
        _print_json({"indexes": [info.model_dump(mode="json") for info in described], "unreadable": failed})
    else:
        _print_table(described)
    if unreadable:
        fail("; ".join(f"the index {index.name!r} cannot be read: {index.error}" for index in unreadable))


def _print_json(value: object) -> None:
    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def _print_table(described: Sequence[IndexDescription]) -> None:
    from boundarymorph.cli import terminal

    columns = ("name", "documents", "dim", "kind", "encoder", "MB", "created")
    table = Table(*columns, box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for info in described:
        encoder = _encoder_of(info).partition("@")[0].rpartition("/")[2]  # the name without its owner and revision
        megabytes = "" if info.bytes is None else f"{info.bytes / 1e6:,.1f}"
        created = (info.created or "")[:16].replace("T", " ")
        table.add_row(info.name, f"{info.count:,}", str(info.dimension), info.kind, encoder, megabytes, created)
    terminal.print_whole(console, table)


@app.command("info")
def describe_index(name: Name, as_json: JsonOption = False, data_directory: DataDirectory = None) -> None:
    """Describe an index.

    For an `ivf` index, this includes its recall when it was trained, measured on its own vectors.
    """
    with _indexes(data_directory) as catalog:
        info = catalog.describe(name)
    if as_json:
        _print_json(info.model_dump(mode="json"))
        return
    rows = {
        "description": info.description or None,
        "distinct by": info.distinct or None,
        "scorer trust": info.trust,
        "documents": f"{info.count:,}",
        "dimension": info.dimension,
        "kind": info.kind,
        "metric": info.metric,
        "encoder": _encoder_of(info),
        "bytes": None if info.bytes is None else f"{info.bytes:,}",
        "created": info.created,
    }
    if info.structure is not None:
        rows["trained"] = f"{info.structure.count:,} documents in {info.structure.clusters:,} clusters"
        rows |= {f"recall@{depth:,}": f"{recall:.4f}" for depth, recall in info.structure.recall.items()}
    for label, value in rows.items():
        if value is not None:
            typer.echo(f"{label:<14} {value}")


@app.command("describe")
def say_what_it_holds(
    name: Name,
    description: Annotated[str, typer.Argument(help="What its documents are; empty for no description.")],
    data_directory: DataDirectory = None,
) -> None:
    """Describe the documents of an index, for people and language models that choose an index."""
    with _indexes(data_directory) as catalog:
        catalog.artifacts(name).change(description=description.strip() or None)


@app.command("compact")
def compact_index(name: Name, data_directory: DataDirectory = None) -> None:
    """Empty the write-ahead log, and build the block and the clusters of a large index again.

    Services do this by themselves, less thoroughly. Only `ivf` indexes have clusters.
    """
    with _local_indexes(data_directory, "index compact") as catalog:
        done = catalog.get(name).compact()
    console.print(f"{name} {'compacted' if done else 'is being trained by another process'}")


@app.command("words")
def index_words(name: Name, data_directory: DataDirectory = None) -> None:
    """Add the words for BM25 and hybrid search to an index that was made without them.

    Services can read and write meanwhile.
    """
    with _local_indexes(data_directory, "index words") as catalog:
        made = catalog.get(name).index_words()
    console.print(f"{name} {'has its words now' if made else 'already had its words'}")


@app.command("snapshot")
def snapshot_index(
    name: Name, target: Annotated[Path, option("A new folder.", "--to")], data_directory: DataDirectory = None
) -> None:
    """Copy an index, as of one moment, into a folder with checksums, for `index restore`.

    Services can read and write meanwhile.
    """
    with _local_indexes(data_directory, "index snapshot") as catalog:
        copy = catalog.get(name).back_up(target)
    console.print(
        f"{name}: {quantity(copy.count, 'document', 'documents')}, {copy.bytes:,} bytes in {target}", markup=False
    )


@app.command("restore")
def restore_index(
    name: Annotated[str, typer.Argument(help="Name for the restored index.")],
    source: Annotated[Path, option("Folder of `index snapshot`.", "--from", exists=True, file_okay=False)],
    replace: Annotated[bool, option("Replace the index of this name.")] = False,
    data_directory: DataDirectory = None,
) -> None:
    """Restore an index from a snapshot, after checking all of it.

    A running service sees it at once.
    """
    with _local_indexes(data_directory, "index restore") as catalog:
        info = catalog.restore(name, source, replace=replace)
    console.print(f"{name}: {quantity(info.count, 'document', 'documents')} restored")


@app.command("delete")
def delete_index(
    name: Name,
    filter: Annotated[
        str | None, option("Delete only documents whose metadata match it, as JSON.", default="the whole index")
    ] = None,
    data_directory: DataDirectory = None,
) -> None:
    """Remove an index with all its documents, or some of the documents."""
    from boundarymorph.retrieval.filters import Filter

    wanted = None if filter is None else Filter(json_object("--filter", filter))
    if wanted is not None:
        wanted.refuse_everything()
    with _indexes(data_directory) as catalog:
        if wanted is None:
            catalog.delete(name)
            console.print(f"{name} deleted")
        else:
            deleted = catalog.get(name).delete_matching(wanted)
            console.print(f"{name}: {quantity(deleted, 'document', 'documents')} deleted")


def _encoder_of(info: IndexDescription) -> str:
    return info.encoder or ("own vectors" if info.dimension else "none")


async def _fill(settings: Settings, options: Build, columns: TableColumns, report: IngestReport) -> int | None:
    """Fill the index, and return how many documents became passages.

    It is None if they are left whole.
    """
    from boundarymorph.cli import files, terminal
    from boundarymorph.retrieval.build import build_encoder
    from boundarymorph.retrieval.interfaces import WORDS
    from boundarymorph.retrieval.local.catalog import LocalIndex
    from boundarymorph.retrieval.uploads import ingest_batches

    name, source, limits = options.name, options.source, settings.limits
    characters = options.passages
    if characters is None:
        characters = files.PASSAGE_CHARACTERS if files.is_texts(source) or files.is_table(source) else 0
    passages = files.PassageSplitter(characters)
    kind, dimension = (options.kind, options.dimension) if options.encoder is None else (WORDS, 0)
    async with AsyncExitStack() as stack:
        catalog, encoder, made_by = stack.enter_context(_indexes(options.data_directory)), None, None
        if dimension is None:
            encoder = build_encoder(settings)
            stack.push_async_callback(encoder.close)
            await encoder.check()
            made_by, dimension = encoder.name, encoder.dimension
        existed = catalog.exists(name)
        live = catalog.create(name, encoder=made_by, dimension=dimension, kind=kind, lexical=options.words)
        try:
            found = files.open_documents(
                source, columns, dimension, limits.line_bytes, limits.body_bytes, strict=options.strict
            )
            with found as (entries, length), terminal.Stages(console) as stages:
                if characters:  # before the first passage can be found
                    await asyncio.to_thread(catalog.artifacts(name).change, distinct=files.DOCUMENT)
                async for _ in ingest_batches(
                    live, encoder, passages.split(entries), strict=options.strict, report=report
                ):
                    note = f", {quantity(report.documents, 'document', 'documents')}"
                    stages.show(f"indexing {name}, bytes", report.position, length, note)
            if characters:
                await asyncio.to_thread(passages.remove_old, live)
            if isinstance(live, LocalIndex):
                await asyncio.to_thread(live.await_training)  # so that services need not train an `ivf` index
        finally:
            with suppress(BoundaryMorphError):  # the cause has been reported already
                if not existed and not live.count():
                    catalog.delete(name)
    return passages.documents if characters else None


@contextmanager
def _indexes(data_directory: Path | None) -> Iterator[Catalog]:
    """Open the indexes of a service. Raises InvalidConfiguration for a gateway."""
    from boundarymorph.retrieval.build import build_indexes

    # Commands on local indexes use the CPU, whatever search_device says, so that they train ivf indexes.
    settings = _settings(data_directory).model_copy(update={"search_device": "cpu"})
    with closing(build_indexes(settings)) as catalog:
        yield catalog


@contextmanager
def _local_indexes(data_directory: Path | None, command: str) -> Iterator[LocalCatalog]:
    from boundarymorph.retrieval.build import build_catalog

    settings = _settings(data_directory)
    if settings.index_store is not None:
        raise InvalidConfiguration(
            f"index_store is {settings.index_store!r}, and `{command}` is for indexes on this machine only"
        )
    with closing(build_catalog(settings)) as catalog:
        yield catalog


def _settings(data_directory: Path | None) -> Settings:
    settings = Settings.load(data_directory=data_directory)
    if settings.retriever.url:
        raise InvalidConfiguration(
            f"retriever.url is set: the indexes are at {', '.join(settings.retriever.url)}; run this command where "
            "that retriever runs, or use the routes under /indexes"
        )
    return settings
