"""Provide the parts that the components for LangChain, LlamaIndex and Haystack share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr

from boundarymorph_client.async_client import AsyncClient
from boundarymorph_client.client import Client
from boundarymorph_client.errors import InvalidArgument
from boundarymorph_client.models import SelectedDocument, SelectOptions

TOLERANCE = 1e-6  # distance by which rounding may move a score out of [0, 1]


class Service(BaseModel):
    """The service's address and the options of its selections.

    Attributes:
        base_url: As in `Client`.
        api_key: As in `Client`.
        timeout: As in `Client`.
        retries: As in `Client`.
        budget: Most cross-encoder calls.
        options: Further options of `Client.select`.
        async_client: The client of the asynchronous methods, if one connection is to serve several calls in one event
            loop; without it each call makes its own.
        selector: A `boundarymorph.Selector`, which chooses in this process, in place of the service. It has no index,
            and is not serialised.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    base_url: str | None = None
    api_key: SecretStr | None = None
    timeout: float = 60.0
    retries: int = 3
    budget: int | str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    async_client: AsyncClient | None = Field(None, exclude=True, repr=False)
    selector: Any = Field(None, exclude=True, repr=False)
    _client: Client | None = PrivateAttr(None)

    def selected(self, query: str, **more: Any) -> list[SelectedDocument]:
        """Return the documents that the service chooses, most relevant first.

        `more` has options, with None for missing ones.
        """
        if self.selector is not None:
            return cast(list[SelectedDocument], self.selector.select(query, **self._local(more)).documents)
        if self._client is None:
            self._client = Client(**self.connection())
        return self._client.select(query, **self._options(more)).documents

    async def aselected(self, query: str, **more: Any) -> list[SelectedDocument]:
        """Do as `selected`."""
        if self.selector is not None:
            return cast(list[SelectedDocument], (await self.selector.aselect(query, **self._local(more))).documents)
        if self.async_client is not None:
            return (await self.async_client.select(query, **self._options(more))).documents
        async with AsyncClient(**self.connection()) as client:
            return (await client.select(query, **self._options(more))).documents

    def close(self) -> None:
        """Close the connections of the synchronous methods; the next call makes new ones."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def connection(self) -> dict[str, Any]:
        """Return the arguments of a client."""
        key = None if self.api_key is None else self.api_key.get_secret_value()
        return {"base_url": self.base_url, "api_key": key, "timeout": self.timeout, "retries": self.retries}

    def _local(self, more: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a selector. Raises InvalidArgument without candidates."""
        options: dict[str, Any] = {**self._options(more)}
        if "pool" not in options:
            raise InvalidArgument(
                "a selector has no index; leave it out to ask a service, or rerank what another retriever finds"
            )
        return {"texts": options.pop("pool"), **options}

    def _options(self, more: dict[str, Any]) -> SelectOptions:
        given = {"budget": self.budget, **more}
        kept = {name: value for name, value in given.items() if value is not None}
        return cast(SelectOptions, {**self.options, **kept})


def candidate(
    position: int, text: str, title: object = None, score: float | None = None, known: float | None = None
) -> dict[str, Any]:
    """Return a document of a pool with its position as id.

    Without a score, the position is its rank. `known` is a reranker's score in [0, 1].
    """
    entry = {"id": position, "text": text, "score": -position if score is None else score}
    more = {"title": None if title is None else str(title), "cross_encoder_score": known}
    return {**entry, **{name: value for name, value in more.items() if value is not None}}


def document_phrase(position: int, id: str | None) -> str:
    """Return the name of a document for messages of errors."""
    return f"document {position + 1}" + ("" if id is None else f" (id {id!r})")


def read_score(metadata: Mapping[str, Any], field: str, document: str) -> float:
    """Return a retriever's score from the metadata of a document.

    Raises:
        InvalidArgument: With the document, if there is no score.
    """
    found = metadata.get(field)
    number = _number(found)
    if math.isfinite(number):
        return number
    said = f"is {found!r} there" if field in metadata else "is missing there"
    raise InvalidArgument(
        f"{document} has no score in its metadata: {field!r} {said}; give every document a number, or leave "
        "score_field out, so that the order of the documents counts"
    )


def optional_score(metadata: Mapping[str, Any], field: str | None, document: str) -> float | None:
    """Return a reranker's score from the metadata of a document, or None without a score.

    Raises:
        InvalidArgument: With the document, if it is not a number in [0, 1].
    """
    found = None if field is None else metadata.get(field)
    if found is None:
        return None
    number = _number(found)
    if -TOLERANCE <= number <= 1 + TOLERANCE:
        return min(max(number, 0.0), 1.0)
    raise InvalidArgument(
        f"{document} has {found!r} as {field!r} in its metadata, and a known score is a number from 0 to 1; a document "
        "without one leaves it out"
    )


def _number(found: Any) -> float:
    """Convert a value to a number; NaN if that is not possible."""
    try:
        return math.nan if found is None or isinstance(found, str) else float(found)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def found_metadata(chosen: SelectedDocument) -> dict[str, Any]:
    """Return the metadata of a document of an index, with its title."""
    return {**(chosen.metadata or {}), **({} if chosen.title is None else {"title": chosen.title})}


def certainty(chosen: SelectedDocument) -> dict[str, Any]:
    """Return the standard deviation and the source of an estimate."""
    return {"relevance_std": chosen.std, "relevance_source": chosen.source}
