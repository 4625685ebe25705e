"""`boundarymorph evaluate`: loads or makes tables, runs the methods with progress bars, and writes the report."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table as Grid

from boundarymorph.cli import terminal
from boundarymorph.cli.common import allow_cost, check_ceiling
from boundarymorph.errors import InvalidInput
from boundarymorph.evaluation import datasets, report, tables
from boundarymorph.evaluation.builder import Approve, TableBuilder
from boundarymorph.evaluation.methods import agentic, chosen
from boundarymorph.evaluation.methods.agentic import Chat
from boundarymorph.evaluation.methods.method import Contestant
from boundarymorph.evaluation.run import left_out
from boundarymorph.evaluation.study import METRIC_TITLES, Study, cells, study, titles_of
from boundarymorph.evaluation.tables import ScoreTable
from boundarymorph.retrieval.build import build_encoder
from boundarymorph.retrieval.encoders import Encoder
from boundarymorph.scoring.bill import Amount, OpenLedger
from boundarymorph.scoring.build import build_local_scorer, build_scorer
from boundarymorph.scoring.scorer import Scorer
from boundarymorph.settings import Settings

DEFAULT_METHODS = ("baselines", "product")
SAME_ENCODER = 0.95  # cosine of a table's embedding of a query and the encoder's, beyond rounding and quantisation


@dataclass(frozen=True)
class Evaluation:
    """What to evaluate. tables: .npz files; texts: collections with their texts, named like data; data: a BEIR folder
    or ir_datasets:ID, made into a table at `write_table`; depth: N of that table; queries: the most queries of each
    collection; jobs: queries at a time, each in a process of its own; scorer: URLs of a remote one for data; max_cost:
    the most that it may charge; yes: without asking the user; chat: a language model, which adds the agentic loop if
    there are texts; calibrate: queries of each table whose grades a calibration is learned from, splits times."""

    tables: Sequence[Path] = ()
    texts: Sequence[str] = ()
    data: str | None = None
    methods: Sequence[str] = DEFAULT_METHODS
    budgets: Sequence[int] = (25, 50)
    ks: Sequence[int] = (50, 100, 200)
    out: Path = Path("build/evaluation")
    write_table: Path | None = None
    depth: int = 2_000
    queries: int | None = None
    call_seconds: float | None = None
    jobs: int = 1
    chat: Chat | None = field(default=None, repr=False)
    scorer: Sequence[str] = ()
    max_cost: float | None = None
    yes: bool = False
    calibrate: int | None = None
    splits: int = 10


def evaluate(evaluation: Evaluation, console: Console) -> None:
    """Run, write the report and print its tables. The models are loaded only if there is data to score, the encoder
    also if an agent searches."""
    if not evaluation.tables and evaluation.data is None:
        raise InvalidInput("name at least one --table FILE.npz, or --data")
    for what, values in (("budgets", evaluation.budgets), ("k", evaluation.ks)):
        if not values or min(values) < 1:
            raise InvalidInput(f"--{what} needs numbers from 1 on, separated by commas")
    if evaluation.jobs > 1 and evaluation.chat is not None:
        raise InvalidInput("--jobs goes without --chat-url; the language model is asked from one process")
    # Checked before any pair is scored: a mistyped name should not cost an hour.
    agents = [] if evaluation.chat is None else agentic.contestants(evaluation.chat, _unavailable)
    if not chosen(evaluation.methods, agents):
        raise InvalidInput(f"--methods names no method; leave the option out for {','.join(DEFAULT_METHODS)}")
    _make(evaluation.out)

    with terminal.progress(console) as progress, asyncio.Runner() as runner, ExitStack() as stack:
        found = [tables.read(path).first(evaluation.queries) for path in evaluation.tables]
        collections = [datasets.load(source) for source in evaluation.texts]
        found = [tables.with_texts_of(table, collections) for table in found]
        searching = evaluation.chat is not None and any(table.texts is not None for table in found)
        encoder = build_encoder(Settings.load()) if evaluation.data is not None or searching else None
        if encoder is not None:
            stack.callback(lambda: runner.run(encoder.close()))
        if encoder is not None and evaluation.data is not None:
            scorer = _scorer(evaluation)
            stack.callback(lambda: runner.run(scorer.close()))
            builder = TableBuilder(encoder, scorer, evaluation.depth, _approval(evaluation, scorer, console, progress))
            found.append(_built(evaluation, evaluation.data, builder, runner, progress))
        if encoder is not None and evaluation.chat is not None:
            embed = _embedding(encoder, runner)
            for table in found:
                _check_encoder(table, embed)
            agents = agentic.contestants(evaluation.chat, embed)
        studies = _studied(evaluation, found, agents, progress)
        task = progress.add_task("drawing and writing", total=None)
        report.write(studies, evaluation.out)
        progress.update(task, total=1, completed=1)
    _show(studies, console)
    console.print(f"\nreport: {evaluation.out / 'report.md'}")


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"the folder of the report cannot be made: {error}; choose another with --out") from error
    if not os.access(out, os.W_OK | os.X_OK):
        raise InvalidInput(f"nothing can be written to {out}; choose another folder with --out")


def _built(
    evaluation: Evaluation, source: str, builder: TableBuilder, runner: asyncio.Runner, progress: Progress
) -> ScoreTable:
    collection = datasets.load(source).first(evaluation.queries)
    path = evaluation.write_table or evaluation.out / f"{collection.name}.npz"
    return runner.run(builder.build(collection, path, _watch(progress, collection.name)))


def _scorer(evaluation: Evaluation) -> Scorer:
    if not evaluation.scorer:
        return build_local_scorer(Settings.load())
    settings = Settings.load(scorer={"url": tuple(evaluation.scorer)})
    check_ceiling(settings, evaluation.max_cost)
    return build_scorer(settings, ledger=lambda: OpenLedger(evaluation.max_cost))


def _approval(evaluation: Evaluation, scorer: Scorer, console: Console, progress: Progress) -> Approve:
    """Return a function that states the possible cost and asks unless --yes or --max-cost was given. It raises
    InvalidInput if the user declines."""

    allowed = evaluation.yes or evaluation.max_cost is not None

    def approve(pairs: int, most: Amount) -> None:
        progress.stop()
        allow_cost(console, f"scored by {scorer.name}", pairs, most, asked=allowed)
        progress.start()

    return approve


def _studied(
    evaluation: Evaluation, found: Sequence[ScoreTable], agents: Sequence[Contestant], progress: Progress
) -> list[Study]:
    names = [table.name for table in found]
    if len(set(names)) < len(names):
        raise InvalidInput(f"two tables have one name ({', '.join(names)}); rename a file")
    contestants = chosen(evaluation.methods, agents)
    if not {agent.name for agent in agents} & {contestant.name for contestant in contestants}:
        contestants += agents
    for table in found:
        left_out(table, contestants)  # raises before time is spent on the first table
    return [
        study(
            table,
            contestants,
            sorted(set(evaluation.budgets)),
            sorted(set(evaluation.ks)),
            call_seconds=evaluation.call_seconds,
            jobs=evaluation.jobs,
            calibrate=None if evaluation.calibrate is None else (evaluation.calibrate, evaluation.splits),
            watch=_watch(progress, table.name),
        )
        for table in found
    ]


def _embedding(encoder: Encoder, runner: asyncio.Runner) -> Callable[[str], NDArray[np.floating]]:
    return lambda text: runner.run(encoder.encode_query(text))


def _check_encoder(table: ScoreTable, embed: Callable[[str], NDArray[np.floating]]) -> None:
    """Raise InvalidInput unless the table's embeddings are of the encoder with which agents search."""
    question = table.question(0)
    if question.texts is None:
        return
    made, own = question.pool.query, embed(question.texts.query)
    if made.shape != own.shape or float(made @ own) < SAME_ENCODER:
        raise InvalidInput(
            f"the embeddings of {table.name!r} are not of the encoder with which the agentic loop would search; "
            "set BOUNDARYMORPH_ENCODER__* to the one that they were made with, or leave --chat-url out"
        )


def _unavailable(text: str) -> NDArray[np.floating]:
    raise InvalidInput("the agentic loop needs texts; name the table's collection with --texts")


def _watch(progress: Progress, name: str) -> Callable[[str, int, int], None]:
    bars: dict[str, object] = {}

    def watch(stage: str, done: int, total: int) -> None:
        if stage not in bars:
            bars[stage] = progress.add_task(f"{name}: {stage}", total=total)
        progress.update(bars[stage], completed=done, total=total)  # type: ignore[arg-type]  # a TaskID is an int

    return watch


def _show(studies: Sequence[Study], console: Console) -> None:
    """Print one table per metric, as in the report."""
    titles = titles_of(studies)
    for metric, title in METRIC_TITLES.items():
        table = cells(studies, metric)
        if table is None:
            console.print(f"\n{title}: no table has human labels")
            continue
        grid = Grid(title=f"{title} (%)", title_justify="left", title_style="bold", header_style="bold", pad_edge=False)
        grid.add_column("method", no_wrap=True)
        for budget, k in table.columns:
            grid.add_column(f"B={budget}\nk={k}", justify="right")
        for group, rows in table.groups.items():
            grid.add_section()
            grid.add_row(f"[bold cyan]{escape(group)}[/bold cyan]")
            for method, row in rows.items():
                values = []
                for cell in table.columns:
                    value, (best, _) = row[cell], table.best(group, cell)
                    text = "" if value is None else f"{100 * value:.1f}"
                    values.append(f"[bold]{text}[/bold]" if value is not None and round(value, 4) == best else text)
                grid.add_row(f"  {titles[method]}", *values)
        console.print()
        terminal.print_whole(console, grid)
    for found in studies:
        for method, reason in found.outcome.left_out.items():
            console.print(f"[yellow]note:[/yellow] {found.name}: {method} left out: {reason}")


def with_numbers(text: str, option: str) -> list[int]:
    """Parse "25,50" into [25, 50]. Raises InvalidInput that names the option."""
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise InvalidInput(f"{option} takes whole numbers separated by commas, not {text!r}") from error
