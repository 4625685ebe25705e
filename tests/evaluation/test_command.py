"""The command from end to end: a made-up table, a small folder of texts with the real models; and the docs' example."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import runpy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image
from typer.testing import CliRunner

from boundarymorph.cli.common import new_console
from boundarymorph.cli.main import app
from boundarymorph.errors import BoundaryMorphError, InvalidInput
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.retrieval.encoders.encoder import BatchingEncoder
from boundarymorph.selection.methods import METHODS, PAPER, PEOPLE
from boundarymorph_evaluation import evaluate as command
from boundarymorph_evaluation import plots, report, tables
from boundarymorph_evaluation.options import Evaluation
from boundarymorph_evaluation.tables import ScoreTable
from tests.evaluation.tables import synthetic
from tests.evaluation.test_builder import Lengths
from tests.retrieval.fakes import SeededEncoder

GRID = ["--budgets", "4,8", "--k", "5,10"]
METRICS = {"ce_ncg", "ncg", "ndcg_10"}
HEIGHTS = {"mips": 0.5, "ss": 0.505, "trend": 0.8}


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["evaluate", *(str(argument) for argument in arguments)])
    if isinstance(result.exception, BoundaryMorphError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def small(**options: Any) -> ScoreTable:
    return synthetic(n=45, **options)


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report without plots, for tests of everything else."""
    monkeypatch.setattr(report, "_draw", lambda studies, folder: {})


@contextmanager
def small_pictures() -> Iterator[None]:
    """Every figure is drawn, but small and unarranged, which takes most of the time (test_plots.py has that)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "Figure", lambda figsize, layout, dpi: Figure(figsize, dpi=30))
        yield


@pytest.fixture(scope="module")
def two_tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("two")
    one = small(seed=1)
    tables.write(replace(one, arrays={**one.arrays, "call_seconds": np.array(0.02)}), folder / "one.npz")
    tables.write(small(seed=2, queries=2, without=["bm25"]), folder / "other.npz")
    out = folder / "report"
    names = "baselines,product,ablations"
    with small_pictures():
        shown = run(
            "--table", folder / "one.npz", "--table", folder / "other.npz", *GRID, "--out", out, "--methods", names
        )
    return out, shown


def test_the_summary_for_machines(two_tables: tuple[Path, str]) -> None:
    out, _ = two_tables
    summary, one, other = (
        json.loads((out / name).read_bytes()) for name in ("summary.json", "summary-one.json", "summary-other.json")
    )
    assert summary.keys() == {"default", "paper", "rows"}
    assert (summary["default"], summary["paper"]) == (PEOPLE, PAPER)
    for row in summary["rows"]:
        assert row.keys() == {"method", "budget", "k", *METRICS}
        assert all(0 <= row[metric] <= 1 for metric in METRICS)
    methods = {row["method"] for row in summary["rows"]}
    assert {"mips", "ss", "rgs", "gar", "quam", "bagel", "rocchio", PEOPLE, *METHODS} <= methods
    assert "bm25" not in methods, "it did not run on every table"
    assert len(summary["rows"]) == len(methods) * 4

    def value(rows: list[dict[str, float | str]], metric: str) -> float:
        (found,) = (row for row in rows if (row["method"], row["budget"], row["k"]) == (PAPER, 8, 10))
        return float(found[metric])

    for metric in METRICS:
        mean = (value(one["rows"], metric) + value(other["rows"], metric)) / 2
        assert value(summary["rows"], metric) == pytest.approx(mean)


def test_the_results_of_every_query(two_tables: tuple[Path, str]) -> None:
    with (two_tables[0] / "per_query.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["table"] for row in rows} == {"one", "other"}
    paper = [row for row in rows if row["table"] == "one" and row["method"] == PAPER and row["budget"] == "8"]
    assert len(paper) == 4 * 2 and {row["calls"] for row in paper} == {"8"}
    summary = json.loads((two_tables[0] / "summary-one.json").read_bytes())
    mean = sum(float(row["ce_ncg"]) for row in paper if row["k"] == "10") / 4
    (found,) = (one for one in summary["rows"] if (one["method"], one["budget"], one["k"]) == (PAPER, 8, 10))
    assert found["ce_ncg"] == pytest.approx(mean, abs=1e-12)


def test_results_are_the_same_when_repeated_in_several_processes(tmp_path: Path, without_pictures: None) -> None:
    given: list[str | Path] = []
    for name in ("one", "other"):
        tables.write(small(queries=3, name=name), tmp_path / f"{name}.npz")
        given += ["--table", tmp_path / f"{name}.npz"]
    first, second = tmp_path / "first", tmp_path / "second"
    run(*given, *GRID, "--methods", "baselines,product", "--out", first)
    run(*given, *GRID, "--methods", "baselines,product", "--out", second, "--jobs", "2")
    results = [path.name for path in first.iterdir() if path.suffix in (".json", ".csv")]
    assert len(results) == 5
    for name in results:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_the_report(two_tables: tuple[Path, str]) -> None:
    out, _ = two_tables
    text = (out / "report.md").read_text()
    for expected in (
        "## At a glance",
        "## CE-nCG",
        "## nCG",
        "## nDCG@10",
        "B=4, k=5 | B=4, k=10 | B=8, k=5",
        "**mean of tables**",
        "## Ablations, kernels and rounds",
        "| w/o acquisition | MORPH (paper) |",
        "95 % bootstrap interval",
        "| SS | 8 | 8 | 160 ms | 100 % |",
        "| SS | 8 | 8 |  |  |",
        "![latency-one](plots/latency-one.png)",
        "other: `bm25` was left out, because the table has no bm25",
    ):
        assert expected in text, expected
    pictures = [line.partition("](")[2].rstrip(")") for line in text.splitlines() if line.startswith("![")]
    assert len(pictures) == len(set(pictures)) == 3 * 3 + 1, "quality by table and mean, a latency"
    for picture in pictures:
        assert (out / picture).read_bytes().startswith(b"\x89PNG")
    assert len(list((out / "plots").iterdir())) == len(pictures), "every picture is in the report"
    glance = text.partition("## At a glance")[2].partition("## ")[0]
    head, _, *rows = [line.split(" | ") for line in glance.splitlines() if line.startswith("|")]
    assert head[2:] == ["nCG", "nDCG@10", "CE-nCG |"] and 3 <= len(rows) <= 5
    assert rows[0][1] == "the default" and "plain reranking" in [row[1] for row in rows]
    assert "latency-other" not in text, "nobody says how long a call of the other table takes"
    assert str(out) not in text, "no path of the machine"


def test_the_comparisons(two_tables: tuple[Path, str]) -> None:
    with (two_tables[0] / "comparisons.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {PEOPLE} and {row["metric"] for row in rows} == METRICS
    for row in rows:
        assert 0 <= float(row["p"]) <= float(row["q"]) <= 1
        assert float(row["low"]) <= float(row["difference"]) <= float(row["high"])


def test_what_the_terminal_shows(two_tables: tuple[Path, str]) -> None:
    _, shown = two_tables
    assert "CE-nCG (%)" in shown and "mean of tables" in shown and "report.md" in shown
    assert "other: bm25 left out: the table has no bm25" in " ".join(shown.split())
    assert "\x1b[" not in shown, "no colour where there is no terminal"
    assert re.search(r"people \(default\) \*", shown) and "* a method of BoundaryMORPH" in shown
    assert "other: selecting: 0 of " in shown and "drawing and writing\n" in shown


def test_without_labels(tmp_path: Path) -> None:
    tables.write(small(without=["grade", "n_relevant"]), tmp_path / "t.npz")
    with small_pictures():
        shown = run(
            "--table", tmp_path / "t.npz", *GRID, "--out", tmp_path / "out", "--methods", "mips,boundarymorph@3"
        )
    assert "no table has human labels" in shown
    rows = json.loads((tmp_path / "out" / "summary.json").read_bytes())["rows"]
    assert {row["ncg"] for row in rows} == {None}
    assert {row["method"] for row in rows} == {"mips", "boundarymorph@3"}
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
def test_mistakes(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    tables.write(synthetic(), tmp_path / "t.npz")
    given = ["--table", str(tmp_path / "t.npz")] if arguments else []
    with pytest.raises(InvalidInput, match=complaint):
        run(*given, *arguments, "--out", tmp_path / "out")


@pytest.mark.parametrize("budgets", ["0", "0,4"])
def test_no_calls_are_a_budget(tmp_path: Path, budgets: str) -> None:
    tables.write(small(), tmp_path / "t.npz")
    methods = ["--methods", "mips,people@auto", "--budgets", budgets, "--k", "5"]
    with small_pictures():
        run("--table", tmp_path / "t.npz", *methods, "--out", tmp_path / "out")
    rows = orjson.loads((tmp_path / "out" / "summary.json").read_bytes())["rows"]
    assert {row["budget"] for row in rows} == set(map(int, budgets.split(",")))


@pytest.fixture
def without_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading them is a mistake."""
    monkeypatch.delattr(command, "build_encoder")
    monkeypatch.delattr(command, "build_local_scorer")


@pytest.mark.usefixtures("without_models")
def test_a_folder_that_cannot_be_made_is_noticed_before_anything_is_computed(tmp_path: Path) -> None:
    tables.write(synthetic(), tmp_path / "t.npz")
    request = Evaluation(table=[tmp_path / "t.npz"], data=str(tmp_path), out=tmp_path / "t.npz" / "report")
    with pytest.raises(InvalidInput, match="choose another with --out"):
        command.evaluate(request, new_console(quiet=True))


@pytest.mark.usefixtures("without_pictures")
def test_judgments_that_come_or_change_after_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts stay as they are; scores are bought once."""
    folder, scorer = texts(tmp_path / "kitchen"), Lengths()
    monkeypatch.setattr(command, "build_encoder", lambda settings: SeededEncoder())
    monkeypatch.setattr(command, "build_local_scorer", lambda settings: scorer)
    judgments = (folder / "qrels.tsv").read_text()
    (folder / "qrels.tsv").unlink()
    request = Evaluation(data=str(folder), methods="mips", budgets="4", k="10", out=tmp_path / "out")

    def ncg(qrels: str | None) -> float | None:
        if qrels is not None:
            (folder / "qrels.tsv").write_text(qrels)
        command.evaluate(request, new_console(quiet=True))
        (row,) = json.loads((tmp_path / "out" / "summary.json").read_bytes())["rows"]
        found: float | None = row["ncg"]
        return found

    assert ncg(None) is None
    whole, edited, one_query = (
        ncg(lines) for lines in (judgments, "moon\tchess-1\t1\nloaf\tchess-2\t1\n", "loaf\tbread-1\t1\n")
    )
    assert whole is not None and 0 < whole < 1 and edited is not None and edited != whole and one_query is not None
    assert scorer.pairs == 2 * 30


TOPICS = {
    "tides": "The sea rises and falls twice a day under the pull of the moon, more so at {} than elsewhere.",
    "bread": "Flour, water and yeast become a dough that rises before it is baked; {} makes the crust darker.",
    "chess": "The bishop moves along diagonals, and a pair of them controls an open board, as in the game of {}.",
}


def texts(folder: Path) -> Path:
    """Thirty short documents on three subjects, in the BEIR layout."""
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
def test_texts_with_the_real_models(tmp_path: Path) -> None:
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


@pytest.mark.strangers
@pytest.mark.usefixtures("without_pictures", "tiny_weights")
def test_an_index_with_the_judgements_that_calibrate_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.usefixtures("without_models")
def test_no_column_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a terminal of 40 columns."""
    monkeypatch.setattr(report, "write", lambda studies, out: None)
    tables.write(synthetic(seed=1), tmp_path / "one.npz")
    given: dict[str, Any] = {"table": [tmp_path / "one.npz"], "out": tmp_path / "out", "methods": "mips"}
    screen = io.StringIO()
    request = Evaluation(**given, budgets="1,2,3,4,5,6,7,8", k="5,10")
    command.evaluate(request, new_console(file=screen, width=40, force_terminal=True))
    shown = screen.getvalue().partition("(%)")[2]  # after the bars of the progress
    assert "…" not in shown
    (heads,) = {line for line in shown.splitlines() if line.lstrip().startswith("budget")}
    assert set(heads.split()[1:]) == {*"12345678"}


def test_labels_of_lines_stay_apart(tmp_path: Path) -> None:
    assert plots._apart([50.0, 50.5, 80.0], 2.0, 100.0) == pytest.approx([49.25, 51.25, 80.0])
    assert plots._apart([99.0, 99.5], 2.0, 100.0) == pytest.approx([98.0, 100.0])
    cells = pd.MultiIndex.from_product([(10, 20), (5, 50)])
    values = pd.DataFrame(HEIGHTS, index=cells).T
    plots.quality_against_budget(tmp_path / "q.png", values, {"trend": "name"}, "CE-nCG: papers", "CE-nCG")
    with Image.open(tmp_path / "q.png") as image:
        assert image.mode == "P" and image.size == (int(130 * 10.4), int(130 * 3.8))


class TestLines:
    """Three lines can be told from each other and are labelled; the others are one thin grey."""

    @pytest.fixture
    def drawn(self, monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
        figures: list[Figure] = []

        @contextmanager
        def kept(path: Path, width: float, height: float) -> Iterator[Figure]:
            assert width * 130 <= 1_400  # text of 10 points can be read at the width of a page
            figures.append(Figure((width, height), dpi=30))
            yield figures[-1]

        monkeypatch.setattr(plots, "saved_figure", kept)
        return figures

    @staticmethod
    def told(figure: Figure, names: int) -> None:
        for panel in figure.axes:
            looks = [(line.get_color(), line.get_marker()) for line in panel.get_lines()]
            assert looks.count((plots.OTHERS, "None")) == names - 3
            assert len(set(looks)) == 4 and len({marker for _, marker in looks}) == 4

    def test_against_budget(self, drawn: list[Figure]) -> None:
        methods = ["people", "ss", "gar", *(f"other{n}" for n in range(9))]
        cells = pd.MultiIndex.from_product([(10, 20), (5, 50, 100)])
        values = pd.DataFrame(np.linspace(0.1, 0.9, 72).reshape(12, 6), index=methods, columns=cells)
        titles = {"people": "the default", "ss": "SS", "gar": "GAR"}
        plots.quality_against_budget(Path("q.png"), values, titles, "nCG: papers", "nCG")
        [figure] = drawn
        assert figure.get_suptitle() == "nCG: papers"
        self.told(figure, 12)
        for panel in figure.axes:
            labels = [text.get_text().rpartition(" ")[0] for text in panel.texts]
            assert sorted(labels) == sorted(titles.values())

    def test_against_latency(self, drawn: list[Figure]) -> None:
        methods = ["people", "ss", "gar", "rgs", "quam"]
        points = {
            method: [(0.2 * n + 0.02 * place, 0.5 + 0.1 * n, 10 * n) for n in (1, 2, 3)]
            for place, method in enumerate(methods)
        }
        plots.quality_against_latency(
            Path("l.png"),
            {"nCG": points, "CE-nCG": points},
            dict(zip(methods[:3], "ABC", strict=True)),
            "papers, k = 50",
        )
        [figure] = drawn
        assert figure.get_suptitle() == "papers, k = 50"
        self.told(figure, 5)
        for panel in figure.axes:
            assert panel.get_xlabel() == "milliseconds per query"
            ticks = [panel.xaxis.get_major_formatter()(tick) for tick in panel.get_xticks()]
            assert {"200", "500"} <= set(ticks)
            assert [text.get_text() for text in panel.texts] == ["B = 10", "B = 20", "B = 30"]

    def test_they_can_be_read_on_white(self) -> None:
        for look in plots.LOOKS:
            channels = [int(str(look["color"])[at : at + 2], 16) / 255 for at in (1, 3, 5)]
            linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels]
            luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
            assert 1.05 / (luminance + 0.05) >= 4.5


PAGE = Path(__file__).parents[2] / "docs" / "evaluation.md"


def test_the_selector_of_the_docs_runs(
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
    assert [line[:20].strip() for line in printed] == ["every so many", "SS", "trend"]
    assert all(0 < float(line[20:]) <= 100 for line in printed)
