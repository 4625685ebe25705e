"""What a calibration learned, on a terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from boundarymorph.calibration.calibration import Calibration

BAR = 30  # characters of a probability of 1


def print_calibration(console: Console, made: Calibration, missing: int, file: Path) -> None:
    """Print the report, what to do, and where the calibration is. missing: judged documents that were in no pool."""
    report = made.report
    console.print(f"{made.judgments:,} judgements of {made.queries} queries, each predicted from the others", end="")
    console.print(f"; {missing} more were in no pool" if missing else "")
    quality = Table("nCG@k of judged documents (%)", box=None, pad_edge=False)
    for column in ("scorer", "retriever", "calibrated", "gain over the scorer", "within two standard errors"):
        quality.add_column(column, justify="right")
    for at in report["ncg"]:
        figures = [f"{100 * at[name]:.1f}" for name in ("scorer", "retriever", "calibrated")]
        quality.add_row(
            f"k = {at['k']}", *figures, f"{100 * at['gain']:+.1f}", f"{100 * at['low']:+.1f} to {100 * at['high']:+.1f}"
        )
    console.print(quality)
    console.print(
        f"log loss {report['log_loss_before']:.3f} before, {report['log_loss_after']:.3f} after; expected calibration "
        f"error {report['error_before']:.3f} before, {report['error_after']:.3f} after",
        highlight=False,
        soft_wrap=True,
    )
    for when in ("before", "after"):
        reliability = Table(f"relevance, {when}", "found relevant", "", "documents", box=None, pad_edge=False)
        for count, predicted, real in report[f"reliability_{when}"]:
            reliability.add_row(f"{predicted:.2f}", f"{real:.2f}", "\u2588" * round(BAR * real), f"{count:,}")
        console.print(reliability)
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in report["trust"].items())
    console.print(f"trust: {shares}", highlight=False, soft_wrap=True)
    console.print(f"[bold]{report['advice']}[/bold]", highlight=False, soft_wrap=True)
    default = f", the default of the index {made.index!r}" if made.index else ""
    console.print(f"kept as {file}{default}", highlight=False, soft_wrap=True)
