"""Building the scorer that the settings ask for. What a process does not need is not imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.scoring.batching import BatchingScorer
from boundarymorph.scoring.bill import Ledger, OpenLedger
from boundarymorph.scoring.rerankers import repository_of
from boundarymorph.scoring.scorer import CrossEncoder, Scorer
from boundarymorph.scoring.trips import Price, Trips
from boundarymorph.settings import ScorerSettings, Settings


def build_scorer(
    settings: Settings, on_lost: Callable[[], None] = lambda: None, ledger: Callable[[], Ledger] = OpenLedger
) -> Scorer:
    """Return a client of remote cross-encoders or language models if there is a url, else a local cross-encoder.

    ledger: makes the ledger for a language model. Raises as `build_local_scorer` does.
    """
    return _remote_scorer(settings.scorer, ledger) if settings.scorer.url else build_local_scorer(settings, on_lost)


def build_local_scorer(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> BatchingScorer:
    """Load the cross-encoder in this process, with its queue. on_lost: called if its device is lost for good.

    Raises ModelUnavailable or InvalidConfiguration; blocks while the weights load.
    """
    return BatchingScorer(
        _cross_encoder(settings),
        queue_tokens=settings.scorer.queue_tokens,
        share=settings.limits.key_share,
        patience=settings.scorer.timeout_seconds,
        on_lost=on_lost,
    )


def scorer_is_paid(settings: ScorerSettings) -> bool:
    """Whether a request costs money, so that none is sent unnecessarily."""
    from boundarymorph.scoring.remote.urls import parse

    return any(parse(url).dialect.paid for url in settings.url)


def trips_to(settings: ScorerSettings, scorer: Scorer) -> Trips:
    """Return what trips to a scorer cost. scorer: made by these settings."""
    prices = settings.price
    price = Price(prices.request, prices.hundred_documents, prices.thousand_tokens, prices.ceiling)
    if settings.url:
        from boundarymorph.scoring.remote.dialects import Cohere
        from boundarymorph.scoring.remote.urls import parse

        dialects = [parse(url).dialect for url in settings.url]
        billed = price.unit or any(isinstance(dialect, Cohere) for dialect in dialects)
        full = min(dialect.most_texts if dialect.in_one_pass else 1 for dialect in dialects)
        return Trips("billed" if billed else "dear", price, full=full)
    on_cpu = not isinstance(scorer, BatchingScorer) or scorer.model.backend.endswith("cpu")
    return Trips("cheap" if on_cpu else "dear", price)


def _cross_encoder(settings: Settings) -> CrossEncoder:
    chosen = settings.scorer
    if chosen.model is None:
        from boundarymorph.scoring.onnx import OnnxCrossEncoder

        return OnnxCrossEncoder.embedded(max_length=chosen.max_length or settings.max_length, threads=settings.threads)
    try:
        from boundarymorph.inference.transformer.device import load_options
        from boundarymorph.scoring.transformer.model import TransformerCrossEncoder
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(f"scorer.model needs {error.name}: pip install 'boundarymorph[torch]'") from None
    return TransformerCrossEncoder.load(
        repository_of(chosen.model),
        max_length=chosen.max_length,
        prompt=chosen.prompt,
        instruction=chosen.instruction,
        **load_options(chosen, settings.threads),
    )


def _remote_scorer(chosen: ScorerSettings, ledger: Callable[[], Ledger]) -> Scorer:
    from boundarymorph.remote.model import remote_options
    from boundarymorph.scoring.judge.dialect import OpenAI
    from boundarymorph.scoring.judge.judge import Judge
    from boundarymorph.scoring.remote.client import RemoteScorer
    from boundarymorph.scoring.remote.urls import parse

    endpoints = [replace(parse(url), revision=chosen.revision) for url in chosen.url]
    options = remote_options(chosen, "scorer")
    if not any(isinstance(endpoint.dialect, OpenAI) for endpoint in endpoints):
        return RemoteScorer(endpoints, **options)
    if not all(isinstance(endpoint.dialect, OpenAI) for endpoint in endpoints):
        raise InvalidConfiguration("scorer.url has both language models (openai://) and cross-encoders; give one kind")
    return Judge(endpoints, chosen.judge, ledger(), **options)
