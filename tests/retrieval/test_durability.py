"""Test that acknowledged writes survive `kill -9` at any moment.

The processes, the files, and the kills are real.
"""

import itertools
import random
import sys
import time
from pathlib import Path

import numpy as np

from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.retrieval.words import PoolWords
from tests.retrieval.fakes import Words, nearest, vector_of
from tests.stateful.profile import times
from tests.system import script

DIMENSION, BATCH, KNOWN = 32, 5, 200


def document_of(number: int, version: int) -> Document:
    # The padding makes a batch span several database pages.
    return Document(str(number), f"document {number} version {version} " + "padding " * 200)


def write() -> None:
    """Write documents or create indexes until killed, and print each acknowledgement."""
    directory, what, *arguments = sys.argv[1:]
    first = int(arguments[0]) if arguments else 0
    catalog = LocalCatalog(Path(directory))
    if what == "create":
        for number in itertools.count():
            catalog.create(f"index-{number}", encoder=None, dimension=DIMENSION)
            print(number, flush=True)
    index = catalog.create("index", encoder=None, dimension=DIMENSION)
    rng = random.Random(first)
    for batch in itertools.count(first):
        if what == "build":
            numbers, version = list(range(batch * BATCH, (batch + 1) * BATCH)), 0
        else:
            numbers, version = rng.sample(range(KNOWN), BATCH), batch
        documents = [document_of(number, version) for number in numbers]
        index.upsert(documents, np.array([vector_of(document.text) for document in documents]))
        print(version, *numbers, flush=True)


def run_until_killed(seconds: float, directory: Path, *arguments: str) -> list[list[int]]:
    """Run a writer, kill it some time after its first line, and return the numbers of each line."""
    code = "from tests.retrieval.test_durability import write; write()"
    with script.running(code, str(directory), *arguments) as (writer, output):
        first = output.readline()
        assert first, "the writer ended before it wrote anything"
        time.sleep(seconds)
        writer.kill()
        lines = first + output.read()
    assert writer.returncode == -9
    complete = lines[: lines.rfind(b"\n")].split(b"\n")
    return [[int(number) for number in line.split()] for line in complete]


def read_all(directory: Path) -> dict[int, int]:
    """Return the version of each document, after checking texts, vectors, and answers."""
    catalog = LocalCatalog(directory)
    index = catalog.get("index")
    pool = nearest(index, np.ones(DIMENSION), 1_000_000)
    documents = index.documents(pool.ids)
    assert len(documents) == len(pool) == index.count()
    versions = {}
    for id, vector in zip(pool.ids, pool.embeddings, strict=True):
        version = int(documents[id].text.split()[3])
        assert documents[id] == document_of(int(id), version)
        np.testing.assert_allclose(vector, vector_of(documents[id].text), atol=1e-3)
        versions[int(id)] = version
    assert nearest(index, vector_of(documents[pool.ids[0]].text), 1).ids == [pool.ids[0]]
    catalog.close()
    return versions


def words_agree(directory: Path, stored: dict[int, int]) -> None:
    """Check that BM25 after a kill equals BM25 over the stored documents."""
    (path,) = (directory / "index").glob("*.sqlite3")
    store, ids = DocumentStore(path), [str(number) for number in stored]
    last = max(stored.values())
    query = f"version {last} document {ids[0]} padding {last} unheard"
    texts = [document_of(number, version).content for number, version in stored.items()]
    expected = PoolWords.from_texts(texts).bm25(query)
    words = Words(store)
    np.testing.assert_allclose(words.bm25(query, ids), expected, rtol=1e-12)
    found = words.best(query, len(ids) + 1)
    assert sorted(found.ids) == sorted(ids)
    np.testing.assert_allclose(found.scores, -np.sort(-expected), rtol=1e-12)
    with store.transaction() as connection:
        (damage,) = connection.execute("PRAGMA integrity_check").fetchone()
    assert damage == "ok"
    store.close()


def test_killed_first_build_keeps_acknowledged_documents(tmp_path: Path) -> None:
    rng = random.Random(1)
    for kill in range(times(3, 50)):
        directory = tmp_path / str(kill)
        acknowledged = run_until_killed(rng.uniform(0, 0.15), directory, "build")
        stored = read_all(directory)
        assert {number for _, *numbers in acknowledged for number in numbers} <= stored.keys()
        # A batch is one transaction: the last one may be there without its acknowledgement, but never a part of it.
        assert len(stored) in (BATCH * len(acknowledged), BATCH * (len(acknowledged) + 1))
        assert stored.keys() == set(range(len(stored)))
        words_agree(directory, stored)


def test_killed_update_keeps_acknowledged_versions(tmp_path: Path) -> None:
    catalog = LocalCatalog(tmp_path)
    documents = [document_of(number, 0) for number in range(KNOWN)]
    vectors = np.array([vector_of(document.text) for document in documents])
    catalog.create("index", encoder=None, dimension=DIMENSION).upsert(documents, vectors)
    catalog.close()
    rng = random.Random(2)
    expected = dict.fromkeys(range(KNOWN), 0)
    for _ in range(times(3, 50)):
        first = max(expected.values()) + 1
        for version, *numbers in run_until_killed(rng.uniform(0, 0.15), tmp_path, "update", str(first)):
            expected |= dict.fromkeys(numbers, version)
        stored = read_all(tmp_path)
        assert stored.keys() == expected.keys()
        ahead = [number for number in stored if stored[number] != expected[number]]
        assert all(stored[number] > expected[number] for number in ahead)
        assert len(ahead) in (0, BATCH)
        words_agree(tmp_path, stored)
        expected = stored


def test_killed_creation_leaves_only_whole_indexes(tmp_path: Path) -> None:
    rng = random.Random(3)
    for kill in range(2):
        directory = tmp_path / str(kill)
        acknowledged = run_until_killed(rng.uniform(0, 0.1), directory, "create")
        catalog = LocalCatalog(directory)
        there = {folder.name for folder in directory.iterdir() if not folder.name.startswith(".")}
        assert {f"index-{number}" for (number,) in acknowledged} <= there
        assert {info.name for info in catalog.list()} == there
        catalog.close()
