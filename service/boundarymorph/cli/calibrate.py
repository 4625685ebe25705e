"""`boundarymorph calibrate`: learns from a few judgements what relevance is, or says which pairs to judge."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
import typer
from rich.console import Console
from rich.table import Table

from boundarymorph.calibration.calibration import Calibration
from boundarymorph.calibration.judgments import Judgments, judgments_of, queries_of
from boundarymorph.cli import judging
from boundarymorph.cli import source as sources
from boundarymorph.cli.common import DataDirectory, console, parts
from boundarymorph.database import storage_errors
from boundarymorph.errors import InvalidInput
from boundarymorph.settings import Settings

if TYPE_CHECKING:
    from boundarymorph.selector.judging import Judged


def keep(settings: Settings, made: Calibration) -> None:
    """Keep a calibration with its index, or for pools. Raises UnknownIndex."""
    from boundarymorph.retrieval.build import build_indexes, build_remote_retriever
    from boundarymorph.retrieval.index_retriever import Learned

    async def send() -> None:
        retriever = build_remote_retriever(settings)
        try:
            await retriever.keep(made)
        finally:
            await retriever.close()

    if settings.retriever.url:
        asyncio.run(send())
    else:
        with closing(build_indexes(settings)) as catalog:
            Learned(catalog, settings).keep(made)


FromJudgments = Annotated[
    Path | None,
    typer.Option(callback=sources.checked, help="NDJSON with query, document and grade, or TREC qrels with --queries."),
]
Queries = Annotated[
    Path | None, typer.Option(callback=sources.checked, help="Texts of queries: one a line, ID<tab>TEXT, or NDJSON.")
]
Pools = Annotated[
    Path | None,
    typer.Option(
        callback=sources.checked, help="Instead of an index: NDJSON with query and documents, as for /select."
    ),
]
Suggest = Annotated[int | None, typer.Option(min=1, help="Write so many pairs to judge to --out, and learn nothing.")]
Gain = Annotated[
    Literal["relevant", "grade"],
    typer.Option(help="What relevance is: the probability of a grade above 0, or the expected grade."),
]


def calibrate(
    index: Annotated[str | None, typer.Argument(help="Index whose default it will be.")] = None,
    judgments: FromJudgments = None,
    queries: Queries = None,
    pools: Pools = None,
    suggest: Suggest = None,
    out: Annotated[Path | None, typer.Option(dir_okay=False, help="A file for the suggested pairs.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the calibration.", show_default="that of the index")] = None,
    gain: Gain = "relevant",
    budget: Annotated[int, typer.Option("--budget", "-B", min=1, help="Calls to find the best of a query.")] = 400,
    depth: Annotated[int | None, typer.Option("--depth", "-N", help="Candidates.", show_default="10000")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the calibration.")] = False,
    data_directory: DataDirectory = None,
) -> None:
    """Learn from a few judgements how likely people find a document relevant, by scorer, retriever and words.

    Ten queries with 40 judgements each are a good number. What is learned is applied only if it helps on queries that
    were left out.
    """
    if (index is None) == (pools is None):
        raise InvalidInput("name an index, or --pools FILE and --name NAME")
    if (name or index) is None:
        raise InvalidInput("give the calibration of the pools a name: --name NAME")
    if (judgments is None) == (suggest is None):
        raise InvalidInput("give either --judgments FILE or --suggest N")
    settings = Settings.load(data_directory=data_directory)
    texts = {} if queries is None else queries_of(sources.records(queries))
    given = {} if judgments is None else judgments_of(sources.records(judgments), texts)
    if judgments is not None and not given:
        raise InvalidInput(f"{sources.named(judgments)}: no line has a grade yet; set them, 0 for not relevant up to 3")
    requests = _requests(index, pools, list(given or texts.values()), depth)
    plan = judging.Plan(str(name or index), index, requests, budget, gain)
    if suggest is not None:
        _check(out)
        _write(asyncio.run(judging.pairs(plan, settings, max(1, suggest // len(requests))))[:suggest], out)
        return
    made, missing = asyncio.run(_learn(plan, settings, given))
    keep(settings, made)
    if as_json:
        typer.echo(orjson.dumps(made.to_json(), option=orjson.OPT_INDENT_2).decode())
    else:
        print_calibration(console, made, missing)


def _requests(
    index: str | None, pools: Path | None, queries: Sequence[str], depth: int | None
) -> dict[str, dict[str, Any]]:
    """Requests of `/select` by query."""
    if pools is None:
        if not queries:
            raise InvalidInput("name the queries with --queries FILE")
        return {query: {"query": query, "index": index, "depth": depth} for query in queries}
    found = {}
    for place, _, value in sources.records(pools):
        if not isinstance(value, dict) or not isinstance(value.get("query"), str) or "documents" not in value:
            raise InvalidInput(f"{place}: not an object with query and documents")
        found[value["query"]] = {"query": value["query"], "pool": {"documents": value["documents"]}}
    return {query: request for query, request in found.items() if not queries or query in queries}


def _check(out: Path | None) -> None:
    """Make the folder of a file for pairs. Raises InvalidInput if the file has something, as that may be a person's
    grades, and StorageUnavailable."""
    if out is None:
        return
    with storage_errors("the pairs cannot be written"):
        if out.is_file() and out.stat().st_size:
            raise InvalidInput(f"{out} exists, and may have grades; name another file, or delete it")
        out.parent.mkdir(parents=True, exist_ok=True)


def _write(pairs: Sequence[Mapping[str, str | None]], out: Path | None) -> None:
    lines = [orjson.dumps({**pair, "grade": None}).decode() for pair in pairs]
    if out is None:
        typer.echo("\n".join(lines))
        return
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    console.print(
        f"{len(lines)} pairs in {out}: set each grade, 0 for not relevant up to 3, and pass the file as --judgments"
    )


async def _learn(plan: judging.Plan, settings: Settings, given: Judgments) -> tuple[Calibration, Sequence[str]]:
    """Return a calibration, and the ids of judged documents that were in no pool."""
    from boundarymorph.api.select_schemas import SelectRequest
    from boundarymorph.api.translate import task_of
    from boundarymorph.calibration.learning import learn
    from boundarymorph.selector.judging import Judging
    from boundarymorph.selector.scores import WORDS

    judged: dict[str, Judged] = {}
    async with parts(settings) as built:
        judging = Judging(built.selector, built.retriever, built.scorer)
        for query, request in plan.requests.items():
            if query in given:
                task = task_of(SelectRequest.model_validate(request), settings, time.monotonic())
                judged[query] = await judging.judged(task, given[query])
        scorer = getattr(built.scorer, "identity", None) or built.scorer.name
        encoder = built.selector.encoder()
        named = {"lexical": WORDS, "index": encoder, "encoder": encoder}
    vectors = next((one.vectors for one in judged.values()), "none")
    missing = [id for query, one in judged.items() for id in given[query] if id not in set(one.ids)]
    if missing and not any(one.ids for one in judged.values()):
        raise InvalidInput(f"none of the judged documents is in a pool: {', '.join(map(repr, missing[:NAMED]))}")
    made = learn(
        plan.name,
        [one.query for one in judged.values()],
        scorer=scorer,
        encoder=named.get(vectors),
        gain=plan.gain,
        index=plan.index,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    return made, missing


NAMED = 10  # judged documents that were in no pool
BAR = 30  # characters of a probability of 1


def print_calibration(console: Console, made: Calibration, missing: Sequence[str]) -> None:
    """Print the report, what to do, and where the calibration is. missing: judged documents that were in no pool."""
    report = made.report
    console.print(f"{made.judgments:,} judgements of {made.queries} queries, each predicted from the others", end="")
    named = ", ".join(map(repr, missing[:NAMED])) + (", ..." if len(missing) > NAMED else "")
    console.print(f"; {len(missing)} more were in no pool: {named}" if missing else "", markup=False)
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
        f"error {report['error_before']:.3f} before, {report['error_after']:.3f} after"
    )
    for when in ("before", "after"):
        reliability = Table(f"relevance, {when}", "found relevant", "", "documents", box=None, pad_edge=False)
        for count, predicted, real in report[f"reliability_{when}"]:
            reliability.add_row(f"{predicted:.2f}", f"{real:.2f}", "\u2588" * round(BAR * real), f"{count:,}")
        console.print(reliability)
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in report["trust"].items())
    console.print(f"trust: {shares}")
    console.print(f"[bold]{report['advice']}[/bold]")
    of = "pools" if made.index is None else f"the index {made.index!r}"
    if made.form == "none":
        console.print(f"saved as calibration {made.name!r} of {of}, which no answer uses")
    elif made.name == made.index:
        console.print(f"saved as calibration {made.name!r}, the default of {of}")
    else:
        console.print(f"saved as calibration {made.name!r} of {of}")
