"""Build the parts of retrieval that the settings ask for, and import no others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from boundarymorph.errors import InvalidConfiguration, missing_package
from boundarymorph.inference.concurrency import descriptors
from boundarymorph.notices import Notice
from boundarymorph.settings import EncoderSettings, Settings, StoreSettings, secret

if TYPE_CHECKING:
    from boundarymorph.retrieval.encoders import Encoder
    from boundarymorph.retrieval.interfaces import Catalog
    from boundarymorph.retrieval.local.catalog import LocalCatalog
    from boundarymorph.retrieval.local.vectors import Mirror
    from boundarymorph.retrieval.remote import RemoteRetriever
    from boundarymorph.retrieval.stores.table import Store

_log = logging.getLogger(__name__)
OF_PROCESS, OF_INDEX = 40, 4  # descriptors of a process without indexes, and of an open idle index
ARTIFACTS = ".artifacts"  # folder in the data directory for indexes in stores
STORES = "boundarymorph.stores"  # the entry points of stores, named by the scheme of their URLs


def build_encoder(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> Encoder:
    """Load the dual encoder, whose `name` is valid after `check`.

    Raises:
        ModelUnavailable: If its files are missing.
        InvalidConfiguration: If the settings do not fit the model.
    """
    chosen = settings.encoder
    if chosen.url:
        from boundarymorph.remote.model import remote_options
        from boundarymorph.retrieval.encoders.remote import RemoteEncoder, parse

        return RemoteEncoder(
            [replace(parse(url), revision=chosen.revision) for url in chosen.url],
            **chosen.model_dump(include={"query_prompt", "document_prompt", "dimension"}),
            **remote_options(chosen),
        )
    from boundarymorph.retrieval.encoders.encoder import BatchingEncoder

    if chosen.model is None:
        from boundarymorph.retrieval.encoders.encoder import OnnxDualEncoder

        longest = chosen.max_length or settings.max_length
        return BatchingEncoder(OnnxDualEncoder.embedded(max_length=longest, threads=settings.threads))
    try:
        from boundarymorph.inference.transformer import load_options
        from boundarymorph.retrieval.encoders.transformer import TransformerDualEncoder
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(missing_package("encoder.model", error.name, "torch")) from None
    own = {"max_length", "pooling", "query_prompt", "document_prompt", "instruction", "dimension"}
    options = chosen.model_dump(include=own) | load_options(chosen, settings.threads)
    model = TransformerDualEncoder.load(chosen.model, **options)
    return BatchingEncoder(model, patience=chosen.timeout_seconds, on_lost=on_lost)


def encoder_is_paid(settings: EncoderSettings) -> bool:
    from boundarymorph.retrieval.encoders.remote import parse

    return any(parse(url).format.paid for url in settings.url)


def most_open(chosen: int) -> int:
    return max(1, min(chosen, (descriptors() // 2 - OF_PROCESS) // OF_INDEX))


def build_catalog(
    settings: Settings, make_mirror: Callable[[int], Mirror] | None = None, warnings: Sequence[Notice] = ()
) -> LocalCatalog:
    from boundarymorph.retrieval.local.catalog import LocalCatalog

    try:
        return LocalCatalog(
            settings.data_directory / "indexes",
            make_mirror,
            warnings=warnings,
            most_open=most_open(settings.open_indexes),
        )
    except OSError as error:
        raise InvalidConfiguration(f"data_directory: {error}") from error


def build_indexes(settings: Settings) -> Catalog:
    """Return the indexes of a service: on this machine or in `index_store`, and in other stores.

    An unreachable store raises only at the first call.

    Raises:
        InvalidConfiguration: If the settings of a store are wrong.
    """
    if not settings.stores:
        return _searched_catalog(settings)
    from boundarymorph.retrieval.stores.catalog import Catalogs, StoreCatalog

    stores = {
        name: StoreCatalog(
            _opened(name, chosen),
            chosen.indexes,
            encoder=chosen.encoder,
            prefix=chosen.prefix,
            schema_seconds=chosen.schema_seconds,
            directory=settings.data_directory / ARTIFACTS / name,
        )
        for name, chosen in settings.stores.items()
    }
    return Catalogs(stores[settings.index_store] if settings.index_store else _searched_catalog(settings), stores)


def _searched_catalog(settings: Settings) -> LocalCatalog:
    """Return the indexes on this machine, searched on `search_device`.

    If it cannot be used, they are searched on the CPU, with a warning in each answer.
    """
    device = settings.search_device
    if device == "cpu":
        return build_catalog(settings)
    try:
        from boundarymorph.retrieval.local.gpu import mirrors

        return build_catalog(settings, mirrors(int(device.partition(":")[2] or 0)))
    except InvalidConfiguration as error:
        _log.warning("search_device %s cannot be used, searching on the CPU instead: %s", device, error)
        said = f"search_device {device} cannot be used here; the CPU searched"
        return build_catalog(settings, warnings=[Notice("search-device-not-used", said)])


def build_remote_retriever(settings: Settings) -> RemoteRetriever:
    from boundarymorph.retrieval.remote import RemoteRetriever

    chosen = settings.retriever
    if not chosen.url:
        raise InvalidConfiguration("retriever.url is required: set it to the URL of the retriever")
    alone = len(chosen.url) == 1
    return RemoteRetriever(
        *chosen.url,
        api_key=secret(chosen.api_key),
        timeout=chosen.timeout_seconds if alone else min(chosen.timeout_seconds, chosen.attempt_seconds),
        connections=2 * settings.limits.requests,  # a request reads documents while it searches
        dimension=settings.limits.dimension,
        line_bytes=settings.limits.line_bytes,
    )


def _opened(name: str, chosen: StoreSettings) -> Store:
    scheme = chosen.url.get_secret_value().partition("://")[0]
    found = entry_points(group=STORES)
    if scheme not in found.names:
        known = ", ".join(f"{each}://" for each in sorted(found.names)) or "none"
        raise InvalidConfiguration(
            f"stores.{name}.url: no installed package opens {scheme}:// (those that are installed open {known}); "
            "install the extra of your store, for example 'boundarymorph[pgvector]'"
        )
    entry = found[scheme]
    try:
        opened: Store = entry.load().connect(chosen)
    except ModuleNotFoundError as error:
        extra = entry.module.rpartition(".")[2]
        raise InvalidConfiguration(missing_package(f"stores.{name}.url", error.name, extra)) from None
    return opened
