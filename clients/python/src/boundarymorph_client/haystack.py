"""Use BoundaryMORPH in Haystack, as a ranker and a retriever, for pipelines of either kind.

The ranker reranks the documents of any retriever, and the retriever searches an index. Both need `haystack-ai` (the
extra `haystack`). The score of a returned document is its relevance in [0, 1]; its `meta` get `relevance_std`, which is
0 if the cross-encoder scored it, and `relevance_source`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.core.errors import SerializationError
from haystack.utils import Secret
from pydantic import SecretStr

from boundarymorph_client.async_client import AsyncClient
from boundarymorph_client.bodies import as_list
from boundarymorph_client.frameworks import (
    Service,
    candidate,
    certainty,
    document_phrase,
    found_metadata,
    optional_score,
)
from boundarymorph_client.haystack_filters import translated
from boundarymorph_client.models import SelectedDocument

KEY = Secret.from_env_var("BOUNDARYMORPH_API_KEY", strict=False)


class _Component:
    """The service, its clients, and their serialisation, which both components share.

    Public attributes are parameters.
    """

    top_k: int | None
    budget: int | str | None
    options: dict[str, Any] | None
    base_url: str | None
    api_key: Secret
    timeout: float
    retries: int
    selector: Any = None
    _service: Service | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Make copies and pickles leave out the connections, which the next call makes again."""
        return {name: given for name, given in vars(self).items() if name != "_service"}

    def warm_up(self) -> None:
        """Resolve the key."""
        if self._service is None:
            key = self.api_key.resolve_value()
            self._service = Service(
                base_url=self.base_url,
                api_key=None if key is None else SecretStr(key),
                timeout=self.timeout,
                retries=self.retries,
                budget=self.budget,
                options=self.options or {},
                selector=self.selector,
            )

    async def warm_up_async(self) -> None:
        """Resolve the key, and make the asynchronous client."""
        self.warm_up()
        if self._warm.async_client is None:
            self._warm.async_client = AsyncClient(**self._warm.connection())

    def close(self) -> None:
        """Close the connections of `run`."""
        if self._service is not None:
            self._service.close()

    async def close_async(self) -> None:
        """Close the connections of `run_async`, and of `run`."""
        if self._service is not None and self._service.async_client is not None:
            await self._service.async_client.close()
        self.close()

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for `Pipeline.to_dict`.

        A key that was given as a token, and not by its variable, cannot be serialised, nor can a selector, which raises
        a SerializationError.
        """
        if self.selector is not None:
            raise SerializationError("a selector of this process cannot be written down; ask a service instead")
        return default_to_dict(self, **{name: given for name, given in vars(self).items() if not name.startswith("_")})

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        """Return the component that `to_dict` serialised."""
        return default_from_dict(cls, data)

    @property
    def _warm(self) -> Service:
        assert self._service is not None
        return self._service


@component
class BoundaryMorphRanker(_Component):
    """Chooses the best `top_k` of a retriever's documents, which come in its order, best first.

    `title_field` names the field of `meta` with a title that the models read before the text, and `known_score_field`
    the field with scores in [0, 1] that another reranker gave some of the documents; with a budget of 0 these alone
    decide. `boundarymorph_client.frameworks.Service` describes the other parameters.
    """

    def __init__(
        self,
        *,
        top_k: int | None = None,
        budget: int | str | None = None,
        options: dict[str, Any] | None = None,
        title_field: str | None = None,
        known_score_field: str | None = None,
        base_url: str | None = None,
        api_key: Secret = KEY,
        timeout: float = 60.0,
        retries: int = 3,
        selector: Any = None,
    ) -> None:
        self.top_k = top_k
        self.budget = budget
        self.options = options
        self.title_field = title_field
        self.known_score_field = known_score_field
        self.base_url = base_url
        self.api_key = api_key
        self.timeout = timeout
        self.retries = retries
        self.selector = selector

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, list[Document]]:
        """Return copies of the chosen documents, most relevant first.

        Of documents with the same id the first one counts.
        """
        candidates = _unique(as_list(documents, "documents", Document))
        if not candidates:
            return {"documents": []}
        self.warm_up()
        return _chosen(candidates, self._warm.selected(query, **self._asked(candidates, top_k)))

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Do as `run`."""
        candidates = _unique(as_list(documents, "documents", Document))
        if not candidates:
            return {"documents": []}
        await self.warm_up_async()
        return _chosen(candidates, await self._warm.aselected(query, **self._asked(candidates, top_k)))

    def _asked(self, documents: list[Document], top_k: int | None) -> dict[str, Any]:
        field = self.title_field
        pool = [
            candidate(
                position,
                document.content or "",
                None if field is None else document.meta.get(field),
                known=optional_score(document.meta, self.known_score_field, document_phrase(position, document.id)),
            )
            for position, document in enumerate(documents)
        ]
        return {"pool": pool, "k": self.top_k if top_k is None else top_k}


@component
class BoundaryMorphRetriever(_Component):
    """Returns the best `top_k` documents of an index whose `meta` pass the filters of Haystack.

    `boundarymorph_client.frameworks.Service` describes the other parameters.
    """

    def __init__(
        self,
        index: str,
        *,
        top_k: int | None = None,
        filters: dict[str, Any] | None = None,
        budget: int | str | None = None,
        options: dict[str, Any] | None = None,
        base_url: str | None = None,
        api_key: Secret = KEY,
        timeout: float = 60.0,
        retries: int = 3,
    ) -> None:
        self.index = index
        self.top_k = top_k
        self.filters = filters
        self.budget = budget
        self.options = options
        self.base_url = base_url
        self.api_key = api_key
        self.timeout = timeout
        self.retries = retries

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Return the best documents of the index, most relevant first.

        `filters` and `top_k` replace those of the constructor.
        """
        self.warm_up()
        return _found(self._warm.selected(query, **self._asked(filters, top_k)))

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Do as `run`."""
        await self.warm_up_async()
        return _found(await self._warm.aselected(query, **self._asked(filters, top_k)))

    def _asked(self, filters: dict[str, Any] | None, top_k: int | None) -> dict[str, Any]:
        given = filters or self.filters
        return {
            "index": self.index,
            "k": self.top_k if top_k is None else top_k,
            "filter": translated(given) if given else None,
            "return_documents": True,
        }


def _unique(documents: list[Document]) -> list[Document]:
    """Return the documents without repetitions, which joined pipelines bring."""
    first: dict[str, Document] = {}
    for document in documents:
        first.setdefault(document.id, document)
    return list(first.values())


def _chosen(documents: list[Document], selected: list[SelectedDocument]) -> dict[str, list[Document]]:
    found = ((documents[int(chosen.id)], chosen) for chosen in selected)
    return {
        "documents": [
            replace(document, score=chosen.relevance, meta={**document.meta, **certainty(chosen)})
            for document, chosen in found
        ]
    }


def _found(selected: list[SelectedDocument]) -> dict[str, list[Document]]:
    return {
        "documents": [
            Document(
                id=chosen.id,
                content=chosen.text or "",
                score=chosen.relevance,
                meta={**found_metadata(chosen), **certainty(chosen)},
            )
            for chosen in selected
        ]
    }
