"""Builds the rooms from the settings: the only place that chooses implementations."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from pydantic import SecretStr
from threadpoolctl import threadpool_limits

from boundarymorph.caching.caches import Caches
from boundarymorph.caching.memory import MemoryEmbeddingCache, MemoryScoreCache
from boundarymorph.errors import InvalidConfiguration
from boundarymorph.retrieval.observed import ObservedRetriever
from boundarymorph.scoring.batching import BatchingScorer
from boundarymorph.scoring.cross_encoder import CrossEncoder
from boundarymorph.scoring.scorer import Scorer
from boundarymorph.selector.selector import Selector
from boundarymorph.settings import CacheSettings, EncoderSettings, ModelSettings, ScorerSettings, Settings

# At run time each is imported where it is built: a process that retrieves elsewhere loads neither FAISS nor ONNX.
if TYPE_CHECKING:
    from boundarymorph.inference.transformer.device import LoadOptions
    from boundarymorph.remote.model import Observer, Options
    from boundarymorph.retrieval.catalog import Catalog
    from boundarymorph.retrieval.encoders import Encoder
    from boundarymorph.retrieval.index_retriever import IndexRetriever
    from boundarymorph.retrieval.local.catalog import LocalCatalog
    from boundarymorph.retrieval.local.vector_index import VectorIndex
    from boundarymorph.retrieval.remote import RemoteRetriever
    from boundarymorph.retrieval.retriever import Retriever

PROBE = "probe"
LOCAL_THREADS = 16  # that search the indexes of this machine: what waits at the same time is searched together
Probe = Callable[[float], Awaitable[object]]  # asks a part for a trifle, before a moment on `time.monotonic()`
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Retrieval:
    """The indexes of this machine, or of Milvus, and who searches them."""

    catalog: Catalog
    encoder: Encoder
    retriever: IndexRetriever
    caches: Caches = field(default_factory=Caches, kw_only=True)
    probes: Mapping[str, Probe] = field(default_factory=dict, kw_only=True)

    async def check(self) -> None:
        """Warm the encoder up, and see that the indexes can be reached. Raises what they raise."""
        await self.encoder.check()
        await asyncio.to_thread(self.catalog.check)

    async def close(self) -> None:
        """Release threads and files, in the order of use."""
        await self.retriever.close()
        await self.encoder.close()
        self.catalog.close()
        await self.caches.close()


@dataclass(frozen=True)
class Rooms(Retrieval):
    """All parts of a service in one process."""

    scorer: Scorer
    selector: Selector

    async def check(self) -> None:
        """Besides, warm the cross-encoder up."""
        await super().check()
        await self.scorer.check()

    async def close(self) -> None:
        await self.selector.close()
        await self.scorer.close()
        await super().close()


@dataclass(frozen=True)
class Scoring:
    """A cross-encoder by itself."""

    scorer: BatchingScorer

    @property
    def probes(self) -> Mapping[str, Probe]:
        """Of the cross-encoder."""
        return {"scorer": probe_of_scorer(self.scorer)}

    async def check(self) -> None:
        """Warm it up. Raises what it raises."""
        await self.scorer.check()

    async def close(self) -> None:
        """Release its threads."""
        await self.scorer.close()


@dataclass(frozen=True)
class Gateway:
    """The parts of a service whose indexes are in another process."""

    retriever: RemoteRetriever
    scorer: Scorer
    selector: Selector
    caches: Caches = field(default_factory=Caches, kw_only=True)
    probes: Mapping[str, Probe] = field(default_factory=dict, kw_only=True)

    async def check(self) -> None:
        """Send a probe through the retriever and the scorer. Raises what they raise."""
        await self.retriever.check()
        await self.scorer.check()

    async def close(self) -> None:
        """Release threads and connections, in the order of use."""
        await self.selector.close()
        await self.scorer.close()
        await self.retriever.close()
        await self.caches.close()


def build_encoder(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> Encoder:
    """The dual encoder. Its `check` comes before its name. on_lost: called when its device is gone for good.

    Raises ModelUnavailable or InvalidConfiguration; blocks while the weights load.
    """
    chosen = settings.encoder
    if chosen.url:
        return _remote_encoder(chosen)
    if chosen.model is None:
        from boundarymorph.retrieval.encoders import OnnxEncoder

        return OnnxEncoder.embedded(max_length=chosen.max_length or settings.max_length, threads=settings.threads)
    try:
        from boundarymorph.retrieval.encoders.transformer import TransformerEncoder
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(f"encoder.model needs {error.name}: pip install 'boundarymorph[torch]'") from None
    return TransformerEncoder.load(
        chosen.model,
        patience=chosen.timeout_seconds,
        on_lost=on_lost,
        max_length=chosen.max_length,
        pooling=chosen.pooling,
        query_prompt=chosen.query_prompt,
        document_prompt=chosen.document_prompt,
        instruction=chosen.instruction,
        dimension=chosen.dimension,
        **_load_options(chosen, settings.threads),
    )


def build_catalog(
    settings: Settings, make_vectors: Callable[[int], VectorIndex] | None = None, warnings: Sequence[str] = ()
) -> LocalCatalog:
    """The indexes on this machine, as `LocalCatalog`. Raises InvalidConfiguration where there can be none."""
    from boundarymorph.retrieval.local.catalog import LocalCatalog

    try:
        return LocalCatalog(
            settings.data_directory / "indexes",
            make_vectors,
            warnings=warnings,
            log_bytes=settings.index_log_bytes,
            filter_bytes=settings.filter_bytes,
        )
    except OSError as error:
        raise InvalidConfiguration(f"data_directory: {error}") from error


def build_indexes(settings: Settings) -> Catalog:
    """The indexes that a service has: those in Milvus if there is a url, else those on this machine.

    These are searched on `search_device`, or where it cannot be used on the CPU, with a warning in every answer.
    Raises InvalidConfiguration; a Milvus that is not there shows at the first call.
    """
    chosen = settings.milvus
    if chosen.url is None:
        return _searched_catalog(settings)
    try:
        from boundarymorph.retrieval.milvus.catalog import MilvusCatalog
        from boundarymorph.retrieval.milvus.connection import Connection
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(f"milvus.url needs {error.name}: pip install 'boundarymorph[milvus]'") from None
    from boundarymorph.retrieval.milvus.existing import Existing
    from boundarymorph.retrieval.milvus.vectors import VectorCache

    def cache(dimension: int) -> VectorCache:
        return VectorCache(settings.data_directory / "vectors", dimension, chosen.vector_bytes)

    return MilvusCatalog(
        Connection(chosen.url, token=_secret(chosen.token), database=chosen.database, timeout=chosen.timeout_seconds),
        prefix=chosen.prefix,
        make_cache=cache if chosen.vectors == "local" else None,
        existing={name: Existing(**described.model_dump()) for name, described in chosen.collections.items()},
    )


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


def build_scoring(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> Scoring:
    """What a scorer serves. Raises as `build_scorer`."""
    return Scoring(build_scorer(settings, on_lost))


def build(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> Rooms:
    """Everything that a service needs. Raises ModelUnavailable; blocks while the weights load.

    BLAS is held to one thread in this process: sessions run side by side already, and its threads would wait for each
    other, spinning, in products too small to split.
    """
    indexes = build_retrieval(settings, on_lost)
    scorer = _scorer(settings, on_lost)
    selector = _selector(settings, indexes.retriever, scorer, indexes.caches)
    return Rooms(
        indexes.catalog,
        indexes.encoder,
        indexes.retriever,
        scorer,
        selector,
        caches=indexes.caches,
        probes={**indexes.probes, **_scorer_probes(settings, scorer)},
    )


def build_retrieval(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> Retrieval:
    """The indexes of this machine or of Milvus and what searches them, for a process of its own or a part of one.

    Raises ModelUnavailable or InvalidConfiguration; blocks while the weights load. BLAS is held as by `build`.
    """
    from boundarymorph.retrieval.index_retriever import IndexRetriever

    catalog = build_indexes(settings)
    caches = _caches(settings.cache)
    bare = build_encoder(settings, on_lost)
    encoder = caches.before_encoder(bare, _identity(bare))
    threadpool_limits(1, user_api="blas")  # of what is loaded by now
    threads = LOCAL_THREADS if settings.milvus.url is None else settings.milvus.connections
    work = settings.work
    retriever = IndexRetriever(catalog, encoder, threads=work.search_threads or threads, waiting=work.search_waiting)
    probes = {**_encoder_probes(settings, bare), "indexes": probe_of_indexes(catalog)}
    return Retrieval(catalog, encoder, retriever, caches=caches, probes=probes)


def build_gateway(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> Gateway:
    """What a service needs whose indexes are at `retriever.url`. BLAS is held as by `build`.

    Raises InvalidConfiguration, and ModelUnavailable where the cross-encoder is in this process.
    """
    threadpool_limits(1, user_api="blas")
    retriever = _remote_retriever(settings)
    caches = _caches(settings.cache)
    scorer = _scorer(settings, on_lost)
    selector = _selector(settings, retriever, scorer, caches)
    probes = {"retriever": lambda deadline: retriever.check(), **_scorer_probes(settings, scorer)}
    return Gateway(retriever, scorer, selector, caches=caches, probes=probes)


def probe_of_scorer(scorer: Scorer) -> Probe:
    """Scores one short pair. scorer: without a cache, which would answer in its place."""
    return lambda deadline: scorer.score(PROBE, [PROBE], deadline=deadline)


def probe_of_indexes(catalog: Catalog) -> Probe:
    """Looks for the indexes in a thread. Who gives up leaves the look to the next, so that none runs beside another."""
    look: asyncio.Task[None] | None = None

    async def probe(deadline: float) -> None:
        nonlocal look
        look = current = look or asyncio.create_task(asyncio.to_thread(catalog.check))
        try:
            await asyncio.shield(current)
        finally:
            if current.done():
                look = None

    return probe


def _selector(settings: Settings, retriever: Retriever, scorer: Scorer, caches: Caches) -> Selector:
    return Selector(
        ObservedRetriever(retriever),
        scorer,
        caches.scores,
        identity=_identity(scorer),
        threads=settings.selector_threads,
    )


def _remote_retriever(settings: Settings) -> RemoteRetriever:
    from boundarymorph.retrieval.remote import RemoteRetriever
    from boundarymorph.telemetry import metrics

    chosen = settings.retriever
    if not chosen.url:
        raise InvalidConfiguration("retriever.url: say where the retriever is")
    alone = len(chosen.url) == 1
    return RemoteRetriever(
        *chosen.url,
        api_key=_secret(chosen.api_key),
        timeout=chosen.timeout_seconds if alone else min(chosen.timeout_seconds, chosen.attempt_seconds),
        connections=chosen.connections,
        on_change=partial(metrics.observe_replica, "retriever"),
    )


def _searched_catalog(settings: Settings) -> LocalCatalog:
    device = settings.search_device
    try:
        make_vectors = _device_index(device)
        if make_vectors is not None:
            make_vectors(1)
    except (ImportError, InvalidConfiguration) as error:
        _log.warning("search_device %s cannot be used, the CPU searches in its place: %s", device, error)
        return build_catalog(settings, warnings=[f"search_device {device} cannot be used here; the CPU searched"])
    return build_catalog(settings, make_vectors)


def _device_index(device: str) -> Callable[[int], VectorIndex] | None:
    """What holds and searches the vectors on another device; None where the kinds on the CPU do. Raises ImportError."""
    kind, _, number = device.partition(":")
    match kind:
        case "cuda":
            from boundarymorph.retrieval.local.torch_index import TorchIndex

            return lambda dimension: TorchIndex(dimension, device=device)
        case "faiss":
            from boundarymorph.retrieval.local.faiss_index import FaissIndex

            return lambda dimension: FaissIndex(dimension, device=int(number or 0))
        case _:
            return None


def _scorer(settings: Settings, on_lost: Callable[[], None]) -> Scorer:
    return _remote_scorer(settings) if settings.scorer.url else build_scorer(settings, on_lost)


def _scorer_probes(settings: Settings, scorer: Scorer) -> dict[str, Probe]:
    """None for one that is paid by the request."""
    from boundarymorph.scoring.remote.urls import parse

    paid = any(parse(url).dialect.paid for url in settings.scorer.url)
    return {} if paid else {"scorer": probe_of_scorer(scorer)}


def _encoder_probes(settings: Settings, encoder: Encoder) -> dict[str, Probe]:
    """None for one that is paid by the request."""
    from boundarymorph.retrieval.encoders.remote import parse

    paid = any(parse(url).dialect.paid for url in settings.encoder.url)
    return {} if paid else {"encoder": lambda deadline: encoder.encode_query(PROBE)}


def _caches(chosen: CacheSettings) -> Caches:
    """In Redis or in this process, or none. Raises InvalidConfiguration for a malformed url."""
    if not chosen.enabled:
        return Caches()
    size, seconds = chosen.memory_bytes, chosen.seconds_to_live
    if chosen.url is None:
        return Caches(
            MemoryScoreCache(size, seconds_to_live=seconds), MemoryEmbeddingCache(size, seconds_to_live=seconds)
        )
    from boundarymorph.caching.link import RedisLink
    from boundarymorph.caching.redis import RedisEmbeddingCache, RedisScoreCache

    link = RedisLink(chosen.url.get_secret_value(), timeout=chosen.timeout_seconds)
    return Caches(
        RedisScoreCache(link, seconds_to_live=seconds, namespace=chosen.namespace),
        RedisEmbeddingCache(link, seconds_to_live=seconds, namespace=chosen.namespace),
        link,
    )


def _identity(model: Encoder | Scorer) -> Callable[[], str | None] | None:
    """How the name of a model elsewhere is learned; None where it is known from the start."""
    return (lambda: model.identity) if hasattr(model, "identity") else None


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
        max_length=chosen.max_length,
        prompt=chosen.prompt,
        instruction=chosen.instruction,
        **_load_options(chosen, settings.threads),
    )


def _remote_scorer(settings: Settings) -> Scorer:
    from boundarymorph.scoring.remote.client import RemoteScorer
    from boundarymorph.scoring.remote.urls import parse
    from boundarymorph.telemetry import metrics

    chosen = settings.scorer
    endpoints = [replace(parse(url), revision=chosen.revision) for url in chosen.url]
    return RemoteScorer(endpoints, **_remote_options(chosen, "scorer", metrics.observe_attempt))


def _remote_encoder(chosen: EncoderSettings) -> Encoder:
    from boundarymorph.retrieval.encoders.remote import RemoteEncoder, parse
    from boundarymorph.telemetry import metrics

    return RemoteEncoder(
        [replace(parse(url), revision=chosen.revision) for url in chosen.url],
        query_prompt=chosen.query_prompt,
        document_prompt=chosen.document_prompt,
        dimension=chosen.dimension,
        **_remote_options(chosen, "encoder", metrics.observe_encoder_attempt),
    )


def _remote_options(chosen: ScorerSettings | EncoderSettings, role: str, observe: Observer) -> Options:
    from boundarymorph.telemetry import metrics

    return {
        "api_key": _secret(chosen.api_key),
        "timeout": chosen.timeout_seconds,
        "attempt_timeout": chosen.attempt_seconds,
        "connections": chosen.connections,
        "observe": observe,
        "on_change": partial(metrics.observe_replica, role),
    }


def _load_options(chosen: ModelSettings, threads: int | None) -> LoadOptions:
    return {
        "revision": chosen.revision,
        "precision": chosen.precision,
        "device": chosen.device,
        "batch_tokens": chosen.batch_tokens,
        "trust_remote_code": chosen.trust_remote_code,
        "threads": threads,
    }


def _secret(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()
