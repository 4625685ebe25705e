"""Build the parts of a process of each role, each with the builder of its own package."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from threadpoolctl import threadpool_limits

from boundarymorph.api.lifecycle import Parts, Probe
from boundarymorph.caching.build import build_caches
from boundarymorph.errors import StorageUnavailable
from boundarymorph.inference.models import identity_of
from boundarymorph.retrieval.build import build_encoder, build_indexes, build_remote_retriever, encoder_is_paid
from boundarymorph.scoring.build import build_local_scorer, build_scorer, declared_trust, full_pass, scorer_is_paid
from boundarymorph.scoring.selftest import PROBE, ScorerProbe
from boundarymorph.selector.selector import Selector
from boundarymorph.settings import Settings
from boundarymorph.telemetry import metrics

# At run time each is imported where it is built: a process with a remote retriever loads neither FAISS nor ONNX.
if TYPE_CHECKING:
    from boundarymorph.retrieval.interfaces import Catalog

MEASURING_PAUSE = 50  # pause before the indexes are measured again, as a multiple of the time that it took


def build_scoring(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> Parts:
    scorer = build_local_scorer(settings, on_lost)
    return Parts(scorer=scorer, probes={"scorer": ScorerProbe(scorer, tests=settings.scorer.self_test)})


def build(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> Parts:
    """Build all parts of a service in one process; blocks while the weights load.

    BLAS gets one thread, because sessions run side by side and its threads would spin in small products.

    Raises:
        ModelUnavailable: If the files of a model are missing.
    """
    indexes = build_retrieval(settings, on_lost)
    return _selecting(settings, indexes, partial(identity_of, indexes.encoder), on_lost)


def build_retrieval(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> Parts:
    """Build the indexes and their retriever, as `build` does.

    Raises:
        ModelUnavailable: If the files of the encoder are missing.
        InvalidConfiguration: If the settings do not fit together.
    """
    from boundarymorph.retrieval.index_retriever import IndexRetriever

    catalog = build_indexes(settings)
    caches = build_caches(settings.cache)
    bare = build_encoder(settings, on_lost)
    encoder = caches.before_encoder(bare)
    threadpool_limits(1, user_api="blas")  # this affects only libraries that are already loaded
    retriever = IndexRetriever(catalog, encoder, threads=settings.search_threads, share=settings.limits.key_share)
    probes: dict[str, Probe] = {"indexes": probe_of_indexes(catalog)}
    if not encoder_is_paid(settings.encoder):
        probes["encoder"] = lambda deadline: bare.encode_query(PROBE)
    return Parts(catalog, encoder, retriever, caches=caches, probes=probes)


def build_gateway(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> Parts:
    """Build the parts of a service whose indexes are at `retriever.url`.

    BLAS gets one thread, as in `build`.

    Raises:
        InvalidConfiguration: If the settings do not fit together.
        ModelUnavailable: If the cross-encoder is in this process and its files are missing.
    """
    retriever = build_remote_retriever(settings)
    probes: dict[str, Probe] = {"retriever": lambda deadline: retriever.check()}
    parts = Parts(retriever=retriever, caches=build_caches(settings.cache), probes=probes)
    return _selecting(settings, parts, lambda: retriever.identity, on_lost)


def _selecting(
    settings: Settings, parts: Parts, encoder: Callable[[], str | None], on_lost: Callable[[], None]
) -> Parts:
    """Return the parts with a cross-encoder and a selector.

    `encoder` returns the identity of the retriever's encoder.
    """
    scorer = build_scorer(settings, on_lost)
    threadpool_limits(1, user_api="blas")  # includes libraries that the scorer has loaded
    selector = Selector(
        parts.retriever,
        scorer,
        parts.caches.scores,
        trust=declared_trust(settings.scorer),
        full=full_pass(settings.scorer),
        encoder=encoder,
        share=settings.limits.key_share,
    )
    probes = dict(parts.probes)
    if not scorer_is_paid(settings.scorer):
        probes["scorer"] = ScorerProbe(scorer, tests=settings.scorer.self_test)
    return replace(parts, scorer=scorer, selector=selector, probes=probes)


def probe_of_indexes(catalog: Catalog, clock: Callable[[], float] = time.monotonic) -> Probe:
    """Return a probe that checks the indexes in a thread, or awaits a running check.

    It also measures them for the metrics in another thread, without waiting.
    """
    check: asyncio.Task[None] | None = None
    measuring: asyncio.Task[None] | None = None
    due = -math.inf

    def measure() -> None:
        nonlocal due
        begun = clock()
        with suppress(StorageUnavailable):  # the check says so
            measured = catalog.totals()
            due = clock() + MEASURING_PAUSE * (clock() - begun)
            for kind, totals in measured.items():
                metrics.indexes.labels(kind).set(totals.indexes)
                metrics.index_documents.labels(kind).set(totals.documents)
                metrics.index_bytes.labels(kind).set(totals.bytes)

    async def probe(deadline: float) -> None:
        nonlocal check, measuring
        if (measuring is None or measuring.done()) and clock() >= due:
            measuring = asyncio.create_task(asyncio.to_thread(measure))
        check = current = check or asyncio.create_task(asyncio.to_thread(catalog.check))
        try:
            await asyncio.shield(current)
        finally:
            if current.done():
                check = None

    return probe
