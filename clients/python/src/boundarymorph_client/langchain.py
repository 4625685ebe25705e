"""Use BoundaryMORPH in LangChain, as a document compressor and a retriever.

The compressor reranks the documents of any retriever, and the retriever searches an index. Both need `langchain-core`
(the extra `langchain`). A returned document has in its metadata, besides its own, `relevance_score` in [0, 1],
`relevance_std`, which is 0 if the cross-encoder scored it, and `relevance_source`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun, Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.retrievers import BaseRetriever

from boundarymorph_client.bodies import as_list
from boundarymorph_client.frameworks import (
    Service,
    candidate,
    certainty,
    document_phrase,
    found_metadata,
    optional_score,
    read_score,
)
from boundarymorph_client.models import SelectedDocument


class BoundaryMorphRerank(Service, BaseDocumentCompressor):
    """Chooses the best k of the documents that a retriever found, which come in its order.

    Attributes:
        k: Documents to return.
        title_field: The field of the metadata with a title that the models read before the text.
        score_field: The field with the retriever's scores, which then define the order; a document without a score is
            an InvalidArgument.
        known_score_field: The field with scores in [0, 1] that another reranker gave some of the documents; with a
            budget of 0 these alone decide. `Service` describes the other attributes.
    """

    k: int | None = None
    title_field: str | None = None
    score_field: str | None = None
    known_score_field: str | None = None

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Return copies of the chosen documents, most relevant first."""
        documents = as_list(documents, "documents", Document)
        if not documents:
            return []
        return _chosen(documents, self.selected(query, pool=self._pool(documents), k=self.k))

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Return copies of the chosen documents, most relevant first."""
        documents = as_list(documents, "documents", Document)
        if not documents:
            return []
        return _chosen(documents, await self.aselected(query, pool=self._pool(documents), k=self.k))

    def _pool(self, documents: Sequence[Document]) -> list[dict[str, Any]]:
        return [
            candidate(
                position,
                document.page_content,
                None if self.title_field is None else document.metadata.get(self.title_field),
                None
                if self.score_field is None
                else read_score(document.metadata, self.score_field, document_phrase(position, document.id)),
                optional_score(document.metadata, self.known_score_field, document_phrase(position, document.id)),
            )
            for position, document in enumerate(documents)
        ]


class BoundaryMorphRetriever(Service, BaseRetriever):
    """Returns the best k documents of an index.

    `invoke` takes options of its own: `invoke(query, k=5)`. `Service` describes the other attributes.
    """

    index: str
    k: int | None = None

    @classmethod
    def is_lc_serializable(cls) -> bool:
        return True

    @property
    def lc_secrets(self) -> dict[str, str]:
        return {"api_key": "BOUNDARYMORPH_API_KEY"}

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        return _documents(self.selected(query, **self._asked(options)))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        return _documents(await self.aselected(query, **self._asked(options)))

    def _asked(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"k": self.k, **options, "index": self.index, "return_documents": True}


def _chosen(documents: Sequence[Document], selected: list[SelectedDocument]) -> list[Document]:
    found = ((documents[int(chosen.id)], chosen) for chosen in selected)
    return [
        document.model_copy(update={"metadata": {**document.metadata, **_relevance(chosen)}})
        for document, chosen in found
    ]


def _documents(selected: list[SelectedDocument]) -> list[Document]:
    return [
        Document(
            id=chosen.id,
            page_content=chosen.text or "",
            metadata={**found_metadata(chosen), **_relevance(chosen)},
        )
        for chosen in selected
    ]


def _relevance(chosen: SelectedDocument) -> dict[str, Any]:
    return {"relevance_score": chosen.relevance, **certainty(chosen)}
