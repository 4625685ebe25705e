"""What people see on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table


def progress(console: Console) -> Progress:
    """A bar with counts, documents a second being for the reader to judge from the time left."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console)


def print_selection(console: Console, query: str, answer: Mapping[str, Any]) -> None:
    """The answer of POST /select as a table: what was chosen, what of it was scored, and from which rank it came."""
    usage, documents = answer["usage"], answer["documents"]
    scored = sum(document["source"] == "cross_encoder" for document in documents)
    k = len(documents)
    pulled = sum(document["retrieval_rank"] > k for document in documents)

    console.print(f"[bold]query[/bold]  {escape(query)}", highlight=False)
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
    console.print(table)
    console.print(
        f"\n{k} documents: {scored} scored, {k - scored} inferred; {pulled} from below rank {k} "
        f"(deepest {max((document['retrieval_rank'] for document in documents), default=0):,})",
        highlight=False,
    )
    console.print(
        f"{usage['cross_encoder_calls']} of {usage['budget']} cross-encoder calls in {usage['rounds']} rounds; "
        f"stopped: {answer['stop_reason']}",
        highlight=False,
    )
    stages = dict(answer["timings_ms"])
    total = stages.pop("total")
    console.print(
        f"time: {total:.0f} ms = "
        + " + ".join(f"{stage} {milliseconds:.0f}" for stage, milliseconds in stages.items()),
        highlight=False,
    )
    for warning in answer["warnings"]:
        console.print(f"[yellow]note:[/yellow] {escape(warning)}", highlight=False)


def _label(document: Mapping[str, Any]) -> str:
    first_line = (document["text"] or "").strip().partition("\n")[0]
    return f"{escape(document['id'])}  [dim]{escape(first_line)}[/dim]"
