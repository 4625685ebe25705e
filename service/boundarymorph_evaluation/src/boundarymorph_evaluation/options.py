"""Define the options of `boundarymorph evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_METHODS = "baselines,product"


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The data to evaluate: tables with known scores, texts to score, or a judged index."""

    table: Annotated[
        list[Path] | None,
        typer.Option(exists=True, dir_okay=False, help="Pools with known scores (.npz); repeatable."),
    ] = None
    texts: Annotated[list[str] | None, typer.Option(help="Texts of tables, named as --data; repeatable.")] = None
    data: Annotated[
        str | None, typer.Option(help="A BEIR folder or ir_datasets:ID, scored once with the embedded models.")
    ] = None
    index: Annotated[str | None, typer.Option(help="Instead: an index with its vectors; needs --judgments.")] = None
    judgments: Annotated[Path | None, typer.Option(help="What calibrate reads and writes: query, document, grade.")] = (
        None
    )
    complete: Annotated[
        bool, typer.Option("--complete", help="Documents without a judgement are known to be irrelevant.")
    ] = False
    methods: Annotated[
        str | None,
        typer.Option(
            help="Compare these as well, which needs all scores: names or groups (baselines, product, ablations, "
            "kernels); NAME@5 runs rounds of 5, NAME@auto growing.",
            show_default=f"{DEFAULT_METHODS} with --table",
        ),
    ] = None
    budgets: Annotated[
        str, typer.Option("--budgets", "-B", help="Cross-encoder calls for a query; the middle one first.")
    ] = "10,25,50"
    k: Annotated[str, typer.Option("--k", "-k", help="Sizes of the chosen set; the smallest first.")] = "10,50"
    out: Annotated[Path, typer.Option(file_okay=False, help="Where the report goes.")] = Path("build/evaluation")
    write_table: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Where the table made from --data goes.", show_default="OUT/NAME.npz"),
    ] = None
    depth: Annotated[int, typer.Option("--depth", "-N", min=2, help="Candidates a query, with --data.")] = 2_000
    queries: Annotated[
        int | None, typer.Option(min=1, help="Use only this many queries of each collection, the first ones.")
    ] = None
    scorer: Annotated[
        list[str] | None,
        typer.Option(help="URL of the scorer for --data, as --scorer-url of serve.", show_default="the embedded model"),
    ] = None
    call_seconds: Annotated[
        float | None,
        typer.Option(min=0, help="Time of one call, for the latency table.", show_default="as in the table"),
    ] = None
    jobs: Annotated[int, typer.Option(min=1, help="Queries at a time, a process each.")] = 1
    promise: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=0.999,
            help="Promise to lose at most this share in nine of ten: half of the queries certify when the others stop.",
        ),
    ] = None
