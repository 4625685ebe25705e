"""`boundarymorph calibrate`: learns from a few judgements what relevance is, or says which pairs to judge."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
import typer
from rich.console import Console
from rich.table import Table

from boundarymorph.calibration.calibration import Calibration
from boundarymorph.calibration.feedback import Event, grades_of, merged
from boundarymorph.calibration.files import Judgments, judgments_of, queries_of
from boundarymorph.calibration.judgments import PAIRS
from boundarymorph.cli import learning
from boundarymorph.cli import source as sources
from boundarymorph.cli.common import DataDirectory, allow_cost, check_ceiling, console, new_console, parts
from boundarymorph.cli.graded import GradedPairs
from boundarymorph.cli.terminal import steps
from boundarymorph.errors import BoundaryMorphError, InvalidInput
from boundarymorph.settings import Settings
from boundarymorph.text import records_of

if TYPE_CHECKING:
    from boundarymorph.selector.judging import Judged

notes = new_console(stderr=True)  # what is not the result
GRADES = 3  # the best grade that a language model gives
TOGETHER = 8  # texts in one call of it

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
JudgeUrl = Annotated[
    str | None, typer.Option(help="openai:// URL of a language model, which grades the documents of --queries.")
]
Suggest = Annotated[int | None, typer.Option(min=1, help="Write so many pairs to judge to --out, and learn nothing.")]
Update = Annotated[
    bool, typer.Option("--update", help="Learn from what callers sent to POST /judgments, with --judgments if given.")
]
Gain = Annotated[
    Literal["relevant", "grade"],
    typer.Option(help="What relevance is: the probability of a grade above 0, or the expected grade."),
]


@dataclass(frozen=True)
class Plan:
    """What a command is to do. name: of the calibration; index: whose, or None for pools; requests: of `/select` by
    query; budget: calls to find the best of a query; gain: what is learned."""

    name: str
    index: str | None
    requests: Mapping[str, Mapping[str, Any]]
    budget: int
    gain: Literal["relevant", "grade"]


def calibrate(
    index: Annotated[str | None, typer.Argument(help="Index whose default it will be.")] = None,
    judgments: FromJudgments = None,
    queries: Queries = None,
    pools: Pools = None,
    judge: JudgeUrl = None,
    suggest: Suggest = None,
    update: Update = False,
    out: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="Suggested pairs, or the grades of --judge, which a repetition of the command continues.",
            show_default="stdout, or judged/NAME.ndjson in the data directory",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the calibration.", show_default="that of the index")] = None,
    gain: Gain = "relevant",
    budget: Annotated[int, typer.Option("--budget", "-B", min=1, help="Calls to find the best of a query.")] = 400,
    depth: Annotated[int | None, typer.Option("--depth", "-N", help="Candidates.", show_default="10000")] = None,
    max_cost: Annotated[float | None, typer.Option(min=0, help="The most that the language model may cost.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before it costs money.")] = False,
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
    if sum((judgments is not None or update, judge is not None, suggest is not None)) != 1:
        raise InvalidInput("give one of --judgments FILE, --judge URL and --suggest N, or --update")
    if update and index is None:
        raise InvalidInput("--update is for an index, as judgements are")
    settings = Settings.load(data_directory=data_directory)
    texts = {} if queries is None else queries_of(_lines(queries), sources.named(queries))
    given = {} if judgments is None else judgments_of(_lines(judgments), sources.named(judgments), texts)
    events = _unjudged(learning.events_of(settings, index), given) if update and index else []
    if judgments is not None and not given and not update:
        raise InvalidInput(f"{sources.named(judgments)}: no line has a grade yet; set them, 0 for not relevant up to 3")
    given = merged(grades_of(events, {}), given)
    requests = _requests(index, pools, list(given or texts.values()), depth)
    plan = Plan(str(name or index), index, requests, budget, gain)
    if suggest is not None:
        _write(asyncio.run(_pairs(plan, settings, max(1, suggest // len(requests))))[:suggest], out)
        return
    if judge is not None:
        given = asyncio.run(_judge(plan, settings, judge, max_cost, yes, out))
    made, missing = asyncio.run(_learn(plan, settings, given, events))
    place = learning.keep(settings, made)
    if as_json:
        typer.echo(orjson.dumps(made.to_json(), option=orjson.OPT_INDENT_2).decode())
    else:
        print_calibration(console, made, missing, place)


def _unjudged(events: Sequence[Event], given: Judgments) -> Sequence[Event]:
    """Those of pairs that have no given grade."""
    return [event for event in events if event.document not in given.get(event.query, {})]


def _lines(source: Path) -> Sequence[bytes]:
    with sources.opened(source) as (stream, _):
        return stream.read().splitlines()


def _requests(
    index: str | None, pools: Path | None, queries: Sequence[str], depth: int | None
) -> dict[str, dict[str, Any]]:
    """Requests of `/select` by query."""
    if pools is None:
        if not queries:
            raise InvalidInput("name the queries with --queries FILE")
        return {query: {"query": query, "index": index, "depth": depth} for query in queries}
    found = {}
    for place, _, record in records_of(_lines(pools), sources.named(pools)):
        if not isinstance(record, dict) or not isinstance(record.get("query"), str) or "documents" not in record:
            raise InvalidInput(f"{place}: not JSON with query and documents")
        found[record["query"]] = {"query": record["query"], "pool": {"documents": record["documents"]}}
    return {query: request for query, request in found.items() if not queries or query in queries}


def _write(pairs: Sequence[Mapping[str, str | None]], out: Path | None) -> None:
    lines = [orjson.dumps({**pair, "grade": None}).decode() for pair in pairs]
    if out is None:
        typer.echo("\n".join(lines))
        return
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    console.print(
        f"{len(lines)} pairs in {out}: set each grade, 0 for not relevant up to 3, and pass the file as --judgments"
    )


async def _pairs(plan: Plan, settings: Settings, count: int) -> list[dict[str, str | None]]:
    """Pairs worth judging, at most `count` a query."""
    from boundarymorph.api.select_schemas import SelectRequest
    from boundarymorph.api.translate import task_of
    from boundarymorph.selector.judging import Judging

    found: list[dict[str, str | None]] = []
    label = f"queries, each with {plan.budget:,} calls, to find what is worth judging"
    async with parts(settings) as built:
        judging = Judging(built.selector, built.retriever, built.scorer)
        with steps(notes, label, len(plan.requests)) as advance:
            for number, (query, request) in enumerate(plan.requests.items()):
                wanted = SelectRequest.model_validate({**request, "budget": plan.budget})
                task = task_of(wanted, settings, time.monotonic())
                for document in await judging.suggest(task, count, seed=number):
                    pair = {"query": query, "document": document.id, "title": document.title, "text": document.text}
                    found.append(pair)
                advance(1)
    return found


async def _judge(
    plan: Plan, settings: Settings, url: str, max_cost: float | None, yes: bool, out: Path | None
) -> Judgments:
    """Have a language model grade what is worth it, but for what it has graded. Raises InvalidInput if the user
    declines the cost."""
    from boundarymorph.scoring.bill import Amount, OpenLedger
    from boundarymorph.scoring.build import build_scorer
    from boundarymorph.scoring.scorer import PricedScorer

    if not url.startswith(("openai://", "openai+")):
        raise InvalidInput("--judge takes a URL of openai://, as scorer.url does")
    check_ceiling(settings, max_cost)
    judge = build_scorer(
        settings.model_copy(update={"scorer": type(settings.scorer)(url=(url,), judge=settings.scorer.judge)}),
        ledger=lambda: OpenLedger(max_cost),
    )
    kept = GradedPairs(out or settings.data_directory / "judged" / f"{plan.name}.ndjson", judge.name)
    try:
        texts: dict[str, dict[str, str]] = {}
        for pair in await _pairs(plan, settings, PAIRS):
            if not kept.has(str(pair["query"]), str(pair["document"])):
                content = "\n".join(filter(None, (pair["title"], pair["text"])))
                texts.setdefault(str(pair["query"]), {})[str(pair["document"])] = content
        count = sum(map(len, texts.values()))
        if isinstance(judge, PricedScorer) and count:
            pairs = [(query, text) for query, of_query in texts.items() for text in of_query.values()]
            most = reduce(Amount.plus, (judge.most(*pair) for pair in pairs), Amount())
            allow_cost(notes, "graded", count, most, asked=yes or max_cost is not None)
        with steps(notes, "pairs graded", count) as advance:
            for query, of_query in texts.items():
                for start in range(0, len(of_query), TOGETHER):
                    ids = list(of_query)[start : start + TOGETHER]
                    scored = await judge.score(query, [of_query[id] for id in ids])
                    values = zip(ids, scored.values.tolist(), strict=True)
                    given = {id: float(round(GRADES * value)) for id, value in values if not math.isnan(value)}
                    kept.keep(query, given)
                    if scored.failure is not None:
                        raise scored.failure
                    kept.keep(query, {id: None for id in ids if id not in given})
                    advance(len(ids))
    except BoundaryMorphError as error:
        error.add(f"{len(kept):,} pairs are kept in {kept.path}; the same command continues from there")
        raise
    finally:
        kept.close()
        await judge.close()
    notes.print(f"{len(kept):,} graded pairs are in {kept.path}", markup=False)
    return kept.grades


async def _learn(
    plan: Plan, settings: Settings, given: Judgments, events: Sequence[Event]
) -> tuple[Calibration, Sequence[str]]:
    """Return a calibration, and the ids of judged documents that were in no pool. events: those among what is given."""
    from boundarymorph.api.select_schemas import SelectRequest
    from boundarymorph.api.translate import task_of
    from boundarymorph.calibration.learning import debiased, learn
    from boundarymorph.selector.judging import Judging
    from boundarymorph.selector.telling import WORDS

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
    found = {(query, id) for query, one in judged.items() for id in one.ids}
    clicks = [event for event in events if (event.query, event.document) in found]
    queries = [(query, one.query, one.ids) for query, one in judged.items()]
    missing = [id for query, one in judged.items() for id in given[query] if id not in set(one.ids)]
    if missing and not any(one.ids for one in judged.values()):
        raise InvalidInput(f"none of the judged documents is in a pool: {', '.join(map(repr, missing[:NAMED]))}")
    made = learn(
        plan.name,
        debiased(queries, clicks, plan.gain),
        scorer=scorer,
        encoder=named.get(vectors),
        gain=plan.gain,
        index=plan.index,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    return made, missing


NAMED = 10  # judged documents that were in no pool
BAR = 30  # characters of a probability of 1


def print_calibration(console: Console, made: Calibration, missing: Sequence[str], place: str) -> None:
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
    default = f", the default of the index {made.index!r}" if made.name == made.index else ""
    console.print(f"kept as {made.name!r}, {place}{default}")
