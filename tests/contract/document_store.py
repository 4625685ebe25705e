"""What every document store does. A test class inherits and provides `store`, of 8 dimensions, and `reopen`."""

from collections.abc import Callable

import numpy as np

from boundarymorph.retrieval.document import Document, fingerprint
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.local.store import DocumentStore
from tests.contract.vector_index import unit

Reopen = Callable[[], DocumentStore]


def write(store: DocumentStore, ids: list[str], text: str = "text of", seed: int = 0) -> None:
    documents = [Document(id, f"{text} {id}") for id in ids]
    store.upsert(documents, unit(len(ids), 8, seed), [fingerprint(document) for document in documents])


def matching(store: DocumentStore, filter: Filter) -> list[str]:
    """The ids of the documents that are there and meet a filter, in the order of writing."""
    changes = store.changes(0)
    met = np.isin(changes.sequences, store.matching_sequences(filter))
    return [id for id, meets in zip(changes.ids, met, strict=True) if meets]


class DocumentStoreContract:
    def test_vectors_come_back_as_unit_rows(self, store: DocumentStore, reopen: Reopen) -> None:
        documents = [Document(str(i), "") for i in range(50)]
        store.upsert(documents, 17.5 * unit(50, 8), [b""] * 50)
        changes = reopen().changes(0)
        assert changes.ids == [document.id for document in documents]
        assert changes.vectors.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(changes.vectors, axis=1), 1, atol=1e-6)
        np.testing.assert_allclose(changes.vectors, unit(50, 8), atol=1e-3)

    def test_a_reader_sees_what_followed_what_it_saw(self, store: DocumentStore, reopen: Reopen) -> None:
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

    def test_changes_can_be_read_in_pieces(self, store: DocumentStore) -> None:
        write(store, [str(i) for i in range(25)])
        store = DocumentStore(store.path, page=10)
        sequence, seen, pieces, complete = 0, [], 0, False
        while not complete:
            changes = store.changes(sequence)
            seen += changes.ids
            sequence, complete, pieces = changes.sequence, changes.complete, pieces + 1
        assert seen == [str(i) for i in range(25)]
        assert pieces == 3
        store.close()

    def test_lengths_are_in_characters(self, store: DocumentStore) -> None:
        documents = [Document("a", "große", "Maße"), Document("b", "before\0after"), Document("c", "text", "a\0title")]
        store.upsert(documents, unit(3, 8), [b""] * 3)
        assert store.characters(["a", "b", "c", "unknown"]) == {"a": 9, "b": 12, "c": 11}

    def test_many_ids_at_once(self, store: DocumentStore) -> None:
        ids = [f"d{i}" for i in range(2500)]
        write(store, ids)
        assert store.documents(ids).keys() == set(ids)
        assert store.delete(ids[:1700]) == 1700
        assert store.count() == 800

    def test_changes_are_numbered(self, store: DocumentStore) -> None:
        write(store, ["a", "b", "c"])
        write(store, ["a"])
        store.delete(["b"])
        changes = store.changes(0)
        assert changes.ids == ["c", "a"]
        assert changes.sequences.dtype == np.int64
        assert changes.sequences[0] < changes.sequences[1] <= changes.sequence
        assert store.changes(int(changes.sequences[0])).ids == ["a"]
