"""`boundarymorph calibrate`: from suggested pairs to answers with a calibration."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from boundarymorph.calibration.calibration import Calibration
from boundarymorph.calibration.files import judgments_of, queries_of
from boundarymorph.cli import common
from boundarymorph.cli import main as cli
from boundarymorph.errors import InvalidInput
from boundarymorph.retrieval.learned import pools_of
from boundarymorph.server import composition
from boundarymorph.settings import Settings
from tests.api.service import answer, belongings, fake_service, filled, texts
from tests.faults import stand_in
from tests.retrieval.fakes import vector_of
from tests.scoring.fakes import SeededScorer
from tests.scoring.judge.scripted import Chat

QUERIES = [f"question {number}" for number in range(8)]
Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command on fakes, with the indexes of `filled`; returns what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(common.console, "width", 160)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(composition, "build", fake_service)
    asyncio.run(_filled(tmp_path))
    (tmp_path / "queries.txt").write_text("\n".join(QUERIES))

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["boundarymorph", "calibrate", *arguments, "--data-directory", "."])
        with suppress(SystemExit):
            cli.main()
        captured = capsys.readouterr()
        assert "error:" not in captured.err, captured.err
        return captured.out + captured.err

    return run


async def _filled(folder: Path) -> None:
    async with filled(Settings(data_directory=folder)):
        pass


def kept(folder: Path, name: str | None = None) -> Calibration:
    made = belongings(Settings(data_directory=folder), "texts").calibration(name)
    assert made is not None
    return made


def near(query: str, text: str) -> float:
    """A person's view: by the cosine of fake vectors, which the retriever knows and the fake scorer does not."""
    return float(vector_of(query) @ vector_of(text))


def judged(pairs: Sequence[dict[str, Any]]) -> str:
    """The pairs with grades: of each query, the nearest eight are relevant."""
    nearest: dict[str, list[float]] = {}
    for pair in pairs:
        nearest.setdefault(pair["query"], []).append(near(pair["query"], pair["text"]))
    least = {query: sorted(values)[-8] for query, values in nearest.items()}
    rows = [{**pair, "grade": 2 * int(near(pair["query"], pair["text"]) >= least[pair["query"]])} for pair in pairs]
    return "\n".join(orjson.dumps(row).decode() for row in rows)


def test_suggest_judge_and_learn(run: Run, tmp_path: Path) -> None:
    said = run("texts", "--queries", "queries.txt", "--suggest", "160", "--budget", "20", "--out", "pairs.ndjson")
    assert "160 pairs in pairs.ndjson" in said
    assert "of 8 queries, each with 20 calls" in said
    pairs = [orjson.loads(line) for line in (tmp_path / "pairs.ndjson").read_bytes().splitlines()]
    assert {pair["query"] for pair in pairs} == set(QUERIES)
    assert all(pair["grade"] is None and pair["text"] for pair in pairs)
    assert len({(pair["query"], pair["document"]) for pair in pairs}) == 160

    (tmp_path / "judged.ndjson").write_text(judged(pairs))
    said = run("texts", "--judgments", "judged.ndjson")
    assert "160 judgements of 8 queries" in said
    assert "the scorer is worse than your retriever here" in said
    assert "the default of the index 'texts'" in said
    made = kept(tmp_path)
    assert made.form == "signals"
    assert made.scorer == SeededScorer().name
    asyncio.run(_answers(tmp_path))
    asyncio.run(_clicks(tmp_path))
    said = run("texts", "--update", "--judgments", "judged.ndjson")
    assert "170 judgements of 9 queries" in said


async def _clicks(folder: Path) -> None:
    """Of a further query: ten documents are shown, and the second is clicked."""
    shown = [{"document": f"d{number}", "rank": number, "clicked": number == 2} for number in range(1, 11)]
    async with filled(Settings(data_directory=folder)) as client:
        answer(await client.post("/judgments", json={"query": "question 99", "index": "texts", "judgments": shown}))


async def _answers(folder: Path) -> None:
    async with filled(Settings(data_directory=folder)) as client:
        request = {"query": "question 99", "index": "texts", "budget": 10, "k": 8, "return_documents": True}
        told = answer(await client.post("/select", json=request))
        bare = answer(await client.post("/select", json={**request, "calibration": False}))
    assert (told["calibration"], bare["calibration"]) == ("texts", None)
    assert not told["warnings"]
    nearness = [np.mean([near("question 99", found["text"]) for found in body["documents"]]) for body in (told, bare)]
    assert nearness[0] > nearness[1]


def test_a_language_model_judges(run: Run, tmp_path: Path) -> None:
    with stand_in.running(Chat(lambda query, text: float(near(query, text) > 0.3))) as server:
        url = f"openai+http://127.0.0.1:{server.port}/v1?model=scripted"
        said = run("texts", "--queries", "queries.txt", "--judge", url, "--yes", "--name", "judged", "--json")
        assert len(server.asked) >= 8 * 30
    assert "pairs are to be graded" in said
    made = kept(tmp_path, "judged")
    assert made.queries == 8


def test_a_ceiling_of_cost(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The language model is asked until the ceiling is reached; what it would not grade ends the command."""
    monkeypatch.setenv("BOUNDARYMORPH_SCORER__JUDGE__INPUT_PRICE", "1000")
    with stand_in.running(Chat(lambda query, text: 1.0)) as server:
        url = f"openai+http://127.0.0.1:{server.port}/v1?model=scripted"
        wanted = ("texts", "--queries", "queries.txt", "--judge", url, "--name", "dear")
        with pytest.raises(AssertionError, match="--yes"):
            run(*wanted)
        assert not server.asked
        with pytest.raises(AssertionError, match="raise the limit"):
            run(*wanted, "--max-cost", "1")
        assert len(server.asked) < 8 * 30
    assert belongings(Settings(data_directory=tmp_path), "texts").calibration("dear") is None


@pytest.mark.strangers
@pytest.mark.parametrize("out", [None, "grades.ndjson"])
def test_what_was_paid_for_is_kept(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str | None) -> None:
    """A run that ends at its ceiling keeps its grades; the next asks for what is missing, and a third for nothing."""
    monkeypatch.setenv("BOUNDARYMORPH_SCORER__JUDGE__INPUT_PRICE", "1000")
    with stand_in.running(Chat(lambda query, text: float(near(query, text) > 0.3))) as server:
        url = f"openai+http://127.0.0.1:{server.port}/v1?model=scripted"
        given = () if out is None else ("--out", out)
        wanted = ("texts", "--queries", "queries.txt", "--judge", url, "--name", "dear", *given)
        with pytest.raises(AssertionError, match="the same command continues from there"):
            run(*wanted, "--max-cost", "10")
        file = tmp_path / (out or "judged/dear.ndjson")
        rows = [orjson.loads(line) for line in file.read_bytes().splitlines()]
        first = {(row["query"], row["document"]) for row in rows}
        assert len(first) == len(rows) >= 3
        assert all(row["grade"] in (0, 3) and "scripted" in row["model"] for row in rows)
        paid = len(server.asked)
        assert paid <= len(rows) + 10  # what was under way at the end
        with file.open("ab") as cut:
            cut.write(b'{"query": "question 7", "docu')
        run(*wanted, "--max-cost", "1000")
        rows = [orjson.loads(line) for line in file.read_bytes().splitlines()]
        pairs = {(row["query"], row["document"]) for row in rows}
        assert first < pairs and len(pairs) == len(rows)
        assert len(server.asked) - paid == len(rows) - len(first) + 1  # a run begins with a check
        paid = len(server.asked)
        said = run(*wanted, "--max-cost", "1000", "--json")
        assert len(server.asked) == paid
    made = kept(tmp_path, "dear")
    assert (made.queries, made.judgments) == (8, len(rows))
    assert str(file.relative_to(tmp_path)) in said
    run("texts", "--judgments", str(file), "--name", "again")
    assert kept(tmp_path, "again").judgments == made.judgments


@pytest.mark.strangers
def test_grades_from_which_nothing_can_be_learned_are_kept(run: Run, tmp_path: Path) -> None:
    with stand_in.running(Chat(lambda query, text: 1.0)) as server:
        url = f"openai+http://127.0.0.1:{server.port}/v1?model=scripted"
        with pytest.raises(AssertionError, match="relevant"):
            run("texts", "--queries", "queries.txt", "--judge", url, "--yes")
        paid = len(server.asked)
        rows = len((tmp_path / "judged/texts.ndjson").read_bytes().splitlines())
        assert rows == paid - 1 > 0  # one request was its check
        with pytest.raises(AssertionError, match="relevant"):
            run("texts", "--queries", "queries.txt", "--judge", url, "--yes")
        assert len(server.asked) == paid


@pytest.mark.strangers
def test_a_ceiling_without_prices_is_refused(run: Run) -> None:
    with stand_in.running(Chat(lambda query, text: 1.0)) as server:
        url = f"openai+http://127.0.0.1:{server.port}/v1?model=scripted"
        with pytest.raises(AssertionError, match="input_price"):
            run("texts", "--queries", "queries.txt", "--judge", url, "--max-cost", "2")
        assert not server.asked


@pytest.mark.strangers
def test_a_file_of_something_else_is_not_written_to(run: Run, tmp_path: Path) -> None:
    with stand_in.running(Chat(lambda query, text: 1.0)) as server:
        url = f"openai+http://127.0.0.1:{server.port}/v1?model=scripted"
        with pytest.raises(AssertionError, match="no grade of a language model"):
            run("texts", "--queries", "queries.txt", "--judge", url, "--yes", "--out", "queries.txt")
        assert not server.asked
    assert (tmp_path / "queries.txt").read_text() == "\n".join(QUERIES)


@pytest.mark.strangers
@pytest.mark.parametrize(
    "content",
    [
        b'\xef\xbb\xbf{"query": "one"}\r\n{"query": "two"}\r\n',
        b'\xef\xbb\xbf["one", "two"]',
        b'[\n  {"_id": "1", "text": "one"},\n  {"_id": "2", "text": "two"}\n]\n',
        b"\xef\xbb\xbfone\r\n\r\ntwo",
        b"1\tone\n2\ttwo\n",
    ],
)
def test_files_of_queries_as_people_have_them(content: bytes) -> None:
    assert list(queries_of(content.splitlines(keepends=True), "queries").values()) == ["one", "two"]


@pytest.mark.strangers
@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("\ufeffone".encode("utf-16-le"), "UTF-16"),
        ("Übung".encode("latin-1"), "line 1: not UTF-8"),
        (b'{\n  "query": "one"\n}', "one object a line"),
        (b'[{"query": "one"},', "is none"),
        (b"[1, 2]".replace(b"1", b"{}"), "element 1"),
    ],
)
def test_files_that_cannot_be_read(content: bytes, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        queries_of(content.splitlines(keepends=True), "queries")


def test_pools_with_a_name(run: Run, tmp_path: Path) -> None:
    pool = texts(30)
    (tmp_path / "pools.ndjson").write_bytes(
        b"\n".join(orjson.dumps({"query": query, "documents": pool}) for query in QUERIES)
    )
    grades = [
        {"query": query, "document": document["id"], "grade": int(near(query, document["text"]) > 0.2)}
        for query in QUERIES
        for document in [*pool, {"id": "unknown", "text": ""}]
    ]
    (tmp_path / "judged.ndjson").write_bytes(b"\n".join(map(orjson.dumps, grades)))
    said = run("--pools", "pools.ndjson", "--judgments", "judged.ndjson", "--name", "pools", "--gain", "grade")
    assert "240 judgements of 8 queries" in said
    assert "8 more were in no pool: 'unknown'" in said
    made = pools_of(Settings(data_directory=tmp_path)).get("pools")
    assert made is not None
    assert (made.encoder, made.gain) == ("words", "grade")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name an index"),
        (["texts", "--pools", "queries.txt"], "name an index"),
        (["--pools", "queries.txt", "--suggest", "3"], "--name"),
        (["texts"], "give one of"),
        (["texts", "--suggest", "3"], "--queries"),
        (["texts", "--judge", "http://127.0.0.1", "--queries", "queries.txt"], "openai://"),
        (["--pools", "queries.txt", "--name", "a", "--suggest", "3"], "line 1"),
    ],
)
def test_mistakes(run: Run, arguments: list[str], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        run(*arguments)


@pytest.mark.strangers
def test_judgements_that_say_nothing(run: Run, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.ndjson"
    for grade, told in (("null", "no line has a grade yet"), ("2", "none of the judged documents .* 'nosuch'")):
        pairs.write_text(f'{{"query": "question 1", "document": "nosuch", "grade": {grade}}}')
        with pytest.raises(AssertionError, match=told):
            run("texts", "--judgments", "pairs.ndjson")


def test_qrels_and_texts_of_queries() -> None:
    queries = queries_of([b"1\tfirst query", b"", b'{"_id": 2, "text": "second"}', b"third query"], "file")
    assert queries == {"1": "first query", "2": "second", "third query": "third query"}
    assert judgments_of([b"1 0 d1 2", b"2\td2\t0", b"1 0 d1 3"], "file", queries) == {
        "first query": {"d1": 3.0},
        "second": {"d2": 0.0},
    }
    lines = [b'{"query": "any", "document": 7, "grade": 1.5}', b'{"query": "any", "document": "8", "grade": null}']
    assert judgments_of(lines, "file") == {"any": {"7": 1.5}}


@pytest.mark.parametrize(
    "line",
    [b"4 0 d1 2", b"1 d1", b"1 0 d1 -1", b"1 0 d1 x", b'{"query": "q"', b'{"query": "q", "grade": 1}',
     b'{"query": "q", "document": "d", "grade": true}', b'{"document": "d", "grade": null}'],
)  # fmt: skip
def test_lines_that_are_no_judgement(line: bytes) -> None:
    with pytest.raises(InvalidInput, match="file, line 1"):
        judgments_of([line], "file", {"1": "first"})
