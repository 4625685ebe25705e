"""Test tables made from texts: their contents, and that a killed build is resumed."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boundarymorph.errors import InvalidInput
from boundarymorph.scoring.scorer import Scores
from boundarymorph_evaluation import tables
from boundarymorph_evaluation.builder import TableBuilder
from boundarymorph_evaluation.datasets import Collection
from tests.retrieval.fakes import SeededEncoder, vector_of

COLLECTION = Collection(
    "numbers",
    {f"d{number}": f"text {number} of {number % 7}" for number in range(100)},
    {f"q{number}": f"text {number}" for number in range(3)},
    {"q0": {"d1": 2, "d2": 1, "gone": 1}, "q1": {"d5": 1}},
)


class Lengths:
    """A `Scorer` that counts pairs; its scores depend only on the two texts."""

    takes_instruction = False
    max_length = None
    name = "lengths"

    def __init__(self) -> None:
        self.pairs = 0

    async def check(self) -> None:
        pass

    async def score(self, query: str, texts: Sequence[str], **_: Any) -> Scores:
        self.pairs += len(texts)
        return Scores(np.array([float(vector_of(query + text, 1)[0] > 0) * 0.5 + 0.25 for text in texts]))

    async def close(self) -> None:
        pass


def build(path: Path, scorer: Lengths, encoder: SeededEncoder | None = None, depth: int = 40) -> tables.ScoreTable:
    return asyncio.run(TableBuilder(encoder or SeededEncoder(), scorer, depth).build(COLLECTION, path))


def test_builder_makes_the_table_of_a_collection(tmp_path: Path) -> None:
    stages: list[tuple[str, int, int]] = []
    path = tmp_path / "numbers.npz"
    builder = TableBuilder(SeededEncoder(), Lengths(), 40)
    asyncio.run(builder.build(COLLECTION, path, lambda *seen: stages.append(seen)))
    table = tables.read(path)
    assert (len(table), table.depth) == (3, 40)
    question = table.question(0)
    products = {name: float(vector_of(text) @ vector_of("text 0")) for name, text in COLLECTION.documents.items()}
    assert list(question.pool.ids) == sorted(products, key=lambda name: -products[name])[:40]
    assert question.grades is not None and question.relevant == 2
    assert {name: grade for name, grade in zip(question.pool.ids, question.grades, strict=True) if grade} == {
        name: grade for name, grade in (("d1", 2.0), ("d2", 1.0)) if name in question.pool.ids
    }
    texts = [COLLECTION.documents[name] for name in question.pool.ids]
    assert np.array_equal(question.scores, asyncio.run(Lengths().score("text 0", texts)).values)
    assert question.pool.terms is not None
    having = [[True, text.endswith(" 0")] for text in texts]
    np.testing.assert_array_equal(question.pool.terms.T, having)
    assert stages[0] == ("encoding documents", 0, 100) and stages[-1] == ("scoring pairs", 120, 120)
    assert table.call_seconds is not None and table.call_seconds > 0
    assert question.scorer == Lengths().name
    assert [one.name for one in tmp_path.iterdir()] == ["numbers.npz"]


def test_builder_keeps_finished_tables_and_foreign_files(tmp_path: Path) -> None:
    path, scorer, encoder = tmp_path / "t.npz", Lengths(), SeededEncoder()
    build(path, scorer, encoder)
    build(path, scorer, encoder)
    assert scorer.pairs == 120 and len(encoder.encoded) == 100
    written = path.read_bytes()
    with pytest.raises(InvalidInput, match="another depth"):
        build(path, scorer, encoder, depth=20)
    assert path.read_bytes() == written
    path.write_bytes(b"notes of somebody")
    with pytest.raises(InvalidInput, match="is there already"):
        build(path, scorer)
    (tmp_path / "o.npz.unfinished").write_text("notes of somebody")
    with pytest.raises(InvalidInput, match="not a database; delete it"):
        build(tmp_path / "o.npz", scorer)
    assert (tmp_path / "o.npz.unfinished").read_text() == "notes of somebody"
    with pytest.raises(InvalidInput, match="choose another --write-table"):
        build(path / "o.npz", scorer)


def test_builder_updates_judgments_and_queries_of_a_finished_table(tmp_path: Path) -> None:
    path, scorer = tmp_path / "t.npz", Lengths()

    def made(collection: Collection) -> tables.ScoreTable:
        return asyncio.run(TableBuilder(SeededEncoder(), scorer, 40).build(collection, path))

    unjudged = made(replace(COLLECTION, judgments=None))
    assert "grade" not in unjudged.arrays
    some = made(replace(COLLECTION, queries={"q2": "text 2", "q0": "text 0"}))
    assert [question.id for question in some.questions()] == ["q2", "q0"]
    assert some.arrays["n_relevant"].tolist() == [0, 2]
    assert np.array_equal(some.arrays["score"], unjudged.arrays["score"][[2, 0]])
    assert "grade" not in tables.read(path).arrays, "the file holds more queries than these"
    made(COLLECTION)
    assert tables.read(path).arrays["n_relevant"].tolist() == [2, 1, 0]
    assert scorer.pairs == 120
    with pytest.raises(InvalidInput, match="fewer queries"):
        made(replace(COLLECTION, queries={**COLLECTION.queries, "q3": "text 3"}))


class FailingLengths(Lengths):
    """A scorer that fails after 64 pairs."""

    async def score(self, query: str, texts: Sequence[str], **_: Any) -> Scores:
        if self.pairs >= 64:
            raise ConnectionError
        return await super().score(query, texts)


@pytest.mark.parametrize(("depth", "left"), [(40, 72), (50, 0)])
def test_builder_resumes_an_unfinished_table_of_the_same_depth(tmp_path: Path, depth: int, left: int) -> None:
    path = tmp_path / "t.npz"
    with pytest.raises(ConnectionError):
        build(path, FailingLengths())
    assert [one.name for one in tmp_path.iterdir()] == ["t.npz.unfinished"]
    rest = Lengths()
    again, whole = build(path, rest, depth=depth), build(tmp_path / "whole.npz", Lengths(), depth=depth)
    assert rest.pairs == 3 * depth - left, "chunks are of 32, 8 and 32 pairs"
    for key in ("score", "pool", "doc_emb"):
        assert np.array_equal(again.arrays[key], whole.arrays[key])
    assert sorted(one.name for one in tmp_path.iterdir()) == ["t.npz", "whole.npz"]
