"""Run `boundarymorph calibrate`, which learns from judgements or suggests pairs to judge."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table

from boundarymorph.calibration.calibration import Calibration
from boundarymorph.calibration.judgments import Judgments, judgments_of, queries_of
from boundarymorph.cli import source as sources
from boundarymorph.cli.common import DataDirectory, console, new_console, option, parts
from boundarymorph.database import storage_errors
from boundarymorph.errors import InvalidInput
from boundarymorph.settings import Settings

if TYPE_CHECKING:
    from boundarymorph.selector.judging import JudgedPool

Requests = Mapping[str, Mapping[str, Any]]  # requests of `POST /select`, by query
BARE = {"calibration": False, "distinct": None, "return_documents": False}  # fields of these requests
NAMED = 10  # judged documents that are in no pool
PAIRS = {"retriever": "the retriever", "scorer": "the scorer alone", "none": "no calls"}  # names of the rankings
BAR = 30  # characters of a probability of 1


def calibrate(
    index: Annotated[str | None, typer.Argument(help="Index whose answers are to be calibrated.")] = None,
    judgments: Annotated[
        Path | None, sources.existing("NDJSON with query, document and grade, or TREC qrels with --queries.")
    ] = None,
    queries: Annotated[Path | None, sources.existing("Texts of queries: one a line, ID<tab>TEXT, or NDJSON.")] = None,
    pools: Annotated[
        Path | None, sources.existing("Instead of an index: NDJSON with query and documents, as for /select.")
    ] = None,
    suggest: Annotated[int | None, option("Write this many pairs to judge, and learn nothing.", min=1)] = None,
    out: Annotated[
        Path | None, option("File for the suggested pairs, or for the calibration of pools.", dir_okay=False)
    ] = None,
    budget: Annotated[int, option("Calls to find the best of a query.", "--budget", "-B", min=1)] = 400,
    depth: Annotated[int | None, option("Candidates.", "--depth", "-N", default="10000")] = None,
    as_json: Annotated[bool, option("Print the calibration.", "--json")] = False,
    data_directory: DataDirectory = None,
) -> None:
    """Learn from a few judgements how likely a person agrees that a document is relevant.

    Ten queries with 40 judgements each are a good number. Answers change only if that helps on queries that were left
    out.
    """
    if (index is None) == (pools is None):
        raise InvalidInput("name an index, or --pools FILE")
    if (judgments is None) == (suggest is None):
        raise InvalidInput("give either --judgments FILE or --suggest N")
    if pools is not None and judgments is not None and out is None:
        raise InvalidInput("name a file for the calibration of the pools: --out FILE")
    settings = Settings.load(data_directory=data_directory)
    texts = {} if queries is None else queries_of(sources.records(queries))
    given = {} if judgments is None else judgments_of(sources.records(judgments), texts)
    if judgments is not None and not given:
        raise InvalidInput(f"{sources.named(judgments)}: no line has a grade yet; set them, 0 for not relevant up to 3")
    requests = _requests(index, pools, list(given or texts.values()), depth)
    if suggest is not None:
        _suggest(requests, settings, budget, suggest, out)
        return
    made, missing = asyncio.run(_learn(requests, settings, given))
    if as_json:
        typer.echo(orjson.dumps(made.to_json(), option=orjson.OPT_INDENT_2).decode())
    else:
        print_report(console, made, missing)
    if made.maps or made.trust:
        place = _keep(settings, index, out, made)
        if not as_json:
            console.print(f"saved in {place}", markup=False)


def _requests(index: str | None, pools: Path | None, queries: Sequence[str], depth: int | None) -> Requests:
    if pools is None:
        if not queries:
            raise InvalidInput("name the queries with --queries FILE")
        return {query: {"query": query, "index": index, "depth": depth, **BARE} for query in queries}
    found = {}
    for place, _, value in sources.records(pools):
        if not isinstance(value, dict) or not isinstance(value.get("query"), str) or "documents" not in value:
            raise InvalidInput(f"{place}: not an object with query and documents")
        found[value["query"]] = {"query": value["query"], "pool": {"documents": value["documents"]}, **BARE}
    return {query: request for query, request in found.items() if not queries or query in queries}


def _keep(settings: Settings, index: str | None, out: Path | None, made: Calibration) -> str:
    """Store a calibration with its index, or in a file, and return the place."""
    from boundarymorph.retrieval.build import build_indexes, build_remote_retriever

    if index is None:
        assert out is not None
        with storage_errors("the calibration cannot be written"):
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_bytes(orjson.dumps(made.to_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        return f"{out}; to use it, set `calibration` to this file, and start the service again"

    async def send(index: str) -> None:
        retriever = build_remote_retriever(settings)
        try:
            await retriever.set_calibration(index, made)
        finally:
            await retriever.close()

    if settings.retriever.url:
        asyncio.run(send(index))
    else:
        with closing(build_indexes(settings)) as catalog:
            catalog.artifacts(index).change(calibration=made)
    return f"the index {index!r}"


def _suggest(requests: Requests, settings: Settings, budget: int, count: int, out: Path | None) -> None:
    """Write pairs to judge to a file, or to standard output.

    Raises:
        InvalidInput: If the file may already contain grades by a person.
    """
    if out is not None:
        with storage_errors("the pairs cannot be written"):
            if out.is_file() and out.stat().st_size:
                raise InvalidInput(f"{out} exists, and may have grades; name another file, or delete it")
            out.parent.mkdir(parents=True, exist_ok=True)
    pairs = asyncio.run(_pairs(requests, settings, budget, max(1, count // len(requests))))[:count]
    lines = "\n".join(orjson.dumps({**pair, "grade": None}).decode() for pair in pairs)
    if out is None:
        typer.echo(lines)
        return
    out.write_text(f"{lines}\n", encoding="utf-8")
    console.print(
        f"{len(pairs)} pairs in {out}: set each grade, 0 for not relevant up to 3, and pass the file as --judgments"
    )


async def _pairs(requests: Requests, settings: Settings, budget: int, count: int) -> list[dict[str, str | None]]:
    """Return pairs that are worth judging, at most `count` per query, with title and text."""
    from boundarymorph.api.select_schemas import SelectRequest
    from boundarymorph.api.select_task import task_of
    from boundarymorph.cli import terminal
    from boundarymorph.selector.judging import Judge

    found: list[dict[str, str | None]] = []
    doing = f"finding pairs to judge, at most {budget:,} calls for each query; queries"
    async with parts(settings) as built:
        judging = Judge(built.selector, built.retriever, built.scorer)
        with terminal.steps(new_console(stderr=True), doing, len(requests)) as advance:
            for number, (query, request) in enumerate(requests.items()):
                wanted = SelectRequest.model_validate({**request, "budget": budget})
                task = task_of(wanted, settings, time.monotonic(), window=built.scorer.max_length)
                chosen = await judging.suggest(task, count, seed=number)
                found += [{"query": query, "document": it.id, "title": it.title, "text": it.text} for it in chosen]
                advance(1)
    return found


async def _learn(requests: Requests, settings: Settings, given: Judgments) -> tuple[Calibration, Sequence[str]]:
    from boundarymorph.api.select_schemas import SelectRequest
    from boundarymorph.api.select_task import task_of
    from boundarymorph.calibration.learning import learn
    from boundarymorph.selector.judging import Judge
    from boundarymorph.selector.scores import WORDS

    judged: dict[str, JudgedPool] = {}
    async with parts(settings) as built:
        judging = Judge(built.selector, built.retriever, built.scorer)
        for query, request in requests.items():
            if query in given:
                wanted, window = SelectRequest.model_validate(request), built.scorer.max_length
                task = task_of(wanted, settings, time.monotonic(), window=window)
                judged[query] = await judging.score_judged(task, given[query])
        scorer = getattr(built.scorer, "identity", None) or built.scorer.name
        encoder = built.selector.encoder()
        named = {"lexical": WORDS, "index": encoder, "encoder": encoder}
    vectors = next((one.vectors for one in judged.values()), "none")
    missing = [id for query, one in judged.items() for id in given[query] if id not in set(one.ids)]
    if missing and not any(one.ids for one in judged.values()):
        raise InvalidInput(f"none of the judged documents is in a pool: {', '.join(map(repr, missing[:NAMED]))}")
    created = datetime.now(UTC).isoformat(timespec="seconds")
    queries = [one.query for one in judged.values()]
    encoder, declared = named.get(vectors), built.selector.trust
    return learn(queries, scorer=scorer, encoder=encoder, declared=declared, created=created), missing


def print_report(console: Console, made: Calibration, missing: Sequence[str]) -> None:
    """Print the findings from the judgements, and advice.

    `missing` has the judged documents that were in no pool.
    """
    people = made.report["human"]
    console.print(f"{made.judgments:,} judgements of {made.queries} queries, each predicted from the others", end="")
    named = ", ".join(map(repr, missing[:NAMED])) + (", ..." if len(missing) > NAMED else "")
    console.print(f"; {len(missing)} more were in no pool: {named}" if missing else "", markup=False)
    orders = {"scorer": "scorer", "retriever": "retriever", "human": "relevance"}
    quality = Table("nCG@k of judged documents (%)", box=None, pad_edge=False)
    for title in orders.values():
        quality.add_column(title, justify="right")
    for row in made.report["ncg"]:
        quality.add_row(f"k = {row['k']}", *(f"{100 * row[name]:.1f}" for name in orders))
    console.print(quality)
    if pairs := made.report["trust"]["pairs"]:
        order = Table("relevant above others (% of pairs)", "", box=None, pad_edge=False)
        for name, share in pairs.items():
            order.add_row(PAIRS.get(name, f"trust {name}"), f"{share:.1f}")
        console.print(order)
    console.print(
        f"log loss {people['log_loss_before']:.3f} before, {people['log_loss_after']:.3f} after; expected calibration "
        f"error {people['error_before']:.3f} before, {people['error_after']:.3f} after"
    )
    for when in ("before", "after"):
        reliability = Table(f"relevance, {when}", "found relevant", "", "documents", box=None, pad_edge=False)
        for count, predicted, real in people[f"reliability_{when}"]:
            reliability.add_row(f"{predicted:.2f}", f"{real:.2f}", "\u2588" * round(BAR * real), f"{count:,}")
        console.print(reliability)
    console.print(f"[bold]{made.report['advice']}[/bold]")
