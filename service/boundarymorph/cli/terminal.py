"""Output of the commands on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from boundarymorph.reading import counted

if TYPE_CHECKING:
    from boundarymorph.retrieval.uploads import IngestReport

LINE_SECONDS = 10.0


def progress(console: Console) -> Progress:
    """Return a progress bar with counts and the time left."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console)


@contextmanager
def steps(
    console: Console, doing: str, total: int, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int], None]]:
    """Yield a function that is called with how many more steps are done: on a terminal it moves a bar, otherwise it
    writes a line every LINE_SECONDS. The first line says at once what begins."""
    if console.is_terminal:
        with progress(console) as bar:
            task = bar.add_task(doing, total=total)
            yield lambda more: bar.advance(task, more)
        return
    console.print(f"{doing}: {total:,}", markup=False, highlight=False)
    done, told = 0, clock()

    def tell(more: int) -> None:
        nonlocal done, told
        done += more
        if clock() - told >= LINE_SECONDS:
            told = clock()
            console.print(f"{doing}: {done:,} of {total:,}", markup=False, highlight=False)

    yield tell


class Stages:
    """The progress of stages, each with a number of steps: bars on a terminal, otherwise a line as a stage begins and
    one every LINE_SECONDS."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock, self._told = console, clock, clock()
        self._bars = progress(console) if console.is_terminal else None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Stages:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Take the bars off the terminal within the block, for a question."""
        self.__exit__()
        yield
        self.__enter__()

    def show(self, stage: str, done: int = 0, total: int | None = None) -> None:
        """Show how much of a stage is done. total: None if it has no steps."""
        begins = stage not in self._tasks
        if self._bars is not None:
            if begins:
                self._tasks[stage] = self._bars.add_task(stage, total=total)
            self._bars.update(self._tasks[stage], completed=done, total=total)
        elif begins or self._clock() - self._told >= LINE_SECONDS:
            self._tasks[stage], self._told = TaskID(0), self._clock()
            steps = "" if total is None else f": {done:,} of {total:,}"
            self._console.print(f"{stage}{steps}", markup=False, highlight=False)


@contextmanager
def ingestion(
    console: Console, name: str, total: int | None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[IngestReport], None]]:
    """Yield a function that shows the progress of an upload when called with the report so far: on a terminal as a bar,
    otherwise as a line every LINE_SECONDS. total: bytes of the upload, None if unknown."""
    if console.is_terminal:
        columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()
        with Progress(*columns, TextColumn("{task.fields[status]}"), console=console) as bar:
            task = bar.add_task(f"indexing {name}", total=total, status="")

            def draw(report: IngestReport) -> None:
                bar.update(task, completed=report.position, status=_status(report))

            yield draw
            bar.update(task, total=total or 1, completed=total or 1)
        return
    last = clock()

    def write(report: IngestReport) -> None:
        nonlocal last
        if clock() - last >= LINE_SECONDS:
            last = clock()
            share = "" if total is None else f"{report.position / max(1, total):.0%}, "
            console.print(f"indexing {name}: {share}{_status(report)}")

    yield write


def print_ingestion(console: Console, name: str, report: IngestReport, seconds: float, unit: str = "line") -> None:
    """Print the result of an upload, the lines (or other units) that were skipped, and the fields that were not
    kept."""
    console.print(
        f"{name}: {report.added:,} added, {report.updated:,} updated, {report.unchanged:,} unchanged, "
        f"{report.skipped:,} skipped, {report.truncated:,} truncated\n"
        f"{counted(report.documents, 'document', 'documents')} in {seconds:,.1f} s, "
        f"{report.documents / max(seconds, 1e-9):,.0f} a second; "
        f"{report.unchanged:,} were there already and cost nothing"
    )
    for problem in report.problems:
        console.print(f"  {unit} {problem.line:,} skipped: {problem.reason}", markup=False)
    if report.skipped > len(report.problems):
        console.print(f"  and {report.skipped - len(report.problems):,} more")
    if report.superseded:
        again = counted(report.superseded, "document", "documents")
        console.print(f"  {again} had the id of a later one, which replaced it; ids must be unique")
    if report.unknown_fields:
        counts = ", ".join(f"{name!r} in {count:,}" for name, count in report.unknown_fields.items())
        misspelt = f"  documents with unknown fields, which were not kept: {counts}; misspelt, or for metadata?"
        console.print(misspelt, markup=False)


def print_whole(console: Console, table: Table) -> None:
    """Print a table without cutting off any cell, if necessary wider than the console, and lines without padding."""
    table.width = console.measure(table, options=console.options.update(max_width=10_000)).maximum
    with console.capture() as printed:
        console.print(table)
    for line in printed.get().splitlines():
        console.out(line.rstrip(), highlight=False)


def print_selection(console: Console, query: str, answer: Mapping[str, Any]) -> None:
    """Print the answer of POST /select as a table: the chosen documents, whether they were scored, and their ranks."""
    usage, documents = answer["usage"], answer["documents"]
    scored = sum(document["source"] == "cross_encoder" for document in documents)
    k = len(documents)
    pulled = sum(document["retrieval_rank"] > k for document in documents)

    console.print(f"[bold]query[/bold]  {escape(query)}")
    console.print(f"[bold]N[/bold] {answer['pool_size']:,}   [bold]B[/bold] {usage['budget']}   [bold]k[/bold] {k}")
    table = Table(box=None, header_style="bold", pad_edge=False, expand=True)
    table.add_column("#", justify="right", width=3)
    table.add_column("relevance", justify="right", width=9)
    table.add_column("", width=15)
    table.add_column("from rank", justify="right", width=9)
    table.add_column("document", no_wrap=True, overflow="ellipsis", ratio=1)
    for document in documents:
        rank = document["retrieval_rank"]
        scored_here = document["source"] == "cross_encoder"
        how = "[green]scored[/green]" if scored_here else f"inferred [dim]± {document['std']:.2f}[/dim]"
        came_from = f"[bold yellow]{rank:,}[/bold yellow]" if rank > k else f"{rank:,}"
        table.add_row(str(document["rank"]), f"{document['relevance']:.3f}", how, came_from, _label(document))
    if console.is_terminal:
        console.print(table)
    else:
        print_whole(console, table)
    console.print(
        f"\n{counted(k, 'document', 'documents')}: {scored} scored, {k - scored} inferred; "
        f"{pulled} from below rank {k} "
        f"(deepest {max((document['retrieval_rank'] for document in documents), default=0):,})"
    )
    console.print(
        f"{usage['cross_encoder_calls']} of {counted(usage['budget'], 'cross-encoder call', 'cross-encoder calls')} in "
        f"{counted(usage['rounds'], 'round', 'rounds')}; "
        f"stopped: {answer['stop_reason']}"
    )
    stages = dict(answer["timings_ms"])
    total = stages.pop("total")
    console.print(
        f"time: {total:.0f} ms = " + " + ".join(f"{stage} {milliseconds:.0f}" for stage, milliseconds in stages.items())
    )
    for warning in answer["warnings"]:
        console.print(f"[yellow]note:[/yellow] {escape(warning)}")


def _status(report: IngestReport) -> str:
    there = f" ({report.unchanged:,} were there)" if report.unchanged else ""
    return f"{report.documents:,} documents{there}"


def _label(document: Mapping[str, Any]) -> str:
    lines = [line.strip() for line in (document["text"] or "").splitlines() if line.strip()]
    said = lines[0] if lines else ""
    if said.startswith("#"):  # a heading and what follows
        said = "  ".join(line.lstrip("# ") for line in lines[:2])
    return f"{escape(document['id'])}  [dim]{escape(said)}[/dim]"
