import gzip
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from boundarymorph.errors import InvalidInput
from boundarymorph.evaluation.datasets import fingerprint, load

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


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("where", ["qrels.tsv", "qrels/test.tsv"])
def test_a_beir_folder(tmp_path: Path, packed: bool, where: str) -> None:
    found = load(str(beir(tmp_path / "tides", packed=packed, where=where)))
    assert found.name == "tides"
    assert dict(found.documents) == {"a": "Tides\nThe moon pulls.", "b": "Bread rises."}
    assert dict(found.queries) == {"1": "sea level"}, "only judged queries"
    assert found.judgments == {"1": {"a": 2}}


def test_ids_under_the_service_s_name(tmp_path: Path) -> None:
    corpus = beir(tmp_path) / "corpus.jsonl"
    corpus.write_text(corpus.read_text().replace('"_id"', '"id"'))
    assert set(load(str(tmp_path)).documents) == {"a", "b"}


def test_without_judgments_every_query_counts(tmp_path: Path) -> None:
    found = load(str(beir(tmp_path, qrels=None)))
    assert list(found.queries) == ["1", "2"] and found.judgments is None
    assert list(found.first(1).queries) == ["1"]
    assert fingerprint(found.queries) != fingerprint(found.first(1).queries)


def test_a_byte_order_mark_and_a_text_of_null(tmp_path: Path) -> None:
    for name in ("corpus.jsonl", "queries.jsonl", "qrels.tsv"):
        path = beir(tmp_path) / name
        path.write_text(path.read_text(), encoding="utf-8-sig")
    (tmp_path / "qrels.tsv").write_text("1\ta\t1\n", encoding="utf-8-sig")  # no header that could hide it
    with (tmp_path / "corpus.jsonl").open("a") as file:
        file.write(
            '{"_id": "c", "text": null}\n{"_id": "d", "title": "Yeast", "text": null}\n{"_id": "e", "text": ""}\n'
        )
    found = load(str(tmp_path))
    assert found.documents["a"] == "Tides\nThe moon pulls." and list(found.queries) == ["1"]
    assert [found.documents[name] for name in "cde"] == ["", "Yeast\n", ""]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("corpus.jsonl", '{"_id": "a"}\n', "line 1: not a JSON object"),
        ("corpus.jsonl", CORPUS + '{"_id": "a", "text": ""}\n', "line 4: the id 'a' occurs twice"),
        ("qrels.tsv", QRELS + "1\ta\tyes\n", "line 4: not query-id"),
        ("queries.jsonl", "", "0 queries"),
        ("queries.jsonl", '{"_id": null, "text": "yeast"}\n', "line 1: _id must be a string or an integer"),
        ("qrels.tsv", "1\ta\t0\n2\tb\t0\n", "leave no query with a relevant document"),
        ("qrels.tsv", "9\ta\t1\n", "leave no query with a relevant document"),
        ("qrels.tsv", "1\ta\t65536\n", "the grade 65536; grades go up to 65535"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, name: str, content: str, complaint: str) -> None:
    (beir(tmp_path) / name).write_text(content)
    with pytest.raises(InvalidInput, match=complaint):
        load(str(tmp_path))


def test_qrels_in_another_encoding(tmp_path: Path) -> None:
    (beir(tmp_path) / "qrels.tsv").write_bytes(QRELS.encode("utf-16"))
    with pytest.raises(InvalidInput, match=r"qrels\.tsv is in UTF-16"):
        load(str(tmp_path))


def test_a_folder_without_a_corpus_and_a_broken_archive(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no BEIR folder"):
        load(str(tmp_path))
    beir(tmp_path, packed=True)
    (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress(CORPUS.encode())[:20])
    with pytest.raises(InvalidInput, match="cannot be read"):
        load(str(tmp_path))


class StandIn:
    """As much of an ir_datasets dataset as is used."""

    def has_qrels(self) -> bool:
        return True

    def docs_iter(self) -> Any:
        yield SimpleNamespace(doc_id="a", default_text=lambda: "said whole")
        yield SimpleNamespace(doc_id="b", title="Bread", default_text=lambda: "Bread\nrises")

    def queries_iter(self) -> Any:
        yield SimpleNamespace(query_id=7, default_text=lambda: "yeast")

    def qrels_iter(self) -> Any:
        yield SimpleNamespace(query_id="7", doc_id="b", relevance=1)
        yield SimpleNamespace(query_id="7", doc_id="a", relevance=-1)


def test_ir_datasets_through_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    library = ModuleType("ir_datasets")
    known = {"kitchen/bread": StandIn()}
    library.load = known.__getitem__  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ir_datasets", library)
    found = load("ir_datasets:kitchen/bread")
    assert found.name == "kitchen-bread"
    assert dict(found.documents) == {"a": "said whole", "b": "Bread\nrises"}
    assert dict(found.queries) == {"7": "yeast"} and found.judgments == {"7": {"b": 1}}
    with pytest.raises(InvalidInput, match="knows no dataset"):
        load("ir_datasets:other")


def test_ir_datasets_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(InvalidInput, match="pip install ir_datasets"):
        load("ir_datasets:any")
