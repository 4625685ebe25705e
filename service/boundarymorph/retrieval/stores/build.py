"""Opening the stores that the settings name."""

from __future__ import annotations

from importlib import import_module

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.retrieval.catalog import Catalog
from boundarymorph.retrieval.stores.table import Store
from boundarymorph.settings import Settings, StoreSettings

STORES = {  # URL scheme: module and class, and the extra with its client
    "pgvector": ("boundarymorph.retrieval.stores.pgvector:PgvectorStore", "pgvector"),
    "lancedb": ("boundarymorph.retrieval.stores.lancedb:LanceStore", "lancedb"),
    "qdrant": ("boundarymorph.retrieval.stores.qdrant:QdrantStore", "qdrant"),
    "qdrants": ("boundarymorph.retrieval.stores.qdrant:QdrantStore", "qdrant"),
    **dict.fromkeys(
        ("elasticsearch", "elasticsearchs", "opensearch", "opensearchs"),
        ("boundarymorph.retrieval.stores.elasticsearch:ElasticsearchStore", ""),
    ),
    "milvus": ("boundarymorph.retrieval.milvus.table:MilvusStore", "milvus"),
}


def build_stores(settings: Settings, base: Catalog) -> Catalog:
    """Return the indexes of a base and of all stores. Raises InvalidConfiguration."""
    if not settings.stores:
        return base
    from boundarymorph.retrieval.stores.catalog import AttachedCatalog, Catalogs

    return Catalogs(
        base,
        {
            name: AttachedCatalog(
                _opened(name, chosen), chosen.indexes, encoder=chosen.encoder, schema_seconds=chosen.schema_seconds
            )
            for name, chosen in settings.stores.items()
        },
    )


def _opened(name: str, chosen: StoreSettings) -> Store:
    scheme = chosen.url.get_secret_value().partition("://")[0]
    if scheme not in STORES:
        raise InvalidConfiguration(f"stores.{name}.url must begin with {', '.join(f'{known}://' for known in STORES)}")
    module, extra = STORES[scheme]
    path, _, attribute = module.partition(":")
    try:
        opener = getattr(import_module(path), attribute)
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(
            f"stores.{name}.url needs {error.name}: pip install 'boundarymorph[{extra}]'"
        ) from None
    store: Store = opener.connect(chosen)
    return store
