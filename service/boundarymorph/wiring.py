"""Builds the rooms from the settings: the only place that chooses implementations."""

from __future__ import annotations

from dataclasses import dataclass

from threadpoolctl import threadpool_limits

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.retrieval.catalog import IndexCatalog
from boundarymorph.retrieval.encoders import Encoder, OnnxEncoder
from boundarymorph.retrieval.retriever import LocalRetriever
from boundarymorph.scoring.onnx import OnnxCrossEncoder
from boundarymorph.scoring.scorer import Scorer
from boundarymorph.selector import Selector
from boundarymorph.settings import Settings


@dataclass(frozen=True, slots=True)
class Rooms:
    """All parts of a running service."""

    catalog: IndexCatalog
    encoder: Encoder
    retriever: LocalRetriever
    scorer: Scorer
    selector: Selector

    async def check(self) -> None:
        """Send a canary through encoder and cross-encoder. Raises what they raise."""
        await self.retriever.embed_query("canary")
        await self.scorer.score("canary", ["canary"])

    async def close(self) -> None:
        """Release threads, files and connections, in the order of use."""
        await self.selector.close()
        await self.retriever.close()
        await self.scorer.close()
        await self.encoder.close()
        self.catalog.close()


def build_encoder(settings: Settings) -> Encoder:
    """The dual encoder. Raises ModelUnavailable; blocks while the weights load."""
    return OnnxEncoder.embedded(max_length=settings.max_length, threads=settings.threads)


def build_catalog(settings: Settings) -> IndexCatalog:
    """The indexes on this machine. Raises InvalidConfiguration where there can be none."""
    try:
        return IndexCatalog(settings.data_directory / "indexes")
    except OSError as error:
        raise InvalidConfiguration(f"data_directory: {error}") from error


def build(settings: Settings) -> Rooms:
    """Everything that a service needs. Raises ModelUnavailable; blocks while the weights load.

    BLAS is held to one thread in this process: sessions run side by side already, and its threads would wait for each
    other, spinning, in products too small to split.
    """
    threadpool_limits(1, user_api="blas")
    catalog = build_catalog(settings)
    encoder = build_encoder(settings)
    retriever = LocalRetriever(catalog, encoder)
    scorer = OnnxCrossEncoder.embedded(max_length=settings.max_length, threads=settings.threads)
    return Rooms(catalog, encoder, retriever, scorer, Selector(retriever, scorer, threads=settings.selector_threads))
