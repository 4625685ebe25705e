"""One index, searchable: the document store, and the vectors that keep step with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from boundarymorph.errors import EmptyIndex
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.index import FlatIndex, VectorIndex
from boundarymorph.retrieval.store import DocumentStore, StoreInfo, fingerprint
from boundarymorph.selection.pool import Pool, unit_rows


class LiveIndex:
    """A named index. Its store is the truth; before every search its vectors catch up with what was written there.

    So a search sees every upsert and deletion that was acknowledged before it began, whichever process made it. All
    calls block, may come from any thread, and raise UnknownIndex once the index has been deleted.
    """

    def __init__(self, name: str, store: DocumentStore, make_vectors: Callable[[int], VectorIndex] = FlatIndex) -> None:
        self.name = name
        self._store = store
        self._make_vectors = make_vectors
        self._catching_up = threading.Lock()
        self._sequence = 0
        self._vectors = make_vectors(store.info.dimension)

    @property
    def path(self) -> Path:
        return self._store.path

    @property
    def info(self) -> StoreInfo:
        return self._store.info

    def count(self) -> int:
        """Documents in the index."""
        return self._store.count()

    def search(self, query: ArrayLike, depth: int) -> Pool:
        """The `depth` documents nearest to a (d,) query, or all when there are fewer.

        Raises EmptyIndex, and InvalidEmbeddings for a query of another dimension or without a direction.
        """
        vectors = self.refresh()
        unit = unit_rows(np.reshape(query, (1, -1)), ["the query"])[0].astype(np.float32)
        if len(vectors) == 0:
            raise EmptyIndex(f"the index {self.name!r} holds no documents yet")
        found = vectors.search(unit, depth)
        return Pool(found.ids, found.vectors, unit, found.scores)

    def upsert(
        self,
        documents: Sequence[Document],
        embeddings: NDArray[np.floating],
        digests: Sequence[bytes] | None = None,
    ) -> None:
        """Write n documents with their (n, d) embeddings; durable and visible to every later search on return.

        digests: what `digests` is to answer for them, by default fingerprints of the documents and these embeddings.
        Raises InvalidEmbeddings or InvalidInput, and then nothing is written.
        """
        if digests is None:
            digests = [fingerprint(document, row) for document, row in zip(documents, embeddings, strict=True)]
        self._store.upsert(documents, embeddings, digests)

    def delete(self, ids: Sequence[str]) -> int:
        """Remove documents, durably and at once; how many of the ids were there."""
        return self._store.delete(ids)

    def documents(self, ids: Sequence[str]) -> dict[str, Document]:
        """The documents of these ids, by id; unknown ones are left out."""
        return self._store.documents(ids)

    def characters(self, ids: Sequence[str]) -> dict[str, int]:
        """How long title and text of these ids are together, by id; unknown ones are left out."""
        return self._store.characters(ids)

    def digests(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Fingerprints of what is stored under these ids; unknown ones are left out."""
        return self._store.digests(ids)

    def refresh(self) -> VectorIndex:
        """Catch up with the store; the vectors as they are then. The first call reads the whole index."""
        with self._catching_up:
            vectors, sequence, complete = self._vectors, self._sequence, False
            while not complete:
                changes = self._store.changes(sequence)
                if changes.reset:
                    vectors = self._make_vectors(self.info.dimension)
                if changes.deleted:
                    vectors.remove(changes.deleted)
                if changes.ids:
                    vectors.upsert(changes.ids, changes.vectors)
                sequence, complete = changes.sequence, changes.complete
            # Only now: a failure halfway repeats these changes, which is harmless, rather than losing some.
            self._vectors, self._sequence = vectors, sequence
        return vectors

    def close(self) -> None:
        """Release the file; later calls raise UnknownIndex."""
        self._store.close()
