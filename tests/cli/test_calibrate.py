"""Test `boundarymorph calibrate`: suggested pairs, judgements, and calibrated answers."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from boundarymorph import reading
from boundarymorph.calibration.calibration import Calibration
from boundarymorph.calibration.judgments import judgments_of, queries_of
from boundarymorph.errors import InvalidInput
from boundarymorph.server import composition
from boundarymorph.settings import Settings
from tests.cli.conftest import Run
from tests.fakes.scorer import SeededScorer, score_of
from tests.fakes.service import answer, artifacts, fake_service, fill_directory, serving, texts
from tests.retrieval.fakes import vector_of

QUERIES = [f"question {number}" for number in range(8)]
Calibrate = Callable[..., str]


@pytest.fixture
def calibrate(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calibrate:
    """Return a function that runs the command with fake models, and returns its output.

    The indexes are those of `fill_directory`.
    """
    monkeypatch.setattr(composition, "build", fake_service)
    asyncio.run(fill_directory(tmp_path))
    (tmp_path / "queries.txt").write_text("\n".join(QUERIES))

    def calibrate(*arguments: str) -> str:
        outcome = run("calibrate", *arguments, "--data-directory", ".")
        assert "error:" not in outcome.err, outcome.err
        return outcome.out

    return calibrate


def stored_calibration(folder: Path) -> Calibration | None:
    return artifacts(Settings(data_directory=folder), "texts").read().calibration


def worth(pair: dict[str, Any]) -> float:
    """Return a pair's worth for a person: the score plus the cosine of the fake vectors.

    The scorer does not know the cosine.
    """
    return score_of(pair["query"], pair["text"]) + float(vector_of(pair["query"]) @ vector_of(pair["text"]))


def judged(pairs: Sequence[dict[str, Any]]) -> bytes:
    """Return the pairs with grades, in which the best eight of each query are relevant."""
    of_query: dict[str, list[float]] = {}
    for pair in pairs:
        of_query.setdefault(pair["query"], []).append(worth(pair))
    least = {query: sorted(values)[-8] for query, values in of_query.items()}
    return b"\n".join(orjson.dumps({**pair, "grade": 2 * int(worth(pair) >= least[pair["query"]])}) for pair in pairs)


def test_calibrate_learns_an_index_calibration_from_suggested_pairs(
    calibrate: Calibrate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOUNDARYMORPH_DEADLINE_SECONDS", "0.001")  # a limit for requests only
    said = calibrate("texts", "--queries", "queries.txt", "--suggest", "160", "--budget", "20", "--out", "pairs.ndjson")
    assert "160 pairs in pairs.ndjson" in said
    pairs = [orjson.loads(line) for line in (tmp_path / "pairs.ndjson").read_bytes().splitlines()]
    assert {pair["query"] for pair in pairs} == set(QUERIES)
    assert all(pair["grade"] is None and pair["text"] for pair in pairs)
    assert len({(pair["query"], pair["document"]) for pair in pairs}) == 160
    (tmp_path / "judged.ndjson").write_bytes(judged(pairs))
    said = calibrate("texts", "--judgments", "judged.ndjson")
    assert "160 judgements of 8 queries" in said
    assert "Relevance is now the probability that a person agrees" in said
    assert "relevant above others" in said and "than your retriever here" in said
    assert said.splitlines()[-1] == "saved in the index 'texts'"
    made = stored_calibration(tmp_path)
    assert made is not None and "human" in made.maps
    assert (made.scorer, made.queries, made.judgments) == (SeededScorer().name, 8, 160)


def test_calibrate_writes_a_calibration_file_for_pools(calibrate: Calibrate, tmp_path: Path) -> None:
    pool = texts(30)
    (tmp_path / "pools.ndjson").write_bytes(
        b"\n".join(orjson.dumps({"query": query, "documents": pool}) for query in QUERIES)
    )
    pairs = [
        {"query": query, "document": document["id"], "text": document["text"]}
        for query in QUERIES
        for document in [*pool, {"id": "unknown", "text": "nothing"}]
    ]
    (tmp_path / "judged.ndjson").write_bytes(judged(pairs))
    said = calibrate("--pools", "pools.ndjson", "--judgments", "judged.ndjson", "--out", "new/calibration.json")
    assert "240 judgements of 8 queries" in said
    assert "8 more were in no pool: 'unknown'" in said
    assert "set `calibration` to this file" in said
    made = Calibration.from_json(orjson.loads((tmp_path / "new" / "calibration.json").read_bytes()))
    assert made.encoder == "words" and "human" in made.maps
    found = asyncio.run(_answered(Settings(data_directory=tmp_path, calibration=tmp_path / "new" / "calibration.json")))
    assert found["calibration"] == made.created


async def _answered(settings: Settings) -> dict[str, Any]:
    async with serving(settings) as client:
        return answer(await client.post("/select", json={"query": QUERIES[0], "pool": texts(30)}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "name an index"),
        ("texts --pools queries.txt", "name an index"),
        ("--pools queries.txt --judgments queries.txt", "--out FILE"),
        ("texts", "give either"),
        ("texts --suggest 3", "--queries"),
        ("--pools queries.txt --suggest 3", "line 1"),
        pytest.param("texts --judgments ungraded", "no line has a grade yet", marks=pytest.mark.strangers),
        pytest.param(
            "texts --judgments others", "none of the judged documents .* 'nosuch'", marks=pytest.mark.strangers
        ),
    ],
)
def test_calibrate_explains_wrong_arguments(calibrate: Calibrate, tmp_path: Path, arguments: str, message: str) -> None:
    for name, grade in (("ungraded", "null"), ("others", "2")):
        (tmp_path / name).write_text(f'{{"query": "question 1", "document": "nosuch", "grade": {grade}}}')
    with pytest.raises(AssertionError, match=message):
        calibrate(*arguments.split())


@pytest.mark.strangers
def test_calibrate_never_overwrites_a_file_with_grades(calibrate: Calibrate, tmp_path: Path) -> None:
    arguments = "texts", "--queries", "queries.txt", "--suggest", "8", "--budget", "1", "--out"
    calibrate(*arguments, "new/pairs.ndjson")
    kept = (tmp_path / "new" / "pairs.ndjson").read_bytes()
    with pytest.raises(AssertionError, match="may have grades"):
        calibrate(*arguments, "new/pairs.ndjson")
    assert (tmp_path / "new" / "pairs.ndjson").read_bytes() == kept


def records(*lines: bytes) -> Iterator[reading.Record]:
    return reading.records((line + b"\n" for line in lines), "file")


def test_calibrate_reads_qrels_and_query_texts() -> None:
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
def test_malformed_judgement_line_is_refused_with_its_number(line: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"file, line [12]"):
        judgments_of(records(line), {"1": "first"})
