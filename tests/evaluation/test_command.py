"""Test `boundarymorph evaluate` on synthetic tables, on texts, and with the docs' example."""

import csv
import gzip
import json
import re
import runpy
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.typing import ColorType
from typer.testing import CliRunner

from boundarymorph.cli.common import new_console
from boundarymorph.cli.main import app
from boundarymorph.errors import BoundaryMorphError, InvalidInput
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.retrieval.encoders.encoder import BatchingEncoder
from boundarymorph.selection.methods import PAPER
from boundarymorph_evaluation import evaluate as command
from boundarymorph_evaluation import plots, report, tables
from boundarymorph_evaluation.options import Evaluation
from tests.evaluation.tables import synthetic
from tests.fakes.scorer import score_of
from tests.fakes.upstream import answer, in_a_thread
from tests.fakes.wires import Server
from tests.retrieval.fakes import SeededEncoder
from tests.scoring.chat.scripted import Chat, completion, pair_of

GRID = ["--budgets", "4,8", "--k", "5,10"]
METRICS = {"ce_ncg", "ncg", "ndcg_10"}
GOLDEN = Path(__file__).with_name("report.md")
PAGE = Path(__file__).parents[2] / "service" / "boundarymorph_evaluation" / "README.md"


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["evaluate", *(str(argument) for argument in arguments)])
    if isinstance(result.exception, BoundaryMorphError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make reports without plots."""
    monkeypatch.setattr(report, "_draw", lambda studies, folder: {})


@pytest.fixture
def small_pictures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Draw figures small and without layout, which takes most of the time; return them."""
    drawn = list[Figure]()

    def figure(figsize: tuple[float, float], layout: str, dpi: int) -> Figure:
        drawn.append(Figure(figsize, dpi=30))
        return drawn[-1]

    monkeypatch.setattr(plots, "Figure", figure)
    return drawn


def distinguishable(one: ColorType, other: ColorType) -> bool:
    """Return whether two colours differ without red-green vision (Machado and others 2009)."""
    lost = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    seen = [np.clip(np.array(lost) @ np.array(to_rgb(colour)) ** 2.2, 0, 1) ** (1 / 2.2) for colour in (one, other)]
    return bool(np.linalg.norm(seen[0] - seen[1]) > 0.25)


def rows_of(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".csv":
        with path.open() as file:
            return list(csv.DictReader(file))
    rows: list[dict[str, Any]] = json.loads(path.read_bytes())["rows"]
    return rows


def test_evaluate_writes_the_report_of_two_tables(tmp_path: Path, small_pictures: list[Figure]) -> None:
    """The expected report.md is beside this test, without times and empty lines.

    A failure names the new file.
    """
    one, out = synthetic(n=45, seed=1), tmp_path / "out"
    tables.write(replace(one, arrays={**one.arrays, "call_seconds": np.array(0.02)}), tmp_path / "one.npz")
    tables.write(synthetic(n=45, seed=2, queries=2, without=["bm25", "grade"]), tmp_path / "other.npz")
    given: list[str | Path] = ["--table", tmp_path / "one.npz", "--table", tmp_path / "other.npz"]
    given += ["--budgets", "8", "--k", "10"]
    shown = run(*given, "--out", out, "--methods", "mips,bm25,ss,boundarymorph")
    text = re.sub(r"\n+", "\n", (out / "report.md").read_text())
    text = re.sub(r"( \d+ % )?\| [\d.]+ ms \|$", "… |", text, flags=re.MULTILINE)
    (tmp_path / "report.md").write_text(text)
    assert text == GOLDEN.read_text(), f"it differs from {tmp_path / 'report.md'}"
    pictures = re.findall(r"^!\[.*\]\((.*)\)$", text, re.MULTILINE)
    assert sorted(pictures) == sorted(f"plots/{path.name}" for path in (out / "plots").iterdir())
    assert all((out / picture).read_bytes().startswith(b"\x89PNG") for picture in pictures)
    titles = {figure.get_suptitle() for figure in small_pictures}
    assert titles == {"nCG: one", "nDCG@10: one", "CE-nCG: one", "CE-nCG: other", "CE-nCG: mean of tables"}
    for panel in (panel for figure in small_pictures for panel in figure.axes):
        wide = [line.get_color() for line in panel.lines if line.get_linewidth() > 1]
        assert len(wide) == 3 and all(distinguishable(*pair) for pair in combinations(wide, 2))
        assert {line.get_color() for line in panel.lines if line.get_linewidth() == 1} <= {plots.OTHERS}
    assert "CE-nCG (%)" in shown and "other: bm25 left out: the table has no bm25" in " ".join(shown.split())
    assert "\x1b[" not in shown, "no colour where there is no terminal"

    means = []
    for name in ("one", "other"):
        paper = [row for row in rows_of(out / "per_query.csv") if (row["table"], row["method"]) == (name, PAPER)]
        assert {row["calls"] for row in paper} == {"8"}
        means.append(np.mean([float(row["ce_ncg"]) for row in paper]))
        (found,) = (row for row in rows_of(out / f"summary-{name}.json") if row["method"] == PAPER)
        assert found.keys() == {"method", "budget", "k", *METRICS} and found["ce_ncg"] == pytest.approx(means[-1])
    (found,) = (row for row in rows_of(out / "summary.json") if row["method"] == PAPER)
    assert found["ce_ncg"] == pytest.approx(np.mean(means))


@pytest.mark.usefixtures("without_pictures")
def test_evaluate_is_repeatable_in_several_processes(tmp_path: Path) -> None:
    tables.write(synthetic(n=45, queries=2), tmp_path / "one.npz")
    first, second = tmp_path / "first", tmp_path / "second"
    given: list[str | Path] = ["--table", tmp_path / "one.npz", *GRID, "--methods", "ss,gar,human"]
    run(*given, "--out", first)
    run(*given, "--out", second, "--jobs", "2")
    results = [path.name for path in first.iterdir() if path.suffix in (".json", ".csv")]
    assert len(results) == 3
    for name in results:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    for row in rows_of(first / "comparisons.csv"):
        assert 0 <= float(row["p"]) <= float(row["q"]) <= 1
        assert float(row["low"]) <= float(row["difference"]) <= float(row["high"])


@pytest.mark.usefixtures("small_pictures")
def test_evaluate_works_without_labels_or_calls(tmp_path: Path) -> None:
    tables.write(synthetic(n=45, without=["grade", "n_relevant"]), tmp_path / "t.npz")
    methods = ["--methods", "mips,human@auto", "--budgets", "0,4", "--k", "5"]
    shown = run("--table", tmp_path / "t.npz", *methods, "--out", tmp_path / "out")
    assert "no table has human labels" in shown
    rows = rows_of(tmp_path / "out" / "summary.json")
    assert {row["budget"] for row in rows} == {0, 4}
    assert {row["ncg"] for row in rows} == {None} and {row["method"] for row in rows} == {"mips", "human@auto"}
    assert "## nCG" not in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "name at least one"),
        (["--methods", "nobody"], "no method is called 'nobody'"),
        (["--methods", ""], "--methods names no method"),
        (["--budgets", "-1"], "--budgets needs numbers from 0 on"),
        (["--k", "0"], "--k needs numbers from 1 on"),
        (["--k", "5,many"], "whole numbers"),
    ],
)
def test_evaluate_refuses_wrong_options(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    tables.write(synthetic(), tmp_path / "t.npz")
    given = ["--table", str(tmp_path / "t.npz")] if arguments else []
    with pytest.raises(InvalidInput, match=complaint):
        run(*given, *arguments, "--out", tmp_path / "out")


@pytest.fixture
def without_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if a model is loaded."""
    monkeypatch.delattr(command, "build_encoder")
    monkeypatch.delattr(command, "build_local_scorer")


@pytest.mark.usefixtures("without_models")
def test_evaluate_refuses_an_unusable_output_folder_before_computing(tmp_path: Path) -> None:
    tables.write(synthetic(), tmp_path / "t.npz")
    request = Evaluation(table=[tmp_path / "t.npz"], data=str(tmp_path), out=tmp_path / "t.npz" / "report")
    with pytest.raises(InvalidInput, match="choose another with --out"):
        command.evaluate(request, new_console(quiet=True))


TOPICS = {
    "tides": "The sea rises and falls twice a day under the pull of the moon, more so at {} than elsewhere.",
    "bread": "Flour, water and yeast become a dough that rises before it is baked; {} makes the crust darker.",
    "chess": "The bishop moves along diagonals, and a pair of them controls an open board, as in the game of {}.",
}


def texts(folder: Path) -> Path:
    """Write thirty short documents on three subjects in the BEIR layout."""
    folder.mkdir()
    places = ["Dover", "Lisbon", "a bay", "steam", "an oven stone", "honey", "1851", "a match", "blitz", "winter"]
    with gzip.open(folder / "corpus.jsonl.gz", "wt") as file:
        for topic, sentence in TOPICS.items():
            for number, place in enumerate(places):
                file.write(json.dumps({"_id": f"{topic}-{number}", "title": topic, "text": sentence.format(place)}))
                file.write("\n")
    (folder / "queries.jsonl").write_text(
        json.dumps({"_id": "moon", "text": "why does the water level change along the coast"})
        + "\n"
        + json.dumps({"_id": "loaf", "text": "how to bake a loaf"})
        + "\n"
    )
    lines = [
        f"{query}\t{topic}-{number}\t1"
        for query, topic in (("moon", "tides"), ("loaf", "bread"))
        for number in range(10)
    ]
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(lines) + "\n")
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("without_pictures")
def test_evaluate_scores_texts_with_the_real_models(tmp_path: Path) -> None:
    table, given = tmp_path / "kept.npz", [*GRID, "--methods", "mips,bm25,bagel,boundarymorph"]
    run("--data", texts(tmp_path / "kitchen"), *given, "--write-table", table, "--out", tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "summary.json").read_bytes())
    rows = {(row["method"], row["budget"], row["k"]): row for row in summary["rows"]}
    assert rows["mips", 8, 10]["ncg"] == 1.0, "ten documents on each subject"
    assert rows[PAPER, 8, 10]["ce_ncg"] > 0.9
    read = tables.read(table)
    assert (len(read), read.depth) == (2, 30) and read.call_seconds is not None and read.call_seconds > 0
    question = read.question(1)
    assert question.id == "loaf"
    assert question.pool.ids[int(question.pool.features["bm25"].argmax())].startswith("bread")
    best = {question.pool.ids[int(position)].partition("-")[0] for position in (-question.scores).argsort()[:5]}
    assert best == {"bread"}
    run("--table", table, "--texts", tmp_path / "kitchen", *given, "--out", tmp_path / "again")
    assert json.loads((tmp_path / "again" / "summary.json").read_bytes()) == summary
    lines = (tmp_path / "again" / "report.md").read_text()
    assert re.search(r"\| MORPH \(paper\) \| 8 \| 8 \| [\d,]+ ms \| \d+ % \|", lines)


@pytest.mark.usefixtures("without_pictures")
def test_evaluate_takes_a_language_model_as_the_scorer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished table is not scored again, and documents without a grade are left out."""
    monkeypatch.setattr(command, "build_encoder", lambda settings: SeededEncoder())
    folder = texts(tmp_path / "kitchen")
    with in_a_thread(Server(Chat())) as server:
        url = f"openai+http://127.0.0.1:{server.port}/v1?model=scripted"
        given: list[str | Path] = ["--data", folder, "--scorer", url, *GRID]
        given += ["--methods", "mips,trend", "--out", tmp_path / "out"]
        for _ in range(2):
            run(*given, "--write-table", tmp_path / "judged.npz")
            assert len(server.asked) == 2 * 30
        scores = sorted(round(score_of(*pair_of(body)), 5) for body in server.asked)
        found = np.concatenate([question.scores for question in tables.read(tmp_path / "judged.npz").questions()])
        np.testing.assert_allclose(np.sort(found), scores, atol=1e-4)
        server.script = [answer(completion("Hard to say.")), answer({"error": "filtered"}, 400)]
        run(*given, "--write-table", tmp_path / "in-part.npz")
    sizes = [len(question.scores) for question in tables.read(tmp_path / "in-part.npz").questions()]
    assert sum(sizes) == 2 * 30 - 2


@pytest.mark.strangers
@pytest.mark.usefixtures("without_pictures", "tiny_weights")
def test_evaluate_reads_an_index_and_judgments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOUNDARYMORPH_DATA_DIRECTORY", str(tmp_path / "data"))
    folder = texts(tmp_path / "kitchen")
    built = CliRunner().invoke(app, ["index", "build", "indexed", "--from", str(folder / "corpus.jsonl.gz")])
    assert built.exit_code == 0, built.output
    asked = {line["_id"]: line["text"] for line in map(json.loads, (folder / "queries.jsonl").read_text().splitlines())}
    qrels = [line.split("\t") for line in (folder / "qrels.tsv").read_text().splitlines()[1:]]
    grades = [{"query": asked[query], "document": document, "grade": int(grade)} for query, document, grade in qrels]
    judged = tmp_path / "judged.ndjson"
    judged.write_text("\n".join(map(json.dumps, grades)))

    encoded = BatchingEncoder.encode_documents

    async def encode(self: BatchingEncoder, sent: Sequence[str]) -> Embeddings:
        assert not any(text.startswith(tuple(TOPICS)) for text in sent), "the index has the vectors"
        return await encoded(self, sent)

    with monkeypatch.context() as patch:
        patch.setattr(BatchingEncoder, "encode_documents", encode)
        run("--index", "indexed", "--judgments", judged, *GRID, "--methods", "mips", "--out", "a")
    mine = tables.read(Path("a/indexed.npz"))
    assert (len(mine), mine.depth) == (2, 30)
    assert set(mine.question(0).pool.ids) == {f"{topic}-{number}" for topic in TOPICS for number in range(10)}

    judged.write_text('{"query": "q", "document": "nosuch", "grade": 1}')
    with pytest.raises(InvalidInput, match="no document 'nosuch'"):
        run("--index", "indexed", "--judgments", judged, "--out", "c")
    judged.write_text('{"query": "q", "document": "tides-1", "grade": null}')
    with pytest.raises(InvalidInput, match="no line has a grade"):
        run("--index", "indexed", "--judgments", judged, "--out", "c")
    with pytest.raises(InvalidInput, match="go together"):
        run("--index", "indexed", "--out", "c")


def test_documented_custom_selector_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 30
    (tmp_path / "tables").mkdir()
    np.savez(tmp_path / "tables" / "NAME.npz", **synthetic(queries=2, n=80).arrays)  # type: ignore[arg-type]
    (tmp_path / "own.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("own.py")
    printed = capsys.readouterr().out.splitlines()
    assert [line[:20].strip() for line in printed] == ["every few", "SS", "trend"]
    assert all(0 < float(line[20:]) <= 100 for line in printed)
