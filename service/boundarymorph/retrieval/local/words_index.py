"""An index without vectors: its documents are found and compared by their words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from boundarymorph.errors import EmptyIndex, InvalidInput
from boundarymorph.inference.executors import computing
from boundarymorph.retrieval.local.index import LocalIndex
from boundarymorph.retrieval.pieces import in_pieces
from boundarymorph.retrieval.retriever import Retrieved, Search
from boundarymorph.retrieval.vectors import exact_scores
from boundarymorph.retrieval.words.lexical import PoolWords, beginnings
from boundarymorph.retrieval.words.vectors import lexical_vectors
from boundarymorph.selection.pool import Pool


class WordsIndex(LocalIndex):
    """A `LocalIndex` of kind "words". BM25 over the whole index ranks its documents; those found get lexical vectors
    (`words.vectors`) of their own texts, computed for each query."""

    def retrieve(self, search: Search) -> Retrieved:
        """See `Index.retrieve`. Returns up to `search.depth` documents that contain a word of the query, with BM25 and
        the similarity of the lexical vectors as features."""
        if search.embedding is not None or search.hybrid:
            raise InvalidInput(
                f"the index {self.name!r} has no vectors, only words; leave out the query_embedding and hybrid"
            )
        with self._one_state() as view:
            if not len(view):
                raise EmptyIndex(f"the index {self.name!r} holds no documents yet")
            words = view.words
            assert words is not None
            if search.condition is not None:
                view = view.among(self._store.matching_sequences(search.condition))
            with computing():
                rows, scores = words.best(search.query, search.depth, view.rows.alive)
            ids = [view.rows.ids[row] for row in rows.tolist()]
            texts = self._texts(ids)
        if not ids:
            which = "document" if search.condition is None else "document that passes the filter"
            nothing = Pool([], np.empty((0, 1), np.float32), np.ones(1, np.float32), np.empty(0))
            return Retrieved(nothing, [f"no {which} has a word of the query"], "lexical")
        with computing():  # which also bounds the memory for words
            found = PoolWords.of(texts)
            del texts
            vectors, query = lexical_vectors(found, search.query)
            features = {"bm25": scores, "similarity": exact_scores(vectors, query)}
            terms = found.terms(search.query)
        return Retrieved(Pool(ids, vectors, query, scores, features, terms), vectors="lexical")

    def _texts(self, ids: Sequence[str]) -> list[str]:
        """Return what the vectors of documents, all of which are there, are made from."""
        pieces = in_pieces(self._store.documents, ids)
        return beginnings((document.content for piece in pieces for document in piece.values()), len(ids))
