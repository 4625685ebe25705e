"""A data folder and a copy of an index from when there were search snapshots, the kinds hnsw and sq8, and no stems."""

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boundarymorph.errors import IndexConflict, InvalidInput
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.retrieval.local.index import WORDS_WITHOUT_STEMS, LocalIndex
from boundarymorph.retrieval.retriever import Retrieved, Search
from boundarymorph.retrieval.words.lexical import PoolWords
from tests.retrieval.fakes import nearest

DATA = Path(__file__).parent / "older_version"
BEFORE: dict[str, Any] = json.loads((DATA / "answers.json").read_text())
KINDS = {"flat": "flat", "graph": "ivf", "small": "ivf"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "indexes", tmp_path / "indexes"))


def answers(index: LocalIndex) -> dict[str, Any]:
    query = np.array(BEFORE["query"])
    near = index.retrieve(Search("tram harbour", 20, query)).pool
    hybrid = index.retrieve(Search("tram", 10, query, {"n": {"gte": 5}}, hybrid=True)).pool
    return {
        "count": index.count(),
        "ids": list(near.ids),
        "scores": list(near.scores),
        "bm25": list(near.features["bm25"]),
        "hybrid": list(hybrid.ids),
    }


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_opens_and_answers_as_before(folder: Path, name: str) -> None:
    catalog = LocalCatalog(folder)
    index = catalog.get(name)
    assert catalog.describe(name).kind == index.info.kind == KINDS[name]
    assert answers(index) == BEFORE["indexes"][name]
    assert index.delete(["d1"]) == 1
    assert index.compact()
    assert "d1" not in nearest(index, BEFORE["query"], 50).ids
    assert (index.structure() is not None) is (KINDS[name] == "ivf")
    catalog.close()


def test_words_go_on_as_they_are_until_they_are_indexed_again(folder: Path) -> None:
    catalog = LocalCatalog(folder)
    index, query = catalog.get("flat"), np.array(BEFORE["query"])
    asked = "trams and number 7, 12, 17 of the harbours, tram"
    texts = {id: document.content for id, document in index.documents([f"d{n}" for n in range(100)]).items()}
    for number in range(20):  # are merged with those that were there
        document = Document(
            f"new{number}", f"trams of the number {number}, and 7 {'12 ' * number}", "Harbours" if number % 2 else None
        )
        index.upsert([document], query[None] + number)
        texts[document.id] = document.content
    index.delete(["d1", "new3"])
    del texts["d1"], texts["new3"]

    def found(hybrid: bool) -> Retrieved:
        return index.retrieve(Search(asked, 80, query, hybrid=hybrid))

    before = [found(hybrid) for hybrid in (False, True)]
    for answer in before:
        assert answer.pool.terms is None
        assert list(answer.warnings) == [WORDS_WITHOUT_STEMS.format(name="flat")]
        scores = dict(zip(texts, PoolWords.of(texts.values()).bm25(asked), strict=True))
        expected = [scores[id] for id in answer.pool.ids]
        np.testing.assert_allclose(answer.pool.features["bm25"], expected, rtol=1e-12)
    with sqlite3.connect(index.path) as connection:
        headers = {header for (header,) in connection.execute("SELECT substr(chunk, 5, 4) FROM postings")}
    assert headers == {b"\1\0\0\0"}  # which earlier releases read
    assert index.index_words()
    assert not index.index_words()
    for hybrid, earlier in enumerate(before):
        answer = found(bool(hybrid))
        assert answer.pool.ids == earlier.pool.ids
        assert not answer.warnings
        np.testing.assert_array_equal(answer.pool.features["bm25"], earlier.pool.features["bm25"])
        terms = PoolWords.of(texts[id] for id in answer.pool.ids).terms(asked)
        np.testing.assert_array_equal(answer.pool.terms, terms)
        assert terms.any() and not terms.all()
    catalog.close()


def test_search_snapshots_are_removed(folder: Path) -> None:
    assert len(list(folder.glob("*/*.snapshots"))) == 2
    catalog = LocalCatalog(folder)
    assert not list(folder.glob("*/*.snapshots"))
    assert [catalog.describe(index.name).count for index in catalog.list()] == [39, 39, 29]
    catalog.close()


def test_kinds_that_are_gone_are_not_made_anew(folder: Path) -> None:
    catalog = LocalCatalog(folder)
    assert not catalog.ensure("graph", encoder=None, dimension=8)
    assert not catalog.ensure("graph", encoder=None, dimension=8, kind="ivf")
    with pytest.raises(InvalidInput, match="use one of flat, ivf"):
        catalog.ensure("graph", encoder=None, dimension=8, kind="hnsw")
    with pytest.raises(IndexConflict, match="of kind 'ivf'"):
        catalog.ensure("graph", encoder=None, dimension=8, kind="flat")
    catalog.close()


def test_a_copy_comes_back_without_its_search_snapshot(tmp_path: Path) -> None:
    catalog = LocalCatalog(tmp_path)
    info = catalog.restore("again", DATA / "copy")
    assert (info.kind, info.count) == ("ivf", 39)
    assert answers(catalog.get("again")) == BEFORE["indexes"]["graph"]
    assert [path.suffix for path in (tmp_path / "again").iterdir() if "-" not in path.suffix] == [".sqlite3"]
    catalog.close()
