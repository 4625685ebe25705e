"""Test the SQLite store with two processes, damaged files, and pruned deletions."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.errors import CorruptIndex, InvalidInput, UnknownIndex
from boundarymorph.retrieval.document import Document, fingerprint
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.local.store import DocumentStore
from tests.contract.vector_index import unit

Reopen = Callable[[], DocumentStore]


def write(store: DocumentStore, ids: list[str], text: str = "text of", seed: int = 0) -> None:
    documents = [Document(id, f"{text} {id}") for id in ids]
    store.upsert(documents, unit(len(ids), 8, seed), [fingerprint(document) for document in documents])


def matching(store: DocumentStore, filter: Filter) -> list[str]:
    """Return the ids of stored documents that match a filter, in the order of writing."""
    changes = store.changes(0)
    met = np.isin(changes.sequences, store.matching_sequences(filter))
    return [id for id, meets in zip(changes.ids, met, strict=True) if meets]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DocumentStore]:
    store = DocumentStore.create(tmp_path / "store?#% é.sqlite3", encoder="seeded", dimension=8)
    yield store
    store.close()


@pytest.fixture
def reopen(store: DocumentStore) -> Iterator[Reopen]:
    opened = []

    def open_again() -> DocumentStore:
        opened.append(DocumentStore(store.path))
        return opened[-1]

    yield open_again
    for again in opened:
        again.close()


def test_store_changes_are_those_since_the_last_reading(store: DocumentStore, reopen: Reopen) -> None:
    reader = reopen()
    write(store, ["a", "b", "c"])
    first = reader.changes(0)
    assert (first.ids, first.deleted, first.complete) == (["a", "b", "c"], [], True)
    write(store, ["b", "d"], text="new")
    store.delete(["a", "unknown"])
    second = reader.changes(first.sequence)
    assert (second.ids, second.deleted) == (["b", "d"], ["a"])
    nothing = reader.changes(second.sequence)
    assert (nothing.ids, nothing.deleted, nothing.sequence) == ([], [], second.sequence)


def test_store_counts_characters_like_python(store: DocumentStore) -> None:
    documents = [Document("a", "große", "Maße"), Document("b", "before\0after"), Document("c", "text", "a\0title")]
    store.upsert(documents, unit(3, 8), [b""] * 3)
    assert store.characters(["a", "b", "c", "unknown"]) == {"a": 9, "b": 12, "c": 11}


def test_store_keeps_its_encoder_and_dimension(tmp_path: Path) -> None:
    for number, encoder in enumerate((None, "123")):
        store = DocumentStore.create(tmp_path / str(number), encoder=encoder, dimension=8)
        assert (store.info.encoder, store.info.dimension) == (encoder, 8)
        assert store.info.created.endswith("+00:00")
        with closing(DocumentStore(store.path)) as again:
            assert again.info == store.info
        store.close()
        with pytest.raises(UnknownIndex):
            store.count()
    with pytest.raises(InvalidInput):
        DocumentStore.create(tmp_path / "s", encoder=None, dimension=0)


def test_store_commits_are_synced_to_disk(store: DocumentStore) -> None:
    with store.transaction() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_store_readers_do_not_wait_for_a_writer(store: DocumentStore, reopen: Reopen) -> None:
    write(store, ["a"])
    reader = reopen()
    with store.transaction("IMMEDIATE") as connection:
        connection.execute("UPDATE documents SET text = 'half done'")
        assert reader.documents(["a"])["a"].text == "text of a"
        assert store.documents(["a"])["a"].text == "text of a"
        assert reader.changes(0).ids == ["a"]


def test_store_serializes_writers_of_threads_and_processes(store: DocumentStore, reopen: Reopen) -> None:
    stores = [store, reopen()]

    def work(worker: int) -> None:
        for step in range(10):
            write(stores[worker % 2], [f"{worker}-{step}", "shared"])
            assert f"{worker}-{step}" in stores[(worker + 1) % 2].documents([f"{worker}-{step}"])

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    assert store.count() == 6 * 10 + 1 == len(store.changes(0).ids)


def test_one_state_shows_a_constant_snapshot(store: DocumentStore, reopen: Reopen) -> None:
    write(store, ["a", "b"])
    writer = reopen()
    with store.one_state():
        before = store.changes(0)
        write(writer, ["c"])
        writer.delete(["a"])
        with store.one_state():
            assert store.changes(0).ids == before.ids == ["a", "b"]
        assert store.last_sequence() == before.sequence == 2
        assert list(store.digests(["a", "b", "c"])) == ["a", "b"]
        assert matching(store, Filter({})) == ["a", "b"]
    assert store.changes(0).ids == ["b", "c"]
    assert matching(store, Filter({})) == ["b", "c"]


def log_size(store: DocumentStore) -> int:
    return Path(f"{store.path}-wal").stat().st_size


def test_write_ahead_log_is_emptied_over_its_bound(store: DocumentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = 2**19
    monkeypatch.setattr(DocumentStore, "log_bytes", bound)
    writer = DocumentStore(store.path)
    sizes = []
    for seed in range(100):
        write(writer, [str(i) for i in range(20)], seed=seed)
        sizes.append(log_size(store))
    writer.close()
    steps = np.diff([0, *sizes])
    assert max(sizes) < bound <= max(sizes) + steps.max()
    assert sizes.count(0) >= 2


@pytest.mark.parametrize("damage", ["garbage", "header", "truncated", "empty", "version", "table", "embedding"])
def test_damaged_store_file_is_named(store: DocumentStore, damage: str) -> None:
    write(store, [f"d{i}" for i in range(500)])
    if damage in ("version", "table", "embedding"):
        statement = {
            "version": "PRAGMA user_version=99",
            "table": "DROP TABLE documents",
            "embedding": "UPDATE documents SET embedding = x'00' WHERE id = 'd7'",
        }[damage]
        with store.transaction() as connection:
            connection.execute(statement)
    store.close()
    content = bytearray(store.path.read_bytes())
    if damage == "garbage":
        content[4096:] = b"\xa5" * (len(content) - 4096)
    elif damage == "header":
        content[:100] = b"\xa5" * 100
    elif damage in ("truncated", "empty"):
        del content[4096 * 3 if damage == "truncated" else 0 :]
    store.path.write_bytes(content)
    with pytest.raises(CorruptIndex, match="store"):
        DocumentStore(store.path).changes(0)


@pytest.mark.parametrize(
    ("statement", "read"),
    [
        ("UPDATE documents SET text = CAST(x'73656372657480' AS TEXT)", lambda store: store.documents(["a"])),
        ("UPDATE documents SET text = CAST(x'73656372657480' AS TEXT)", lambda store: store.changes(0, texts=True)),
        ("UPDATE documents SET text = CAST(x'73656372657480' AS TEXT)", lambda store: store.characters(["a"])),
        ("UPDATE documents SET metadata = x'7b80'", lambda store: store.documents(["a"])),
        ("UPDATE documents SET metadata = x'7b80'", lambda store: store.outlines(1)),
    ],
)
def test_damaged_value_is_named_without_its_text(
    store: DocumentStore, statement: str, read: Callable[[DocumentStore], object]
) -> None:
    write(store, ["a"])
    with store.write() as connection:
        connection.execute(statement)
    with pytest.raises(CorruptIndex, match=r"is damaged: .*; restore or rebuild") as raised:
        read(store)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("embedding", "sound"),
    [
        (np.array([0.9985, 0], np.float16), False),
        (np.array([0.999, 0], np.float16), True),
        (np.array([1.001, 0], np.float16), True),
        (np.array([1.002, 0], np.float16), False),
        (np.array([np.nan, 1], np.float16), False),
    ],
)
def test_damaged_embeddings_are_found(tmp_path: Path, embedding: NDArray[np.float16], sound: bool) -> None:
    store = DocumentStore.create(tmp_path / "s", encoder=None, dimension=2)
    store.upsert([Document("a", "")], np.eye(1, 2), [b""])
    with store.transaction("IMMEDIATE") as connection:
        connection.execute("UPDATE documents SET embedding = ?", (embedding.tobytes(),))
    if sound:
        np.testing.assert_array_equal(store.changes(0).vectors, [[1, 0]])
    else:
        with pytest.raises(CorruptIndex, match="unit length"):
            store.changes(0)
    store.close()


def test_missing_store_file_is_an_unknown_index(store: DocumentStore, tmp_path: Path) -> None:
    with pytest.raises(UnknownIndex):
        DocumentStore(tmp_path / "missing.sqlite3")
    assert not (tmp_path / "missing.sqlite3").exists()
    store.path.unlink()
    with pytest.raises(UnknownIndex):
        write(store, ["a"])
    with pytest.raises(UnknownIndex):
        store.documents(["a"])


def test_fingerprints_differ_for_different_documents() -> None:
    base = Document("a", "text", title="title", metadata={"x": 1, "y": 2})
    given = np.array([0.6, 0.8], dtype=np.float32)
    different = [
        fingerprint(base),
        fingerprint(Document("a", "text!", title="title", metadata=base.metadata)),
        fingerprint(Document("a", "text", title=None, metadata=base.metadata)),
        fingerprint(Document("a", "titletext", title="", metadata=base.metadata)),
        fingerprint(Document("a", "text", title="title", metadata={"x": 1})),
        fingerprint(base, given),
        fingerprint(base, given[::-1]),
    ]
    assert len(set(different)) == len(different)
    assert fingerprint(base) == fingerprint(Document("a", "text", title="title", metadata={"y": 2, "x": 1}))
    assert fingerprint(base, given) == fingerprint(base, given.astype(np.float64))
    with pytest.raises(InvalidInput, match="'a'"):
        fingerprint(Document("a", "lone \ud800 surrogate"))
