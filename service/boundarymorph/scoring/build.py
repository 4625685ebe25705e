"""Build the scorer that the settings ask for, and import only the parts that it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from boundarymorph.errors import InvalidConfiguration, missing_package
from boundarymorph.scoring.rerankers import repository_of
from boundarymorph.scoring.scorer import BatchingScorer, CrossEncoder, Scorer
from boundarymorph.selection.pool import Trust
from boundarymorph.settings import ScorerSettings, Settings

if TYPE_CHECKING:
    from boundarymorph.remote.urls import Endpoint


def build_scorer(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> Scorer:
    """Return a client of remote models if there is a URL, else a local cross-encoder."""
    if not settings.scorer.url:
        return build_local_scorer(settings, on_lost)
    from boundarymorph.remote.model import remote_options
    from boundarymorph.scoring.remote import RemoteScorer

    return RemoteScorer(_endpoints(settings.scorer), **remote_options(settings.scorer))


def build_local_scorer(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> BatchingScorer:
    """Load the cross-encoder in this process, with its queue; blocks while the weights load.

    Args:
        settings: The settings of the service.
        on_lost: Called if its device is lost for good.

    Raises:
        ModelUnavailable: If its files are missing.
        InvalidConfiguration: If the settings do not fit the model.
    """
    return BatchingScorer(
        _cross_encoder(settings),
        share=settings.limits.key_share,
        patience=settings.scorer.timeout_seconds,
        on_lost=on_lost,
    )


def scorer_is_paid(settings: ScorerSettings) -> bool:
    return any(endpoint.format.paid for endpoint in _endpoints(settings))


def declared_trust(settings: ScorerSettings) -> Trust | None:
    """Return the trust that the settings declare, or that all servers have by their kind.

    It is None if neither says.
    """
    if settings.trust is not None:
        return settings.trust
    kinds = {endpoint.format.trust for endpoint in _endpoints(settings)}
    return kinds.pop() if len(kinds) == 1 else None


def full_pass(settings: ScorerSettings) -> int:
    """Return the number of documents that every server reads in one pass.

    It is 1 if one server reads each document by itself.
    """
    formats = [endpoint.format for endpoint in _endpoints(settings)]
    return min((each.most_texts if each.in_one_pass else 1 for each in formats), default=1)


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
        **chosen.model_dump(include={"max_length", "prompt", "instruction"}),
        **load_options(chosen, settings.threads),
    )


def _endpoints(chosen: ScorerSettings) -> list[Endpoint]:
    if not chosen.url:
        return []  # imports no client
    from boundarymorph.scoring.remote import parse

    return [replace(parse(url, chosen.judge), revision=chosen.revision) for url in chosen.url]
