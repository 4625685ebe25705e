"""`boundarymorph calibrate`: from suggested pairs to answers with a calibration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import orjson
import pytest

from boundarymorph import reading
from boundarymorph.calibration.calibration import Calibration, Trust
from boundarymorph.calibration.judgments import judgments_of, queries_of
from boundarymorph.cli.calibrate import print_calibration
from boundarymorph.cli.common import new_console
from boundarymorph.errors import InvalidInput
from boundarymorph.retrieval.index_retriever import pools_of
from boundarymorph.server import composition
from boundarymorph.settings import Settings
from tests.api.service import belongings, fake_service, fill_directory, texts
from tests.cli.conftest import Run
from tests.retrieval.fakes import vector_of
from tests.scoring.fakes import SeededScorer

QUERIES = [f"question {number}" for number in range(8)]
Calibrate = Callable[..., str]


@pytest.fixture
def calibrate(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calibrate:
    """The command on fakes, with the indexes of `filled`; returns what it prints."""
    monkeypatch.setattr(composition, "build", fake_service)
    asyncio.run(fill_directory(tmp_path))
    (tmp_path / "queries.txt").write_text("\n".join(QUERIES))

    def calibrate(*arguments: str) -> str:
        outcome = run("calibrate", *arguments, "--data-directory", ".")
        assert "error:" not in outcome.err, outcome.err
        return outcome.out

    return calibrate


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


def test_suggest_judge_and_learn(calibrate: Calibrate, tmp_path: Path) -> None:
    said = calibrate("texts", "--queries", "queries.txt", "--suggest", "160", "--budget", "20", "--out", "pairs.ndjson")
    assert "160 pairs in pairs.ndjson" in said
    pairs = [orjson.loads(line) for line in (tmp_path / "pairs.ndjson").read_bytes().splitlines()]
    assert {pair["query"] for pair in pairs} == set(QUERIES)
    assert all(pair["grade"] is None and pair["text"] for pair in pairs)
    assert len({(pair["query"], pair["document"]) for pair in pairs}) == 160

    (tmp_path / "judged.ndjson").write_text(judged(pairs))
    said = calibrate("texts", "--judgments", "judged.ndjson")
    assert "160 judgements of 8 queries" in said
    assert "the scorer is worse than your retriever" in said
    assert "the default of the index 'texts'" in said
    made = kept(tmp_path)
    assert made.form == "signals"
    assert made.scorer == SeededScorer().name


@pytest.mark.strangers
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"form": "none"}, "saved as calibration 'texts' of the index 'texts', which no answer uses"),
        ({}, "saved as calibration 'texts', the default of the index 'texts'"),
        ({"form": "scale", "name": "mine"}, "saved as calibration 'mine' of the index 'texts'"),
        ({"name": "mine", "index": None}, "saved as calibration 'mine' of pools"),
    ],
)
def test_the_last_line_says_what_the_calibration_is_for(changed: dict[str, Any], said: str) -> None:
    texts = Trust(1.0, 0.0)
    made = Calibration("texts", "signals", "any", None, 1e-6, texts, texts, index="texts")
    report = {
        "ncg": [], "trust": {}, "advice": "wait",
        **{f"{name}_{when}": 0.0 for name in ("log_loss", "error") for when in ("before", "after")},
        **{f"reliability_{when}": [] for when in ("before", "after")},
    }  # fmt: skip
    screen = StringIO()
    print_calibration(new_console(file=screen), replace(made, report=report, **changed), [])
    assert screen.getvalue().splitlines()[-1] == said


def test_pools_with_a_name(calibrate: Calibrate, tmp_path: Path) -> None:
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
    said = calibrate("--pools", "pools.ndjson", "--judgments", "judged.ndjson", "--name", "pools", "--gain", "grade")
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
        (["texts"], "give either"),
        (["texts", "--suggest", "3"], "--queries"),
        (["--pools", "queries.txt", "--name", "a", "--suggest", "3"], "line 1"),
    ],
)
def test_mistakes(calibrate: Calibrate, arguments: list[str], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        calibrate(*arguments)


@pytest.mark.strangers
def test_judgements_that_say_nothing(calibrate: Calibrate, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.ndjson"
    for grade, told in (("null", "no line has a grade yet"), ("2", "none of the judged documents .* 'nosuch'")):
        pairs.write_text(f'{{"query": "question 1", "document": "nosuch", "grade": {grade}}}')
        with pytest.raises(AssertionError, match=told):
            calibrate("texts", "--judgments", "pairs.ndjson")


@pytest.mark.strangers
def test_grades_are_not_written_over(calibrate: Calibrate, tmp_path: Path) -> None:
    arguments = "texts", "--queries", "queries.txt", "--suggest", "8", "--budget", "1", "--out"
    calibrate(*arguments, "new/pairs.ndjson")
    kept = (tmp_path / "new" / "pairs.ndjson").read_bytes()
    with pytest.raises(AssertionError, match="may have grades"):
        calibrate(*arguments, "new/pairs.ndjson")
    assert (tmp_path / "new" / "pairs.ndjson").read_bytes() == kept


def records(*lines: bytes) -> Iterator[reading.Record]:
    return reading.records((line + b"\n" for line in lines), "file")


def test_qrels_and_texts_of_queries() -> None:
    queries = queries_of(records(b"1\tfirst query", b"", b'{"_id": 2, "text": "second"}', b"third query"))
    assert queries == {"1": "first query", "2": "second", "third query": "third query"}
    assert judgments_of(records(b"1 0 d1 2", b"2\td2\t0", b"1 0 d1 3"), queries) == {
        "first query": {"d1": 3.0},
        "second": {"d2": 0.0},
    }
    lines = [b'{"query": "any", "document": 7, "grade": 1.5}', b'{"query": "any", "document": "8", "grade": null}']
    assert judgments_of(records(*lines)) == {"any": {"7": 1.5}}


@pytest.mark.parametrize(
    "line",
    [b"4 0 d1 2", b"1 2", b"1 0 d1 -1", b"1 0 d1 2\n1 0 d2 x", b'{"query": "q"', b'{"query": "q", "grade": 1}',
     b'{"query": "q", "document": "d", "grade": true}', b'{"document": "d", "grade": null}'],
)  # fmt: skip
def test_lines_that_are_no_judgement(line: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"file, line [12]"):
        judgments_of(records(line), {"1": "first"})
