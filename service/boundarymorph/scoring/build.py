"""Building the scorer that the settings ask for. What a process does not need is not imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from boundarymorph.errors import InvalidConfiguration, missing_package
from boundarymorph.scoring.costs import Kind, Ledger, OpenLedger, Price, Trips
from boundarymorph.scoring.rerankers import repository_of
from boundarymorph.scoring.scorer import BatchingScorer, CrossEncoder, Scorer
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
        share=settings.limits.key_share,
        patience=settings.scorer.timeout_seconds,
        on_lost=on_lost,
    )


def scorer_is_paid(settings: ScorerSettings) -> bool:
    """Whether a request costs money, so that none is sent unnecessarily."""
    from boundarymorph.scoring.remote import parse

    return any(parse(url).dialect.paid for url in settings.url)


def trips_to(settings: ScorerSettings, scorer: Scorer) -> Trips:
    """Return what trips to a scorer cost. scorer: made by these settings. Raises InvalidConfiguration for a ceiling
    without prices."""
    given, ceiling = settings.price.model_dump(exclude={"ceiling"}, exclude_none=True), settings.price.ceiling
    price = Price(given.get("request", 0.0), given.get("hundred_documents", 0.0), given.get("thousand_tokens", 0.0))
    kind: Kind = "dear"
    full = 1
    if settings.url:
        from boundarymorph.scoring.judge import OpenAI
        from boundarymorph.scoring.remote import Cohere, parse, published

        endpoints = [parse(url) for url in settings.url]
        price = price if given else published(endpoints)
        by_search = any(isinstance(endpoint.dialect, Cohere) for endpoint in endpoints) and not price.tokens
        kind = "billed" if price.unit or by_search else "dear"
        full = min(endpoint.dialect.most_texts if endpoint.dialect.in_one_pass else 1 for endpoint in endpoints)
        if all(isinstance(endpoint.dialect, OpenAI) for endpoint in endpoints):
            full = settings.judge.documents_per_request
    elif not isinstance(scorer, BatchingScorer) or scorer.model.backend.endswith("cpu"):
        kind = "cheap"
    if ceiling is not None and not price:
        raise InvalidConfiguration(
            "scorer.price.ceiling needs a price, or nothing would ever count against it: set scorer.price.request, "
            "hundred_documents or thousand_tokens"
        )
    return Trips(kind, replace(price, ceiling=ceiling), full=full)


def _cross_encoder(settings: Settings) -> CrossEncoder:
    chosen = settings.scorer
    if chosen.model is None:
        from boundarymorph.scoring.scorer import OnnxCrossEncoder

        return OnnxCrossEncoder.embedded(max_length=chosen.max_length or settings.max_length, threads=settings.threads)
    try:
        from boundarymorph.inference.transformer import load_options
        from boundarymorph.scoring.transformer import TransformerCrossEncoder
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(missing_package("scorer.model", error.name, "torch")) from None
    return TransformerCrossEncoder.load(
        repository_of(chosen.model),
        max_length=chosen.max_length,
        prompt=chosen.prompt,
        instruction=chosen.instruction,
        **load_options(chosen, settings.threads),
    )


def _remote_scorer(chosen: ScorerSettings, ledger: Callable[[], Ledger]) -> Scorer:
    from boundarymorph.remote.model import remote_options
    from boundarymorph.scoring.judge import Judge, OpenAI
    from boundarymorph.scoring.remote import RemoteScorer, parse

    endpoints = [replace(parse(url), revision=chosen.revision) for url in chosen.url]
    options = remote_options(chosen, "scorer")
    if not any(isinstance(endpoint.dialect, OpenAI) for endpoint in endpoints):
        return RemoteScorer(endpoints, **options)
    if not all(isinstance(endpoint.dialect, OpenAI) for endpoint in endpoints):
        raise InvalidConfiguration("scorer.url has both language models (openai://) and cross-encoders; give one kind")
    return Judge(endpoints, chosen.judge, ledger(), **options)
