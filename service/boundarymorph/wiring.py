"""Builds the rooms from the settings: the only place that chooses implementations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from threadpoolctl import threadpool_limits

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.retrieval.catalog import IndexCatalog
from boundarymorph.retrieval.encoders import Encoder, OnnxEncoder
from boundarymorph.retrieval.retriever import LocalRetriever
from boundarymorph.scoring.batching import BatchingScorer
from boundarymorph.scoring.cross_encoder import CrossEncoder
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


def build_scorer(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> BatchingScorer:
    """The cross-encoder in this process, with its queue. on_lost: called when its device is gone for good.

    Raises ModelUnavailable or InvalidConfiguration; blocks while the weights load.
    """
    return BatchingScorer(
        _cross_encoder(settings),
        queue_tokens=settings.scorer.queue_tokens,
        patience=settings.scorer.timeout_seconds,
        on_lost=on_lost,
    )


def build(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> Rooms:
    """Everything that a service needs. Raises ModelUnavailable; blocks while the weights load.

    BLAS is held to one thread in this process: sessions run side by side already, and its threads would wait for each
    other, spinning, in products too small to split.
    """
    threadpool_limits(1, user_api="blas")
    catalog = build_catalog(settings)
    encoder = build_encoder(settings)
    retriever = LocalRetriever(catalog, encoder)
    scorer = _remote_scorer(settings) if settings.scorer.url else build_scorer(settings, on_lost)
    return Rooms(catalog, encoder, retriever, scorer, Selector(retriever, scorer, threads=settings.selector_threads))


def _cross_encoder(settings: Settings) -> CrossEncoder:
    chosen = settings.scorer
    if chosen.model is None:
        from boundarymorph.scoring.onnx import OnnxCrossEncoder

        return OnnxCrossEncoder.embedded(max_length=chosen.max_length or settings.max_length, threads=settings.threads)
    try:
        from boundarymorph.scoring.transformer.model import TransformerCrossEncoder
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(f"scorer.model needs {error.name}: pip install 'boundarymorph[torch]'") from None
    return TransformerCrossEncoder.load(
        chosen.model,
        precision=chosen.precision,
        device=chosen.device,
        max_length=chosen.max_length,
        prompt=chosen.prompt,
        instruction=chosen.instruction,
        batch_tokens=chosen.batch_tokens,
        trust_remote_code=chosen.trust_remote_code,
        threads=settings.threads,
    )


def _remote_scorer(settings: Settings) -> Scorer:
    from boundarymorph.scoring.remote.client import RemoteScorer
    from boundarymorph.scoring.remote.urls import parse
    from boundarymorph.telemetry import metrics

    chosen = settings.scorer
    return RemoteScorer(
        [parse(url) for url in chosen.url],
        api_key=None if chosen.api_key is None else chosen.api_key.get_secret_value(),
        timeout=chosen.timeout_seconds,
        attempt_timeout=chosen.attempt_seconds,
        connections=chosen.connections,
        observe=metrics.observe_attempt,
    )
