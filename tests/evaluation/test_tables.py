"""Test tables, and the collections of texts that they are made from."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from boundarymorph.errors import InvalidInput
from boundarymorph_evaluation import tables
from boundarymorph_evaluation.datasets import Collection, fingerprint, load
from boundarymorph_evaluation.tables import ScoreTable
from tests.evaluation.tables import synthetic


def test_table_reads_back_as_written(tmp_path: Path) -> None:
    table = synthetic()
    tables.write(table, tmp_path / "deep" / "t.npz")
    read = tables.read(tmp_path / "deep" / "t.npz")
    assert read.name == "t" and read.arrays.keys() == table.arrays.keys()
    for key, values in table.arrays.items():
        assert np.array_equal(read.arrays[key], values), key
    assert list((tmp_path / "deep").iterdir()) == [tmp_path / "deep" / "t.npz"]


def test_question_is_aligned_and_in_retrieval_order() -> None:
    table = synthetic()
    shuffled = dict(table.arrays)
    order = np.random.default_rng(1).permutation(table.depth)
    for key in ("pool", "mips", "score", "bm25", "terms", "grade"):
        shuffled[key] = shuffled[key][:, order]
    mixed, straight = ScoreTable("mixed", shuffled).question(1), table.question(1)
    assert list(mixed.pool.ids) == list(straight.pool.ids)
    assert np.array_equal(mixed.scores, straight.scores)
    assert mixed.grades is not None and straight.grades is not None
    assert np.array_equal(mixed.grades, straight.grades)
    assert np.array_equal(mixed.pool.features["bm25"], straight.pool.features["bm25"])
    assert straight.pool.terms is not None and straight.pool.terms.any(axis=1).all()
    np.testing.assert_array_equal(mixed.pool.terms, straight.pool.terms)
    assert np.all(np.diff(straight.pool.scores) <= 0)


def test_pool_padding_of_minus_one_is_ignored() -> None:
    table = synthetic()
    pool = table.arrays["pool"].copy()
    pool[2, 40:] = -1
    cut = ScoreTable("cut", {**table.arrays, "pool": pool})
    assert [len(question.pool) for question in cut.questions()] == [60, 60, 40, 60]


def test_missing_optional_arrays_have_defaults() -> None:
    table = synthetic(without=["doc_ids", "query_ids", "mips", "bm25", "terms", "grade", "n_relevant"])
    question = table.question(0)
    assert question.id == "0" and question.grades is None and question.relevant is None
    assert np.all(np.diff(question.pool.scores) <= 0) and question.pool.scores[0] > 0.5
    assert dict(question.pool.features) == {} and question.pool.terms is None


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"score": None}, "lacks score"),
        ({"score": np.full((4, 60), 1.5)}, "outside"),
        ({"score": np.zeros((4, 59))}, "score has the shape"),
        ({"pool": np.full((4, 60), 99)}, "names row 99"),
        ({"query_emb": np.zeros((3, 16))}, r"query_emb has the shape \(3, 16\); it should be \(4, 16\)"),
        ({"doc_emb": np.zeros(60)}, "doc_emb has the shape"),
        ({"doc_emb": np.full((60, 16), "a")}, "doc_emb is of <U1; it takes numbers"),
        ({"pool": np.zeros((4, 60))}, "pool is of float64; it takes whole numbers"),
        ({"pool": np.where(np.arange(4)[:, None] == 2, -1, np.tile(np.arange(60), (4, 1)))}, "row 2 has no candidates"),
        ({"doc_ids": np.array(["d0"])}, "doc_ids has the shape"),
        ({"call_seconds": np.zeros(2)}, "call_seconds has the shape"),
        ({"scorer": np.array(3)}, "scorer is of"),
        ({"n_relevant": np.array(["1", "2", "3", "4"])}, "n_relevant is of <U1; it takes whole numbers"),
        ({"terms": np.zeros((4, 60), dtype=np.int64)}, "terms is of int64; it takes uint64"),
    ],
)
def test_malformed_table_is_refused(change: dict[str, np.ndarray | None], complaint: str) -> None:
    arrays = {**synthetic().arrays, **change}
    with pytest.raises(InvalidInput, match=complaint):
        ScoreTable("bad", {key: values for key, values in arrays.items() if values is not None})


def test_table_file_that_is_not_an_npz_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    for content in (b"", b"PK\x03\x04 half a file", b"text"):
        path.write_bytes(content)
        with pytest.raises(InvalidInput, match=r"t\.npz"):
            tables.read(path)


def test_with_texts_takes_the_collection_that_has_all_texts() -> None:
    table = synthetic(queries=2, n=5)
    documents = {str(name): f"text {name}" for name in table.arrays["doc_ids"]}
    queries = {str(name): f"query {name}" for name in table.arrays["query_ids"]}
    having = Collection("c", {**documents, "more": ""}, queries)
    lacking = [Collection("c", dict(list(documents.items())[1:]), queries), Collection("c", documents, {})]
    assert tables.with_texts(table, lacking) is table
    whole = tables.with_texts(table, [*lacking, having])
    assert "texts" in whole.provides
    question = whole.question(1)
    assert question.texts is not None
    assert list(question.texts.documents) == [f"text {id}" for id in question.pool.ids]


def test_with_texts_marks_the_query_terms_of_each_document() -> None:
    table = synthetic(queries=2, n=5)
    queries = {"q0": "deep winter", "q1": " ".join(f"w{number}" for number in range(70))}
    documents = {"d0": "winters", "d1": "deeply wintry", "d2": "w0 w63", "d3": "w63 w64", "d4": "w5"}
    table.arrays["pool"][1] = [2, 3, 4, -1, -1]
    whole = tables.with_texts(table, [Collection("c", documents, queries)])
    assert table.arrays["terms"].any()
    found = {
        question.id: dict(zip(question.pool.ids, question.pool.terms.T.tolist(), strict=True))
        for question in whole.questions()
        if question.pool.terms is not None
    }
    assert found["q0"] == {
        "d0": [False, True],
        "d1": [True, True],
        "d2": [False, False],
        "d3": [False, False],
        "d4": [False, False],
    }
    there = {id: np.flatnonzero(having).tolist() for id, having in found["q1"].items()}
    assert there == {"d2": [0, 63], "d3": [63], "d4": [5]}
    assert (whole.arrays["terms"][1, 3:] == 0).all()
    assert np.array_equal(whole.subset([1]).question(0).pool.terms, whole.question(1).pool.terms)  # type: ignore[arg-type]


CORPUS = '{"_id": "a", "title": "Tides", "text": "The moon pulls."}\n\n{"_id": "b", "text": "Bread rises."}\n'
QUERIES = '{"_id": "1", "text": "sea level"}\n{"_id": "2", "text": "yeast"}\n'
QRELS = "query-id\tcorpus-id\tscore\n1\ta\t2\n1\tb\t0\n"


def beir(folder: Path, *, packed: bool = False, qrels: str | None = QRELS, where: str = "qrels.tsv") -> Path:
    for name, content in (("corpus.jsonl", CORPUS), ("queries.jsonl", QUERIES), (where, qrels)):
        if content is not None:
            path = folder / (f"{name}.gz" if packed else name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    return folder


@pytest.mark.parametrize(("packed", "where"), [(False, "qrels.tsv"), (True, "qrels/test.tsv")])
def test_load_reads_a_beir_folder(tmp_path: Path, packed: bool, where: str) -> None:
    found = load(str(beir(tmp_path / "tides", packed=packed, where=where)))
    assert found.name == "tides"
    assert dict(found.documents) == {"a": "Tides\nThe moon pulls.", "b": "Bread rises."}
    assert dict(found.queries) == {"1": "sea level"}, "only judged queries"
    assert found.judgments == {"1": {"a": 2, "b": 0}}


def test_load_keeps_every_query_of_a_folder_without_judgments(tmp_path: Path) -> None:
    found = load(str(beir(tmp_path, qrels=None)))
    assert list(found.queries) == ["1", "2"] and found.judgments is None
    assert list(found.head(1).queries) == ["1"]
    assert fingerprint(found.queries) != fingerprint(found.head(1).queries)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("corpus.jsonl", '{"_id": "a"}\n', "line 1: not a JSON object"),
        ("corpus.jsonl", CORPUS + '{"_id": "a", "text": ""}\n', "line 4: the id 'a' occurs twice"),
        ("qrels.tsv", QRELS + "1\ta\tyes\n", "line 4: not query-id"),
        ("queries.jsonl", "", "0 queries"),
        ("queries.jsonl", '{"_id": null, "text": "yeast"}\n', "line 1: _id must be a string or an integer"),
        ("qrels.tsv", "1\ta\t0\n2\tb\t0\n", "leave no query with a relevant document"),
        pytest.param("qrels.tsv", QRELS.encode("utf-16"), r"qrels\.tsv is in UTF-16", id="UTF-16"),
        ("qrels.tsv", "1\ta\t65536\n", "the grade 65536; grades go up to 65535"),
    ],
)
def test_load_names_mistakes_in_a_beir_folder(tmp_path: Path, name: str, content: str | bytes, complaint: str) -> None:
    (beir(tmp_path) / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidInput, match=complaint):
        load(str(tmp_path))
    (tmp_path / "corpus.jsonl").unlink()
    with pytest.raises(InvalidInput, match="no BEIR folder"):
        load(str(tmp_path))
    (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress(CORPUS.encode())[:20])
    with pytest.raises(InvalidInput, match="cannot be read"):
        load(str(tmp_path))
