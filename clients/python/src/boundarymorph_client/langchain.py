"""For LangChain: a document compressor, which reranks what any retriever found, and a retriever over an index.

Both need `langchain-core` (the extra `langchain`). A document that they return has in its metadata, besides its own,
`relevance_score` in [0, 1], `relevance_std`, which is 0 where the cross-encoder scored it, and `relevance_source`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun, Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.retrievers import BaseRetriever
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr

from boundarymorph_client.async_client import AsyncClient
from boundarymorph_client.client import Client
from boundarymorph_client.models import SelectedDocument, SelectOptions


class _Service(BaseModel):
    """The service and what is asked of it.

    base_url, api_key, timeout, retries: as for `Client`. k: documents to return; budget: cross-encoder calls at most;
    options: further options of `Client.select`. async_client: used by the asynchronous methods, where one connection is
    to serve several calls in one event loop; without it each call makes its own.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    base_url: str | None = None
    api_key: SecretStr | None = None
    timeout: float = 60.0
    retries: int = 3
    k: int | None = None
    budget: int | str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    async_client: AsyncClient | None = Field(None, exclude=True, repr=False)
    _client: Client | None = PrivateAttr(None)

    def _select(self, query: str, **more: Any) -> list[SelectedDocument]:
        if self._client is None:
            self._client = Client(**self._connection())
        return self._client.select(query, **self._options(more)).documents

    async def _aselect(self, query: str, **more: Any) -> list[SelectedDocument]:
        if self.async_client is not None:
            return (await self.async_client.select(query, **self._options(more))).documents
        async with AsyncClient(**self._connection()) as client:
            return (await client.select(query, **self._options(more))).documents

    def _connection(self) -> dict[str, Any]:
        key = None if self.api_key is None else self.api_key.get_secret_value()
        return {"base_url": self.base_url, "api_key": key, "timeout": self.timeout, "retries": self.retries}

    def _options(self, more: dict[str, Any]) -> SelectOptions:
        given = {"k": self.k, "budget": self.budget}
        kept = {name: value for name, value in given.items() if value is not None}
        return cast(SelectOptions, {**self.options, **kept, **more})


class BoundaryMorphRerank(_Service, BaseDocumentCompressor):
    """Chooses the best k of the documents that a retriever found, which come in its order.

    title_field, score_field: of the metadata, for a title that the models read before the text, and for the retriever's
    scores, which then say the order.
    """

    title_field: str | None = None
    score_field: str | None = None

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """The chosen ones, most relevant first, as copies."""
        return self._chosen(documents, self._select(query, pool=self._pool(documents))) if documents else []

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """The chosen ones, most relevant first, as copies."""
        return self._chosen(documents, await self._aselect(query, pool=self._pool(documents))) if documents else []

    def _pool(self, documents: Sequence[Document]) -> list[dict[str, Any]]:
        pool = []
        for position, document in enumerate(documents):
            metadata = document.metadata
            entry = {"id": position, "text": document.page_content}
            entry["score"] = -position if self.score_field is None else metadata[self.score_field]
            if self.title_field is not None and metadata.get(self.title_field) is not None:
                entry["title"] = str(metadata[self.title_field])
            pool.append(entry)
        return pool

    @staticmethod
    def _chosen(documents: Sequence[Document], selected: list[SelectedDocument]) -> list[Document]:
        found = ((documents[int(chosen.id)], chosen) for chosen in selected)
        return [
            document.model_copy(update={"metadata": {**document.metadata, **_relevance(chosen)}})
            for document, chosen in found
        ]


class BoundaryMorphRetriever(_Service, BaseRetriever):
    """The best k documents of an index of the service."""

    index: str

    @classmethod
    def is_lc_serializable(cls) -> bool:
        return True

    @property
    def lc_secrets(self) -> dict[str, str]:
        return {"api_key": "BOUNDARYMORPH_API_KEY"}

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return _documents(self._select(query, index=self.index, return_documents=True))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        return _documents(await self._aselect(query, index=self.index, return_documents=True))


def _documents(selected: list[SelectedDocument]) -> list[Document]:
    return [
        Document(
            id=chosen.id,
            page_content=chosen.text or "",
            metadata={
                **(chosen.metadata or {}),
                **({} if chosen.title is None else {"title": chosen.title}),
                **_relevance(chosen),
            },
        )
        for chosen in selected
    ]


def _relevance(chosen: SelectedDocument) -> dict[str, Any]:
    return {
        "relevance_score": chosen.relevance,
        "relevance_std": chosen.std,
        "relevance_source": chosen.source,
    }
