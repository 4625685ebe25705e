"""Load or make tables, run the methods with progress bars, and write the report.

This is `boundarymorph evaluate`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from boundarymorph.calibration.judgments import judgments_of
from boundarymorph.cli import source as sources
from boundarymorph.cli import terminal
from boundarymorph.errors import InvalidInput
from boundarymorph.retrieval.build import build_encoder, build_indexes
from boundarymorph.retrieval.document import Search
from boundarymorph.scoring.build import build_local_scorer, build_scorer, declared_trust
from boundarymorph.scoring.rerankers import trust_of
from boundarymorph.selection.pool import Trust
from boundarymorph.settings import Settings
from boundarymorph_evaluation import datasets, report, tables
from boundarymorph_evaluation.builder import TableBuilder
from boundarymorph_evaluation.datasets import Collection
from boundarymorph_evaluation.methods import Contestant, find_contestants
from boundarymorph_evaluation.options import DEFAULT_METHODS, Evaluation
from boundarymorph_evaluation.run import skipped_contestants
from boundarymorph_evaluation.study import METRIC_TITLES, Study, ours_of, quality_by_table, study, titles_of
from boundarymorph_evaluation.tables import ScoreTable
from boundarymorph_evaluation.verdict import HEAD, Verdict, judge

PAGE = 1_000  # documents to read at a time
NAMED = 10  # documents that are not in the index


Vectors = Mapping[str, NDArray[np.floating]]  # vectors by the text that was encoded


def read_index(settings: Settings, name: str, judgments: Path) -> tuple[Collection, Vectors, str]:
    """Read an index of this machine, its vectors, their model's name, and judgements.

    Raises:
        InvalidInput: For an index without an encoder or pages, and for judgements that say nothing about it.
    """
    given = judgments_of(sources.records(judgments))
    with closing(build_indexes(settings)) as catalog:
        index = catalog.get(name)
        encoder, page = index.info.encoder, getattr(index, "page", None)
        if encoder is None or page is None:
            raise InvalidInput(f"the index {name!r} has no vectors of an encoder, or cannot be read as a whole")
        contents: dict[str, str] = {}
        while found := page(next(reversed(contents), ""), PAGE):
            contents |= {document.id: document.content for document in found}
        every = Search("", max(1, len(contents)), embedding=np.ones(index.info.dimension))
        pool = index.retrieve(every).pool
    if unknown := sorted({document for grades in given.values() for document in grades} - contents.keys()):
        more = ", ..." if len(unknown) > NAMED else ""
        named = ", ".join(map(repr, unknown[:NAMED]))
        raise InvalidInput(f"{sources.named(judgments)}: the index {name!r} has no document {named}{more}")
    grades = {query: {id: max(0, round(grade)) for id, grade in of.items()} for query, of in given.items()}
    relevant = {query: of for query, of in grades.items() if any(of.values())}
    if not relevant:
        raise InvalidInput(f"{sources.named(judgments)}: no line has a grade above 0 yet")
    vectors = {contents[id]: row for id, row in zip(pool.ids, pool.embeddings, strict=True) if id in contents}
    return Collection(name, contents, {query: query for query in relevant}, relevant), vectors, encoder


def evaluate(evaluation: Evaluation, console: Console) -> None:
    """Run, write the report and print its tables.

    The models are loaded only if there are documents to score.
    """
    if (evaluation.index is None) != (evaluation.judgments is None):
        raise InvalidInput("--index NAME and --judgments FILE go together")
    if not evaluation.table and evaluation.data is None and evaluation.index is None:
        raise InvalidInput("name at least one --table FILE.npz, --data, or --index with --judgments")
    if evaluation.index is not None and evaluation.data is not None and evaluation.write_table is not None:
        raise InvalidInput("--write-table is for one table: leave out --index or --data")
    # Checked before any pair is scored: a mistyped name should not cost an hour.
    budgets, ks = _numbers(evaluation.budgets, "--budgets", least=0), _numbers(evaluation.k, "--k")
    methods = DEFAULT_METHODS if evaluation.methods is None and evaluation.table else evaluation.methods
    contestants = find_contestants([name.strip() for name in (methods or "").split(",") if name.strip()])
    if methods is not None and not contestants:
        raise InvalidInput(f"--methods names no method; leave the option out for {DEFAULT_METHODS}")
    _make(evaluation.out)

    cell = budgets[len(budgets) // 2], ks[0]
    with terminal.Stages(console) as stages:
        found = [tables.read(path).head(evaluation.queries) for path in evaluation.table or ()]
        collections = [datasets.load(source) for source in evaluation.texts or ()]
        found = [tables.with_texts(table, collections) for table in found]
        _check_names(found)
        verdicts = [asyncio.run(judge(table, *cell, _watch(stages, table.name))) for table in found]
        if evaluation.data is not None or evaluation.index is not None:
            for table, verdict in asyncio.run(_built(evaluation, cell, bool(contestants), stages)):
                found.append(table)
                verdicts.append(verdict)
        said = [verdict for verdict in verdicts if verdict is not None]
        studies = _studied(evaluation, found, contestants, (budgets, ks), stages) if contestants else []
        stages.show("drawing and writing")
        report.write(studies, said, evaluation.out)
        stages.show("drawing and writing", 1, 1)
    for verdict in said:
        _answer(verdict, console)
    if not said:
        console.print("no human judgements: they say whether the scorer helps; name them with --judgments, or as qrels")
    _show(studies, console)
    console.print(f"\nreport: {evaluation.out / 'report.md'}")


def _numbers(text: str, option: str, least: int = 1) -> list[int]:
    """Parse "50,25" into [25, 50]. Raises InvalidInput that names the option."""
    try:
        numbers = sorted({int(part) for part in text.split(",") if part.strip()})
    except ValueError as error:
        raise InvalidInput(f"{option} takes whole numbers separated by commas, not {text!r}") from error
    if not numbers or numbers[0] < least:
        raise InvalidInput(f"{option} needs numbers from {least} on, separated by commas")
    return numbers


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"the folder of the report cannot be made: {error}; choose another with --out") from error
    if not os.access(out, os.W_OK | os.X_OK):
        raise InvalidInput(f"nothing can be written to {out}; choose another folder with --out")


async def _built(
    evaluation: Evaluation, cell: tuple[int, int], scored: bool, stages: terminal.Stages
) -> list[tuple[ScoreTable, Verdict | None]]:
    """Make tables, and verdicts about the scorer from judgements.

    `scored` says whether all pairs are scored.
    """
    settings = Settings.load(**({"scorer": {"url": tuple(evaluation.scorer)}} if evaluation.scorer else {}))
    async with AsyncExitStack() as stack:
        encoder = build_encoder(settings)
        stack.push_async_callback(encoder.close)
        scorer = build_scorer(settings) if evaluation.scorer else build_local_scorer(settings)
        stack.push_async_callback(scorer.close)

        async def built(whole: Collection, known: Vectors) -> tuple[ScoreTable, Verdict | None]:
            collection = replace(whole.head(evaluation.queries), complete=evaluation.complete)
            path = evaluation.write_table or evaluation.out / f"{collection.name}.npz"
            builder = TableBuilder(encoder, scorer, evaluation.depth, known)
            watch = _watch(stages, collection.name)
            table = await builder.build(collection, path, watch, scored=scored)
            trust = _trust(settings, whole.name if known else None, table)
            table = replace(table, arrays={**table.arrays, "trust": np.array(trust)})
            return table, await judge(table, *cell, watch, builder.scores)

        wanted: list[tuple[Collection, Vectors]] = []  # all are read before a pair is scored
        if evaluation.index is not None and evaluation.judgments is not None:
            collection, vectors, made_by = read_index(settings, evaluation.index, evaluation.judgments)
            await encoder.check()  # the answer contains the model's name
            if encoder.name != made_by:
                raise InvalidInput(f"the index was made with {made_by}, and the encoder is {encoder.name}")
            wanted.append((collection, vectors))
        if evaluation.data is not None:
            wanted.append((datasets.load(evaluation.data), {}))
        return [await built(collection, known) for collection, known in wanted]


def _trust(settings: Settings, index: str | None, table: ScoreTable) -> Trust:
    """Return the trust in the scorer as a selection has it: measured for the index, or declared."""
    scorer, calibration = str(table.arrays["scorer"]), None
    if index is not None:
        with closing(build_indexes(settings)) as catalog:
            artifacts = catalog.artifacts(index).read_if_sound()
            calibration = None if artifacts is None else artifacts.calibration
    if calibration is None or calibration.trust is None or calibration.staleness(scorer, None):
        return trust_of(scorer, declared_trust(settings.scorer))
    return "weak" if calibration.trust == "none" else calibration.trust


def _check_names(found: Sequence[ScoreTable]) -> None:
    """Raise InvalidInput if two tables have one name."""
    names = [table.name for table in found]
    if len(set(names)) < len(names):
        raise InvalidInput(f"two tables have one name ({', '.join(names)}); rename a file")


def _studied(
    evaluation: Evaluation,
    found: Sequence[ScoreTable],
    contestants: Sequence[Contestant],
    grid: tuple[Sequence[int], Sequence[int]],
    stages: terminal.Stages,
) -> list[Study]:
    _check_names(found)
    for table in found:
        skipped_contestants(table, contestants)  # raises an error before the first table takes time
    return [
        study(
            table,
            contestants,
            *grid,
            call_seconds=evaluation.call_seconds,
            jobs=evaluation.jobs,
            promise=evaluation.promise,
            watch=_watch(stages, table.name),
        )
        for table in found
    ]


def _watch(stages: terminal.Stages, name: str) -> Callable[[str, int, int], None]:
    return lambda stage, done, total: stages.show(f"{name}: {stage}", done, total)


def _answer(verdict: Verdict, console: Console) -> None:
    """Print whether the scorer helps."""
    console.print(f"\n{report.title_of(verdict)}", style="bold", markup=False)
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(HEAD):
        table.add_column(name, justify="right" if number else "left")
    for line in verdict.lines():
        table.add_row(*line)
    terminal.print_whole(console, table)
    for pair, change in verdict.scorer.items():
        console.print(f"the scorer alone: {pair} is {change}", markup=False, highlight=False)
    console.print(verdict.sentence, style="bold", markup=False, highlight=False)


def _show(studies: Sequence[Study], console: Console) -> None:
    """Print one table per metric, with the figures of the report."""
    if not studies:
        return
    ours = ours_of(studies)
    titles = {name: f"{title} *" if name in ours else title for name, title in titles_of(studies).items()}
    for metric, title in METRIC_TITLES.items():
        tables = quality_by_table(studies, metric)
        if not tables:
            console.print(f"\n{title}: no table has human labels")
            continue
        shown = 100 * pd.concat(tables).rename(index=titles, level=1).rename_axis(index=["", "method"])
        console.print(f"\n{title} (%)", style="bold")
        console.print(shown.to_string(float_format="{:.1f}".format, na_rep=""), markup=False)
    if ours:
        console.print("\n* a method of BoundaryMORPH; the report says what each method does")
    for found in studies:
        for method, reason in found.outcome.left_out.items():
            console.print(f"[yellow]note:[/yellow] {found.name}: {method} left out: {reason}")
