"""Measure requests by kind of scorer, beside reranking: `make bench NAME=scorers`.

Fake scorers answer on sockets of this machine, after a time for each request and a time for each document. There is no
model. The bench measures the number of requests to the scorer, the wait for it, and the time of the whole request. The
same 1,000 documents come with each request, without vectors. Reranking scores the first hundred.
"""

import argparse
import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from boundarymorph.api.lifecycle import Parts
from boundarymorph.scoring.build import build_scorer, declared_trust, full_pass
from boundarymorph.selector.selector import Selector
from boundarymorph.settings import Settings
from load_tests import report
from load_tests.workload import passages, queries_of
from tests.fakes.service import answer, fake_service, serving
from tests.fakes.upstream import Behaviour, Reply
from tests.fakes.wires import Cohere, Jina, ListwiseJina, SystemOne, Tei, Wire, running
from tests.scoring.chat.scripted import Chat

FIRST = 100  # documents that plain reranking scores


@dataclass(frozen=True)
class Kind:
    """A kind of scorer.

    Attributes:
        seconds: The time of a request, and of each document in it.
        settings: The settings of the scorer.
    """

    name: str
    wire: Callable[[], Wire]
    seconds: tuple[float, float]
    settings: dict[str, Any] = field(default_factory=dict)


TWENTY = {"connections": 16, "judge": {"documents_per_request": 20}}
KINDS = (
    Kind("own GPU", lambda: Tei(most=128), (0.005, 0.0005)),
    Kind("hosted", Cohere, (0.104, 0.00075)),
    Kind("hosted, slower", Jina, (0.15, 0.001)),
    Kind("listwise", ListwiseJina, (0.2, 0.003)),
    Kind("decision model", SystemOne, (0.15, 0.002)),
    Kind("language model", lambda: Chat(counting=True), (0.6, 0.0), {"connections": 16}),
    Kind("language model, 20 at once", lambda: Chat(counting=True), (0.6, 0.05), TWENTY),
)


def taking(fixed: float, each: float) -> Behaviour:
    """Return a behaviour that answers after the time of a request and its documents."""

    async def behaviour(reply: Reply) -> Reply:
        results = reply.body
        if isinstance(results, dict) and "choices" in results:
            results = results["choices"][0]["message"]["content"].splitlines()  # a line for each document
        elif isinstance(results, dict):
            results = results.get("results", results.get("answers", ()))
        await asyncio.sleep(fixed + each * len(results))
        return reply

    return behaviour


async def measure(kind: Kind, budget: int, k: int, requests: int, folder: Path, rows: report.Rows) -> None:
    """Add rows of plain reranking and of selections: means over the requests."""
    wire = kind.wire()
    async with running(wire) as [server]:
        server.behaviour = taking(*kind.seconds)
        named = f"?model={wire.models[0]}" if wire.description_path is None else ""
        scorer_settings = {"url": f"{wire.scheme}://127.0.0.1:{server.port}{named}", **kind.settings}
        settings = Settings.model_validate(
            {"data_directory": folder, "scorer": scorer_settings, "cache": {"enabled": False}}
        )

        def build(settings: Settings, on_lost: Callable[[], None]) -> Parts:
            parts, scorer = fake_service(settings), build_scorer(settings)
            chosen = settings.scorer
            selector = Selector(parts.retriever, scorer, trust=declared_trust(chosen), full=full_pass(chosen))
            return replace(parts, scorer=scorer, selector=selector)

        texts = passages(1_000)
        pool = [{"id": str(place), "text": text} for place, text in enumerate(texts)]
        requested: dict[str, dict[str, Any]] = {
            f"first {FIRST}": {"pool": pool[:FIRST], "budget": FIRST, "k": k, "rounds": 1, "spend": "order"},
            f"{budget} chosen": {"pool": pool, "budget": budget, "k": k},
            f"{budget}, one round": {"pool": pool, "budget": budget, "k": k, "rounds": 1},
        }
        async with serving(settings, build) as client:
            for what, body in requested.items():
                queries, answers, seconds = queries_of(texts), list[dict[str, Any]](), list[float]()
                for _ in range(requests):
                    begin = time.perf_counter()
                    response = await client.post("/select", json={"query": next(queries), "ranked": True, **body})
                    seconds.append(time.perf_counter() - begin)
                    answers.append(answer(response))
                usages = [found["usage"] for found in answers]
                waits = [found["timings_ms"]["score"] / 1_000 for found in answers]
                rows.append(
                    {
                        "scorer": kind.name,
                        "scored": what,
                        "calls": fmean(usage["cross_encoder_calls"] for usage in usages),
                        "scorer_requests": fmean(usage["scorer_requests"] or 0.0 for usage in usages),
                        **report.percentiles(waits, shares=(50,), of="wait_p{}_ms"),
                        **report.percentiles(seconds, shares=(50,)),
                    }
                )


def main() -> None:
    """Measure all kinds, and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=int, default=25)
    parser.add_argument("--k", type=int, default=50)
    parser.add_argument("--requests", type=int, default=12, help="of each row, one after another")
    given = parser.parse_args()
    rows = report.Rows("scorers")
    for kind in KINDS:
        with TemporaryDirectory() as folder:
            asyncio.run(measure(kind, given.budget, given.k, given.requests, Path(folder), rows))
    rows.write({"requests": given.requests})


if __name__ == "__main__":
    report.run(main)
