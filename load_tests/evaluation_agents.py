"""`boundarymorph evaluate` with agents beside the selectors -> build/evaluation-agents/NAME: nCG against seconds.

python -m load_tests.evaluation_agents COLLECTION TABLE --queries 20 --delay 1

COLLECTION is a BEIR folder, TABLE an .npz of it with scores and human grades (`evaluation.tables`). Of the agents
(`evaluation.methods.agentic`) everything is real but the language model, which a script plays over a real socket and
which takes `--delay` seconds for each answer. The script reads as well as the scorer that the selectors call, or, with
`--reads people`, as the people who judged the collection. What a call of the embedded cross-encoder takes is measured
first, as CPU time on one core, which is how the report has the time of everything but the language model.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import orjson

from boundarymorph.evaluation import datasets, tables
from boundarymorph.evaluation.methods.agentic import CHARACTERS
from boundarymorph.evaluation.problem import Question
from boundarymorph.scoring.build import build_local_scorer
from boundarymorph.settings import Settings
from load_tests import report
from load_tests.command import output_of
from tests.faults import stand_in
from tests.scoring.judge.scripted import MODEL, completion
from tests.scoring.remote.servers import Reply, Wire, slow

OUT = Path("build/evaluation-agents")
METHODS = "mips,ss,rgs,gar,quam,bagel,product,trend@auto"
K = 50
NOTED, WORDS = 5, 40  # documents of a read that are noted, words of each
TIMED = 60  # pairs
NEED = re.compile(r"about this need:\n(.*?)\n\nWhat we know so far:\n(.*?)\n\n(?:Compose|These documents)", re.DOTALL)
LISTED = re.compile(r"These documents were found:\n(.*)\n\nGrade each", re.DOTALL)
NUMBERED = re.compile(r"(?:^|\n\n)\[(\d+)\] ")


class ScriptedAgent(Wire):
    """A chat model that searches and reads as the agentic loop asks it to.

    A search is the need with the latest notes behind it. A read grades each document by `relevance`, in [0, 1] by
    query and the part of the text that is shown, in whole tenths; its notes are the first words of the best
    documents above 0.
    """

    scheme, most, score_path = "openai+http", 1, "/v1/chat/completions"

    def __init__(self, relevance: Mapping[tuple[str, str], float]) -> None:
        self._relevance = relevance

    def reply(self, body: dict[str, Any]) -> Reply:
        prompt = body["messages"][0]["content"]
        found = NEED.search(prompt)
        assert found is not None, prompt
        need, notes = found[1], [line.removeprefix("- ") for line in found[2].splitlines() if line.startswith("- ")]
        listed = LISTED.search(prompt)
        answer = " ".join([need, *notes[-NOTED:]]) if listed is None else self._read(need, listed[1])
        return Reply(completion(answer))

    def _read(self, need: str, listed: str) -> str:
        _, *parts = NUMBERED.split(listed)
        texts = dict(zip(parts[::2], parts[1::2], strict=True))
        grades = {number: round(10 * self._relevance[need, text]) for number, text in texts.items()}
        best = sorted((number for number in grades if grades[number]), key=lambda number: -grades[number])[:NOTED]
        notes = [" ".join(texts[number].split()[:WORDS]) for number in best]
        return orjson.dumps({"grades": grades, "notes": notes}).decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection", type=Path)
    parser.add_argument("table", type=Path)
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--budgets", default="10,25,50")
    parser.add_argument("--delay", type=float, default=1.0, help="seconds that the language model takes for an answer")
    parser.add_argument("--call-seconds", type=float, help="of the cross-encoder, if it is not to be measured")
    parser.add_argument("--reads", choices=["scorer", "people"], default="scorer", help="as whom the model grades")
    given = parser.parse_args()
    table = tables.with_texts(tables.read(given.table), datasets.load(str(given.collection)))
    if table is None:
        parser.error(f"{given.collection} lacks texts of {given.table}")
    questions = list(table.first(given.queries).questions())
    seconds = given.call_seconds or asyncio.run(_measured(questions))
    out = OUT / f"{given.table.stem}-{given.reads}"
    with stand_in.running(ScriptedAgent(_relevance(questions, given.reads))) as server:
        server.behaviour = slow(given.delay)
        command = ["boundarymorph", "evaluate", "--table", str(given.table), "--texts", str(given.collection)]
        command += ["--queries", str(given.queries), "--methods", METHODS, "--budgets", given.budgets, "--k", str(K)]
        command += ["--call-seconds", f"{seconds:.4f}", "--chat-url", f"http://127.0.0.1:{server.port}/v1"]
        command += ["--chat-model", MODEL, "--out", str(out)]
        print(f"$ {' '.join(command)}", flush=True)
        print(output_of(command))
        print(f"\nThe language model was asked {len(server.asked):,} times, {given.delay:g} s each.\n")
    lines = _table(out / "per_query.csv", seconds)
    (out / "agents.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def _relevance(questions: Sequence[Question], reads: str) -> dict[tuple[str, str], float]:
    """What a script that reads as the scorer or as people makes of each query and the shown part of each document."""
    found: dict[tuple[str, str], float] = {}
    for question in questions:
        assert question.texts is not None
        values = question.scores
        if reads == "people":
            assert question.grades is not None, "the table has no human grades"
            values = question.grades / max(question.grades.max(), 1)
        shown = (text[:CHARACTERS] for text in question.texts.documents)
        found |= {(question.texts.query, text): float(value) for text, value in zip(shown, values, strict=True)}
    return found


async def _measured(questions: Sequence[Question]) -> float:
    """CPU time of a call of the embedded cross-encoder on one core, over the heads of the pools."""
    scorer = build_local_scorer(Settings.load(threads=1))
    times = []
    for question in questions:
        assert question.texts is not None
        for text in question.texts.documents[: -(-TIMED // len(questions))]:
            begin = process_time()
            await scorer.score(question.texts.query, [text])
            times.append(process_time() - begin)
    await scorer.close()
    return float(np.median(times))


def _table(path: Path, call_seconds: float) -> list[str]:
    """Means of quality and of calls, and median seconds with the calls one after the other, by method and B."""
    groups: dict[tuple[str, int], list[dict[str, str]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            groups.setdefault((row["method"], int(row["budget"])), []).append(row)
    lines = [f"| method | B | cross-encoder calls | language model calls | seconds | CE-nCG@{K} | nCG@{K} |"]
    lines += ["|---|---:|---:|---:|---:|---:|---:|"]
    for (method, budget), rows in groups.items():
        values = {
            key: np.array([float(row[key] or "nan") for row in rows])
            for key in ("calls", "prompts", "waiting", "seconds")
        }
        ce, human = (100 * np.nanmean([float(row[key] or "nan") for row in rows]) for key in ("ce_ncg", "ncg"))
        total = np.median(values["calls"] * call_seconds + values["waiting"] + values["seconds"])
        lines.append(
            f"| {method} | {budget} | {values['calls'].mean():.0f} | {values['prompts'].mean():.0f} | {total:.2f} | "
            f"{ce:.1f} | {human:.1f} |"
        )
    return lines


if __name__ == "__main__":
    report.run(main)
