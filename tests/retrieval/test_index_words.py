"""Indexing the words of a store made without, or by an earlier version's rules: while others write, and interrupted."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from boundarymorph.errors import InvalidInput
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.local import schema, words
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.retrieval.words.lexical import PoolWords
from boundarymorph.retrieval.words.lexical_index import append
from tests.retrieval.bm25 import literal_bm25

ROOT = Path(__file__).parents[2]
WORDS = ["tram", "tramway", "violin", "bread", "harbour", "the", "of", "a"]


@pytest.fixture(params=["none", "earlier"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DocumentStore]:
    earlier = request.param == "earlier"
    with monkeypatch.context() as patch:
        patch.setattr(schema, "WORDS_VERSION", 1)
        store = DocumentStore.create(tmp_path / "s", encoder=None, dimension=4, lexical=earlier)
    assert store.has_words() is earlier
    yield store
    store.close()


def put(store: DocumentStore, texts: dict[str, str]) -> None:
    documents = [Document(id, text) for id, text in texts.items()]
    store.upsert(documents, np.tile(np.eye(1, 4), (len(documents), 1)), [b""] * len(documents))


def text(seed: int) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, size=8))


def agrees(store: DocumentStore, held: dict[str, str]) -> None:
    for query in ("tram", "the bread of", "tramp or tramway", "violin violin a"):
        ids = list(held)
        np.testing.assert_allclose(
            store.bm25(query, store.sequences(ids)), literal_bm25(query, list(held.values())), rtol=1e-12
        )
        terms = store.terms(query, store.sequences(ids))
        np.testing.assert_array_equal(terms, PoolWords.of(held.values()).terms(query))
        best = store.best_by_words(query, len(held) + 1)
        assert sorted(best.ids) == sorted(id for id, words in held.items() if set(query.split()) & set(words.split()))


def test_others_write_meanwhile(store: DocumentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each document is indexed once: those written, replaced or deleted on either side of what is done already."""
    monkeypatch.setattr(words, "BATCH", 10)
    held = {f"d{number}": text(number) for number in range(45)}
    put(store, held)
    other = DocumentStore(store.path)
    told: list[tuple[int, int]] = []

    def change(done: int, total: int) -> None:
        told.append((done, total))
        step = len(told)
        if step <= 3:
            with pytest.raises(InvalidInput, match="lexical"):
                store.best_by_words("tram", 5)
        changed = {f"d{step}": text(100 + step), f"d{43 - step}": text(200 + step), f"new{step}": text(300 + step)}
        if step == 1:
            changed["d9"] = text(400)  # the last one that is done
        put(other, changed)
        held.update(changed)
        gone = [f"d{5 + step}", f"d{38 - step}"]
        other.delete(gone)
        for id in gone:
            held.pop(id, None)

    assert store.index_words(change)
    assert told[:2] == [(10, 45), (17, 45)]
    assert all(done <= total for done, total in told)
    agrees(store, held)
    agrees(other, held)
    put(other, {"later": "tram"})
    agrees(store, held | {"later": "tram"})
    assert not store.index_words()
    assert store.has_words()
    other.close()


def test_two_that_do_it_at_once(store: DocumentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "BATCH", 10)
    held = {f"d{number}": text(number) for number in range(35)}
    put(store, held)
    other = DocumentStore(store.path)
    told: list[int] = []

    def help_once(done: int, total: int) -> None:
        told.append(done)
        if len(told) == 1:
            assert other.index_words(lambda done, total: told.append(done))

    assert store.index_words(help_once)
    assert told == [10, 20, 30, 35]
    agrees(other, held)
    other.close()


def test_the_last_batch_may_be_empty(store: DocumentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "BATCH", 10)
    held = {f"d{number}": text(number) for number in range(20)}
    put(store, held)
    assert store.index_words()
    agrees(store, held)


def test_an_empty_store(store: DocumentStore) -> None:
    told: list[tuple[int, int]] = []
    assert store.index_words(lambda done, total: told.append((done, total)))
    assert told == [(0, 0)]
    assert store.best_by_words("tram", 5).ids == []


def test_what_an_earlier_program_began_is_made_anew(store: DocumentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It indexed some documents by its own rules before it was interrupted."""
    monkeypatch.setattr(words, "BATCH", 10)
    held = {f"d{number}": text(number) for number in range(35)}
    put(store, held)
    with store.transaction("IMMEDIATE") as connection:
        if store.info.lexical:
            connection.execute("UPDATE meta SET value = NULL WHERE key = 'words'")
        else:
            append(connection, 1, list(range(1, 21)), list(held.values())[:20])
        connection.execute("INSERT INTO meta VALUES ('words_until', 20)")
    put(store, {"d3": "tram", "d30": "bread"})
    held |= {"d3": "tram", "d30": "bread"}
    store.delete(["d7", "d32"])
    held = {id: text for id, text in held.items() if id not in ("d7", "d32")}
    told: list[int] = []
    assert store.index_words(lambda done, total: told.append(done))
    assert told == [10, 20, 30, 33]
    agrees(store, held)


SCRIPT = """
import sys
from pathlib import Path
from boundarymorph.retrieval.local import words
from boundarymorph.retrieval.local.store import DocumentStore
words.BATCH = 7
def stop(done, total):
    print(done, flush=True)
    sys.stdin.readline()
DocumentStore(Path(sys.argv[1])).index_words(stop)
"""


def test_a_process_that_is_killed_leaves_what_another_finishes(
    store: DocumentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "BATCH", 7)
    held = {f"d{number}": text(number) for number in range(60)}
    put(store, held)
    for kill in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(store.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
        )
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            for _ in range(2):
                assert process.stdout.readline()
                changed = {f"d{kill}": text(400 + kill), f"d{50 + kill}": text(500 + kill)}
                put(store, changed)
                held |= changed
                store.delete([f"d{kill + 3}"])
                held.pop(f"d{kill + 3}", None)
                process.stdin.write(b"\n")
                process.stdin.flush()
            assert process.stdout.readline()
            process.kill()
        assert not store.has_words()
    told: list[int] = []
    assert store.index_words(lambda done, total: told.append(done))
    assert told[0] >= 40  # 42 were done, less those that were replaced or deleted since
    agrees(store, held)
