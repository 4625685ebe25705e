"""Print the output of the commands on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import progress
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from boundarymorph.reading import quantity

if TYPE_CHECKING:
    from boundarymorph.retrieval.uploads import IngestReport

LINE_SECONDS = 10.0
NAMED = 3  # entries that were skipped for one reason


class Stages:
    """The progress of stages, as bars on a terminal.

    Elsewhere it is a line when a stage begins, and one every LINE_SECONDS.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock, self._told = console, clock, clock()
        columns = (
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
        )
        bars = progress.Progress(*columns, progress.TextColumn("left"), progress.TimeRemainingColumn(), console=console)
        self._bars = bars if console.is_terminal else None
        self._tasks: dict[str, progress.TaskID] = {}

    def __enter__(self) -> Stages:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def show(self, stage: str, done: int = 0, total: int | None = None, note: str = "") -> None:
        """Show how much of a stage is done; `total` is None if it is not known."""
        begins = stage not in self._tasks
        if self._bars is not None:
            if begins:
                self._tasks[stage] = self._bars.add_task(stage, total=total)
            self._bars.update(self._tasks[stage], completed=done, total=total, description=stage + note)
        elif begins or self._clock() - self._told >= LINE_SECONDS:
            self._tasks[stage], self._told = progress.TaskID(0), self._clock()
            steps = "" if total is None else f": {done:,} of {total:,}"
            self._console.print(f"{stage}{steps}{note}", markup=False, highlight=False)


@contextmanager
def steps(
    console: Console, doing: str, total: int, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int], None]]:
    """Yield a function that adds a number of steps to the progress of a single stage."""
    done = 0

    def advance(more: int) -> None:
        nonlocal done
        done += more
        stages.show(doing, done, total)

    with Stages(console, clock) as stages:
        advance(0)
        yield advance


def print_ingestion(
    console: Console,
    name: str,
    report: IngestReport,
    seconds: float,
    *,
    unit: str = "line",
    documents: int | None = None,
) -> None:
    """Print the outcome of an upload in `unit`s, of which there may be several per document.

    `documents` is then the number of documents, if it is known.
    """
    entries = quantity(report.documents, "document", "documents")
    if documents is not None:
        entries = (
            f"{quantity(report.documents, 'passage', 'passages')} of {quantity(documents, 'document', 'documents')}"
        )
    outcomes = ", ".join(
        f"{count:,} {outcome}"
        for outcome in ("added", "updated", "unchanged", "skipped")
        if (count := getattr(report, outcome)) or outcome == "added"
    )
    rate = report.documents / max(seconds, 1e-9)
    console.print(f"{name}: {entries}: {outcomes}; {seconds:,.1f} s, {rate:,.0f} a second")
    if report.truncated:
        longer = quantity(report.truncated, "text is", "texts are")
        console.print(f"  {longer} longer than the encoder reads; it read the beginning")
    _print_problems(console, report, unit)
    if report.superseded:
        again = quantity(report.superseded, "document", "documents")
        console.print(f"  {again} had the id of a later one, which replaced it; ids must be unique")
    if report.unknown_fields:
        counts = ", ".join(f"{name!r} in {count:,}" for name, count in report.unknown_fields.items())
        misspelt = f"  documents with unknown fields, which were not kept: {counts}; misspelt, or for metadata?"
        console.print(misspelt, markup=False)


def _print_problems(console: Console, report: IngestReport, unit: str) -> None:
    """Print a line for each reason why entries were skipped, with the first few entries."""
    of_reason: dict[str, list[str]] = {}
    for problem in report.problems:
        of_reason.setdefault(problem.reason, []).append(f"{problem.line:,}")
    for reason, numbers in of_reason.items():
        more = len(numbers) - NAMED
        named = ", ".join(numbers[:NAMED]) + (f" and {more:,} more" if more > 0 else "")
        console.print(f"  {unit if len(numbers) == 1 else unit + 's'} {named} skipped: {reason}", markup=False)
    if report.skipped > len(report.problems):
        console.print(f"  and {report.skipped - len(report.problems):,} more")


def print_whole(console: Console, table: Table) -> None:
    """Print a table whole, wider than the console if necessary, without trailing blanks."""
    table.width = console.measure(table, options=console.options.update(max_width=10_000)).maximum
    with console.capture() as printed:
        console.print(table)
    for line in printed.get().splitlines():
        console.out(line.rstrip(), highlight=False)


def print_selection(console: Console, query: str, answer: Mapping[str, Any]) -> None:
    usage, documents = answer["usage"], answer["documents"]
    k, scored = len(documents), sum(document["source"] == "cross_encoder" for document in documents)
    ranks = [document["retrieval_rank"] for document in documents]
    console.print(f"[bold]query[/bold]  {escape(query)}")
    console.print(f"[bold]N[/bold] {answer['pool_size']:,}   [bold]B[/bold] {usage['budget']}   [bold]k[/bold] {k}")
    table = Table(box=None, header_style="bold", pad_edge=False, expand=True)
    table.add_column("#", justify="right", width=3)
    table.add_column("relevance", justify="right", width=9)
    table.add_column("", width=15)
    table.add_column("from rank", justify="right", width=9)
    boosted = any(document["value"] is not None for document in documents)
    if boosted:
        table.add_column("value", justify="right", width=6)
    table.add_column("document", no_wrap=True, overflow="ellipsis", ratio=1)
    for document in documents:
        rank, inferred = document["retrieval_rank"], f"inferred [dim]± {document['std']:.2f}[/dim]"
        how = "[green]scored[/green]" if document["source"] == "cross_encoder" else inferred
        came_from = f"[bold yellow]{rank:,}[/bold yellow]" if rank > k else f"{rank:,}"
        value = [f"{document['value']:.3f}"] if boosted else []
        table.add_row(str(document["rank"]), f"{document['relevance']:.3f}", how, came_from, *value, _label(document))
    if console.is_terminal:
        console.print(table)
    else:
        print_whole(console, table)
    console.print(
        f"\n{quantity(k, 'document', 'documents')}: {scored} scored, {k - scored} inferred; "
        f"{sum(rank > k for rank in ranks)} from below rank {k} (deepest {max(ranks, default=0):,})"
    )
    calls = quantity(usage["budget"], "cross-encoder call", "cross-encoder calls")
    rounds = quantity(usage["rounds"], "round", "rounds")
    console.print(f"{usage['cross_encoder_calls']} of {calls} in {rounds}; stopped: {answer['stop_reason']}")
    stages = dict(answer["timings_ms"])
    total = stages.pop("total")
    console.print(f"time: {total:.0f} ms = " + " + ".join(f"{stage} {each:.0f}" for stage, each in stages.items()))
    for warning in answer["warnings"]:
        console.print(f"[yellow]note:[/yellow] {escape(warning['message'])}")


def _label(document: Mapping[str, Any]) -> str:
    lines = [line.strip() for line in (document["text"] or "").splitlines() if line.strip()] or [""]
    said = lines[0]
    if said.startswith("#"):  # a heading and the text after it
        said = "  ".join(line.lstrip("# ") for line in lines[:2])
    return f"{escape(document['id'])}  [dim]{escape(said)}[/dim]"
