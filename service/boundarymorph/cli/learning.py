"""Calibrations and judgements for commands: in the data directory, or at the retriever that the settings name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, TypeVar

from boundarymorph.calibration.belongings import Event
from boundarymorph.calibration.calibration import Calibration
from boundarymorph.settings import Settings

if TYPE_CHECKING:
    from boundarymorph.retrieval.interfaces import Catalog
    from boundarymorph.retrieval.remote import RemoteRetriever

Answer = TypeVar("Answer")


def events_of(settings: Settings, index: str) -> Sequence[Event]:
    """Return the judgements that callers sent of an index. Raises UnknownIndex."""
    if settings.retriever.url:
        return asyncio.run(_at_retriever(settings, lambda retriever: retriever.events(index)))
    with _catalog(settings) as catalog:
        return catalog.belongings(index).judgments.events()


def keep(settings: Settings, made: Calibration) -> str:
    """Keep a calibration with its index, or for pools, and return where. Raises UnknownIndex."""
    from boundarymorph.retrieval.index_retriever import Learned

    if settings.retriever.url:
        asyncio.run(_at_retriever(settings, lambda retriever: retriever.keep(made)))
        return "the retriever's"
    with _catalog(settings) as catalog:
        Learned(catalog, settings).keep(made)
    return "that of pools" if made.index is None else f"that of the index {made.index!r}"


@contextmanager
def _catalog(settings: Settings) -> Iterator[Catalog]:
    from boundarymorph.retrieval.build import build_indexes

    with closing(build_indexes(settings)) as catalog:
        yield catalog


async def _at_retriever(settings: Settings, call: Callable[[RemoteRetriever], Awaitable[Answer]]) -> Answer:
    from boundarymorph.retrieval.build import build_remote_retriever

    retriever = build_remote_retriever(settings)
    try:
        return await call(retriever)
    finally:
        await retriever.close()
