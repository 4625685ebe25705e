"""Selections for a file of queries, cut off and continued."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from boundarymorph.cli.batch import Answers, queries
from boundarymorph.cli.main import app
from boundarymorph.errors import InvalidInput
from tests.patience import PATIENCE

COUNT = 40


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.weights", *arguments]


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "BOUNDARYMORPH_CACHE__ENABLED": "false"}
    return subprocess.run(
        command(*arguments), cwd=directory, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def answers(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With an index, and queries for it."""
    folder = tmp_path_factory.mktemp("batch")
    words = ["tram", "violin", "bread", "harp", "boat", "salt", "rain"]
    documents = [{"id": f"d{n}", "text": f"{words[n % 7]} {words[n % 5]} {n}"} for n in range(60)]
    (folder / "docs.jsonl").write_bytes(b"\n".join(map(orjson.dumps, documents)))
    assert run(folder, "index", "build", "few", "--from", "docs.jsonl").returncode == 0
    lines = [{"_id": f"q{n}", "text": f"{words[n % 7]} and {words[n % 6]}", "metadata": {}} for n in range(COUNT)]
    (folder / "queries.jsonl").write_bytes(b"\n".join(map(orjson.dumps, lines)))
    return folder


def test_killed_and_continued(directory: Path) -> None:
    arguments = ("select", "few", "--queries", "queries.jsonl", "-B", "5", "-k", "4", "--out")
    cut = directory / "cut.jsonl"
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        command(*arguments, "cut.jsonl"), cwd=directory, env=variables, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + PATIENCE
    while not cut.exists() or cut.stat().st_size == 0:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = cut.read_bytes()
    cut.write_bytes(kept + kept[:50])  # a line that was not written to its end
    assert 0 < kept.count(b"\n") <= COUNT

    done = kept.count(b"\n")
    continued = run(directory, *arguments, "cut.jsonl")
    assert f"{done} were done, {COUNT - done} were made now, 0 failed" in " ".join(continued.stdout.split())
    found = answers(cut)
    assert cut.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])
    assert sorted(answer["query_id"] for answer in found) == sorted(f"q{n}" for n in range(COUNT))
    assert all(len(answer["documents"]) == 4 for answer in found)


def test_fields_of_a_query_and_what_fails(directory: Path) -> None:
    lines = [
        {"id": 7, "query": "tram", "k": 2, "return_documents": True},
        {"id": "wrong", "query": "tram", "budgett": 3},
        {"id": "deep", "query": "tram", "budget": 5_000},
    ]
    content = b"\n".join([*map(orjson.dumps, lines), b"", b"plain words of a query"])
    (directory / "mixed.jsonl").write_bytes(content)
    arguments = ("select", "few", "--queries", "mixed.jsonl", "--out", "mixed.out", "-B", "3", "-k", "5")
    outcome = run(directory, *arguments)
    assert outcome.returncode == 1 and "2 failed" in outcome.stdout
    found = {answer["query_id"]: answer for answer in answers(directory / "mixed.out")}
    assert len(found["7"]["documents"]) == 2 and found["7"]["documents"][0]["text"]
    assert len(found["5"]["documents"]) == 5 and found["5"]["usage"]["budget"] == 3
    assert "budgett" in found["wrong"]["problem"]["detail"]
    assert found["deep"]["problem"]["type"].endswith("limit-exceeded")


@pytest.mark.parametrize(
    ("content", "mistake"),
    [
        (b'{"id": 1}', "no 'query'"),
        (b'{"query": "a"', "not JSON"),
        (b'{"id": "2", "query": "a"}\nplain', "two queries have the id '2'"),
    ],
)
def test_mistakes_in_the_queries(tmp_path: Path, content: bytes, mistake: str) -> None:
    path = tmp_path / "queries"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=mistake):
        queries(path)


def test_lines_of_text(tmp_path: Path) -> None:
    path = tmp_path / "queries"
    path.write_text("first\n\n  third \n")
    assert list(queries(path)) == [("1", {"query": "first"}), ("3", {"query": "third"})]


def test_a_file_that_is_something_else(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    for content in (b"no json\n", b"[]\n", b'{"documents": []}\n'):
        path.write_bytes(content)
        with pytest.raises(InvalidInput, match="no answers"):
            Answers(path, {})
        assert path.read_bytes() == content, "it is left as it was"
    path.unlink()
    first = Answers(path, {})
    with pytest.raises(InvalidInput, match="another process"):
        Answers(path, {})
    first.close()
    Answers(path, {}).close()


def test_answers_to_other_options(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    first = Answers(path, {"k": 1})
    first.write("a", {"documents": []})
    first.write("b", {"problem": {}})
    first.close()
    with pytest.raises(InvalidInput, match="other options"):
        Answers(path, {"k": 2})
    again = Answers(path, {"k": 1})
    assert again.done == {"a"}, "what failed is not done"
    again.close()


@pytest.mark.parametrize("given", [("q", "--queries", "FILE", "--out", "x"), ("--queries", "FILE"), ("--out", "x")])
def test_a_query_and_a_file_of_queries_exclude_each_other(tmp_path: Path, given: tuple[str, ...]) -> None:
    path = tmp_path / "queries"
    path.write_text("q")
    arguments = [str(path) if part == "FILE" else str(tmp_path / "x") if part == "x" else part for part in given]
    outcome = CliRunner().invoke(app, ["select", "few", *arguments])
    assert outcome.exit_code == 2 and "or --queries and --out" in " ".join(outcome.output.split())
    assert not (tmp_path / "x").exists()


@pytest.mark.strangers
@pytest.mark.parametrize(
    "content",
    [
        b'\xef\xbb\xbf{"id":"q1","query":"sea"}\r\n{"id":"3","query":"hills"}\r\n',
        b'[{"id":"q1","query":"sea"},\n {"id":3,"text":"hills"}]',
        b"query_id\tquery\nq1\tsea\n3\thills\n",
    ],
)
def test_queries_of_other_tools(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "queries"
    path.write_bytes(content)
    assert list(queries(path)) == [("q1", {"query": "sea"}), ("3", {"query": "hills"})]
    path.write_bytes(gzip.compress(content))
    assert [id for id, _ in queries(path)] == ["q1", "3"]
