"""Builds the rooms from the settings: the only place that chooses implementations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import SecretStr
from threadpoolctl import threadpool_limits

from boundarymorph.caching.embeddings import EmbeddingCache
from boundarymorph.caching.memory import MemoryEmbeddingCache, MemoryScoreCache
from boundarymorph.caching.scorer import CachingScorer
from boundarymorph.caching.scores import ScoreCache
from boundarymorph.errors import InvalidConfiguration
from boundarymorph.scoring.batching import BatchingScorer
from boundarymorph.scoring.cross_encoder import CrossEncoder
from boundarymorph.scoring.scorer import Scorer
from boundarymorph.selector import Selector
from boundarymorph.settings import CacheSettings, EncoderSettings, Settings

# At run time each is imported where it is built: a process that retrieves elsewhere loads neither FAISS nor ONNX.
if TYPE_CHECKING:
    from boundarymorph.caching.link import RedisLink
    from boundarymorph.retrieval.catalog import IndexCatalog
    from boundarymorph.retrieval.encoders import Encoder
    from boundarymorph.retrieval.index import VectorIndex
    from boundarymorph.retrieval.local import LocalRetriever
    from boundarymorph.retrieval.remote import RemoteRetriever

CANARY = "canary"


class Caches:
    """What is known already, in Redis or in this process, and what is put in front of the models."""

    def __init__(self, settings: CacheSettings) -> None:
        """Raises InvalidConfiguration for a malformed url."""
        self._enabled = settings.enabled
        self._link: RedisLink | None = None
        self._scores: ScoreCache
        self._embeddings: EmbeddingCache
        if settings.url is None:
            self._scores = MemoryScoreCache(settings.memory_bytes, seconds_to_live=settings.seconds_to_live)
            self._embeddings = MemoryEmbeddingCache(settings.memory_bytes, seconds_to_live=settings.seconds_to_live)
        else:
            from boundarymorph.caching.link import RedisLink
            from boundarymorph.caching.redis import RedisEmbeddingCache, RedisScoreCache

            self._link = RedisLink(settings.url.get_secret_value(), timeout=settings.timeout_seconds)
            self._scores = RedisScoreCache(self._link, seconds_to_live=settings.seconds_to_live)
            self._embeddings = RedisEmbeddingCache(self._link, seconds_to_live=settings.seconds_to_live)

    def before_scorer(self, scorer: Scorer, identity: Callable[[], str | None] | None = None) -> Scorer:
        """A scorer that remembers. identity: as of `CachingScorer`."""
        return CachingScorer(scorer, self._scores, identity=identity) if self._enabled else scorer

    def before_encoder(self, encoder: Encoder, identity: Callable[[], str | None] | None = None) -> Encoder:
        """An encoder that remembers queries."""
        from boundarymorph.caching.encoder import CachingEncoder

        return CachingEncoder(encoder, self._embeddings, identity=identity) if self._enabled else encoder

    async def close(self) -> None:
        """Release the connections; what was in this process is forgotten."""
        if self._link is not None:
            await self._link.close()


@dataclass(frozen=True, slots=True)
class Retrieval:
    """The indexes of this machine, and who searches them."""

    catalog: IndexCatalog
    encoder: Encoder
    retriever: LocalRetriever
    caches: Caches | None = None

    async def check(self) -> None:
        """Warm the encoder up. Raises what it raises."""
        await self.encoder.check()

    async def close(self) -> None:
        """Release threads and files, in the order of use."""
        await self.retriever.close()
        await self.encoder.close()
        self.catalog.close()
        if self.caches is not None:
            await self.caches.close()


@dataclass(frozen=True, slots=True)
class Rooms:
    """All parts of a service in one process."""

    catalog: IndexCatalog
    encoder: Encoder
    retriever: LocalRetriever
    scorer: Scorer
    selector: Selector
    caches: Caches | None = None

    async def check(self) -> None:
        """Warm encoder and cross-encoder up. Raises what they raise."""
        await self.encoder.check()
        await self.scorer.check()

    async def close(self) -> None:
        """Release threads, files and connections, in the order of use."""
        await self.selector.close()
        await self.scorer.close()
        await Retrieval(self.catalog, self.encoder, self.retriever, self.caches).close()


@dataclass(frozen=True, slots=True)
class Gateway:
    """The parts of a service whose indexes are in another process."""

    retriever: RemoteRetriever
    scorer: Scorer
    selector: Selector
    caches: Caches | None = None

    async def check(self) -> None:
        """Send a canary through the retriever and the scorer. Raises what they raise."""
        await self.retriever.embed_query(CANARY)
        await self.scorer.check()

    async def close(self) -> None:
        """Release threads and connections, in the order of use."""
        await self.selector.close()
        await self.scorer.close()
        await self.retriever.close()
        if self.caches is not None:
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
        precision=chosen.precision,
        device=chosen.device,
        max_length=chosen.max_length,
        pooling=chosen.pooling,
        query_prompt=chosen.query_prompt,
        document_prompt=chosen.document_prompt,
        instruction=chosen.instruction,
        dimension=chosen.dimension,
        batch_tokens=chosen.batch_tokens,
        trust_remote_code=chosen.trust_remote_code,
        threads=settings.threads,
    )


def build_catalog(settings: Settings) -> IndexCatalog:
    """The indexes on this machine. Raises InvalidConfiguration where there can be none."""
    from boundarymorph.retrieval.catalog import IndexCatalog

    try:
        return IndexCatalog(settings.data_directory / "indexes", _device_index(settings.search_device))
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
    indexes = build_retrieval(settings, on_lost)
    assert indexes.caches is not None
    scorer = _scorer(settings, indexes.caches, on_lost)
    selector = Selector(indexes.retriever, scorer, threads=settings.selector_threads)
    return Rooms(indexes.catalog, indexes.encoder, indexes.retriever, scorer, selector, indexes.caches)


def build_retrieval(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> Retrieval:
    """The indexes of this machine and what searches them, for a process of its own or as a part of one.

    Raises ModelUnavailable or InvalidConfiguration; blocks while the weights load. BLAS is held as by `build`.
    """
    from boundarymorph.retrieval.local import LocalRetriever

    catalog = build_catalog(settings)
    caches = Caches(settings.cache)
    bare = build_encoder(settings, on_lost)
    encoder = caches.before_encoder(bare, _identity(bare))
    threadpool_limits(1, user_api="blas")  # of what is loaded by now
    return Retrieval(catalog, encoder, LocalRetriever(catalog, encoder), caches)


def build_gateway(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> Gateway:
    """What a service needs whose indexes are at `retriever.url`. BLAS is held as by `build`.

    Raises InvalidConfiguration, and ModelUnavailable where the cross-encoder is in this process.
    """
    from boundarymorph.retrieval.remote import RemoteRetriever

    threadpool_limits(1, user_api="blas")
    chosen = settings.retriever
    if chosen.url is None:
        raise InvalidConfiguration("retriever.url: say where the retriever is")
    retriever = RemoteRetriever(
        chosen.url,
        api_key=_secret(chosen.api_key),
        timeout=chosen.timeout_seconds,
        connections=chosen.connections,
    )
    caches = Caches(settings.cache)
    scorer = _scorer(settings, caches, on_lost)
    return Gateway(retriever, scorer, Selector(retriever, scorer, threads=settings.selector_threads), caches)


def _device_index(device: str) -> Callable[[int], VectorIndex] | None:
    """What holds and searches the vectors on another device; None where the kinds on the CPU do."""
    kind, _, number = device.partition(":")
    match kind:
        case "cuda":
            from boundarymorph.retrieval.torch_index import TorchIndex

            return lambda dimension: TorchIndex(dimension, device=device)
        case "faiss":
            from boundarymorph.retrieval.gpu_index import GpuFlatIndex

            return lambda dimension: GpuFlatIndex(dimension, device=int(number or 0))
        case _:
            return None


def _scorer(settings: Settings, caches: Caches, on_lost: Callable[[], None]) -> Scorer:
    bare = _remote_scorer(settings) if settings.scorer.url else build_scorer(settings, on_lost)
    return caches.before_scorer(bare, _identity(bare))


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
        api_key=_secret(chosen.api_key),
        timeout=chosen.timeout_seconds,
        attempt_timeout=chosen.attempt_seconds,
        connections=chosen.connections,
        observe=metrics.observe_attempt,
    )


def _remote_encoder(chosen: EncoderSettings) -> Encoder:
    from boundarymorph.retrieval.encoders.remote import RemoteEncoder, parse
    from boundarymorph.telemetry import metrics

    return RemoteEncoder(
        [parse(url) for url in chosen.url],
        query_prompt=chosen.query_prompt,
        document_prompt=chosen.document_prompt,
        dimension=chosen.dimension,
        api_key=_secret(chosen.api_key),
        timeout=chosen.timeout_seconds,
        attempt_timeout=chosen.attempt_seconds,
        connections=chosen.connections,
        observe=metrics.observe_encoder_attempt,
    )


def _secret(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()
