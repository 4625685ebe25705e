"""Test the scripted agent: its questions, when it stops, and the figures that it reports."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray

from load_tests import bench_agents, report
from load_tests.bench_agents import (
    RERANKED,
    TOOLS,
    TURNS,
    Answer,
    Search,
    asked,
    known_by,
    played,
    remembering,
    researched,
)
from tests.evaluation.tables import synthetic

TOPICS = ("mucus calcium glands", "lung function tests", "salivary proteins")
TEXTS = [f"{topic} report{number}" for topic in TOPICS for number in range(50)]


def alike(query: str, texts: Sequence[str]) -> NDArray[np.float64]:
    """Score by the share of the query's words that a text contains."""
    words = query.split()
    return np.array([sum(word in text for word in words) / len(words) for text in texts])


def vectors_of(texts: Sequence[str]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.array([alike(text, TOPICS) for text in texts]) + 0.01
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return found


@pytest.fixture(params=["words", "vectors"])
def search(request: pytest.FixtureRequest) -> Search:
    vectors = vectors_of(TEXTS) if request.param == "vectors" else None
    return Search(TEXTS, alike, lambda query: vectors_of([query])[0], vectors)


@pytest.mark.parametrize("name", TOOLS)
def test_each_agent_tool_finds_unread_documents_on_the_question(search: Search, name: str) -> None:
    read = {0, 1}
    documents, calls = TOOLS[name](search, "mucus calcium", read)
    expected = {"k = 10, B = 25": range(1, 26), "k = 10, B = auto": range(1, 149), "k = 10 of 100 reranked": [RERANKED]}
    assert calls in expected.get(name, [0])
    assert len(set(documents)) == (40 if "40" in name else 10)
    assert not read & set(documents) and all(place < 50 for place in documents)


def test_agent_stops_when_it_has_read_enough_and_counts_its_work(search: Search) -> None:
    given = list[tuple[str, set[int]]]()

    def tool(search: Search, query: str, read: set[int]) -> Answer:
        given.append((query, read))
        return [10 * len(given), 10 * len(given) + 1], 7

    first = researched(search, tool, "lung function", {10, 11})
    assert first == {"needed": 2, "found": 2, "turns": 1, "calls": 7, "documents": 2, "tokens": 14}
    given.clear()
    second = researched(search, tool, "lung function", {10, 20, 99})
    assert (second["found"], second["turns"], second["calls"]) == (2, TURNS, 7 * TURNS)
    assert [read for _, read in given] == [set(), {10, 11}, {10, 11, 20, 21}]
    assert len({query for query, _ in given}) == TURNS
    search.turns = 1
    assert researched(search, tool, "lung function", {10, 20, 99})["turns"] == 1
    assert researched(search, tool, "lung", set(range(150)))["needed"] == bench_agents.NEEDED
    [row] = [row for row in played(search, {"mucus calcium": {3}, "no such thing": {149}}, "x") if "40" in row["tool"]]
    assert row["calls"] == 0 and row["found_per_100_calls"] == ""


def test_agent_queries_add_words_read_and_then_keep_rare_ones(search: Search) -> None:
    question = "lung tests report7"
    assert asked(0, question, "", search) == question
    assert asked(1, question, "lung mucus mucus glands report1", search) == f"{question} report1 mucus glands"
    assert asked(2, question, "", search) == "lung report7"


def test_known_by_maps_questions_and_texts_to_table_scores() -> None:
    table = synthetic(queries=2, n=6)
    texts = [f"text {place}" for place in range(6)]
    known = known_by(table, {"q1": "asked"}, texts)
    pool, scores = table.arrays["pool"][1], table.arrays["score"][1]
    assert known == {("asked", texts[row]): pytest.approx(score) for row, score in zip(pool, scores, strict=True)}


def test_remembering_scores_each_pair_once() -> None:
    seen = list[str]()

    def score(query: str, texts: Sequence[str]) -> NDArray[np.float64]:
        seen.extend(texts)
        return np.arange(1.0, len(texts) + 1)

    scored = remembering(score, {("q", "known"): 0.5})
    assert scored("q", ["a", "known", "b", "a"]).tolist() == [1.0, 0.5, 2.0, 1.0]
    assert scored("q", ["b"]).tolist() == [2.0] and scored("other", ["b"]).tolist() == [1.0]
    assert seen == ["a", "b", "b"]


@pytest.mark.usefixtures("tiny_weights")
@pytest.mark.parametrize("options", [[], ["--encode"]])
def test_agents_program_reads_a_beir_folder(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "corpus.jsonl": [{"_id": f"d{place}", "title": "", "text": text} for place, text in enumerate(TEXTS[:60])],
        "queries.jsonl": [{"_id": f"q{number}", "text": topic} for number, topic in enumerate(TOPICS[:2])],
    }
    for name, lines in files.items():
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "qrels.tsv").write_text("q0\td3\t1\nq1\td55\t2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["agents", "--data", str(tmp_path), "--every", "2", *options])
    bench_agents.main()
    [written] = report.RESULTS.glob("*.json")
    rows = orjson.loads(written.read_bytes())["rows"]
    assert [row["tool"] for row in rows] == list(TOOLS) and all(row["questions"] == 1 for row in rows)
    assert all(row["tokens"] > 0 and 0 <= row["evidence_found_percent"] <= 100 for row in rows)
