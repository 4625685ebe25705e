"""Run everything that can hold indexes, for tests."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from boundarymorph.retrieval.build import build_indexes
from boundarymorph.retrieval.interfaces import Catalog
from boundarymorph.settings import Settings
from tests.ports import free_port
from tests.stores import milvus, postgres
from tests.stores.elastic import cluster

ENGINES = ("local", "pgvector", "lancedb", "qdrant", "milvus", "elasticsearch", "opensearch")


@contextmanager
def engine(name: str, folder: Path) -> Iterator[str]:
    """Run an engine over a folder, and yield the URL of its empty store.

    The URL is empty for indexes on this machine.
    """
    match name:
        case "local":
            yield ""
        case "pgvector":
            with postgres.folder() as data, postgres.running(data, port := free_port()):
                with psycopg.connect(postgres.url(port), autocommit=True) as connection:
                    connection.execute("CREATE EXTENSION vector")
                yield postgres.url(port).replace("postgresql", "pgvector")
        case "milvus":
            with milvus.embedded(folder) as url:
                yield url
        case "elasticsearch" | "opensearch":
            with cluster(opensearch=name == "opensearch") as server:
                yield server.url
        case _:
            os.makedirs(folder / name)
            yield f"{name}://{folder / name}"


def indexes(url: str, directory: Path) -> Catalog:
    """Return the indexes of a service that creates indexes in a store."""
    stores = {"stores": {"store": {"url": url, "timeout_seconds": 30}}, "index_store": "store"} if url else {}
    return build_indexes(Settings.load(data_directory=directory, **stores))
