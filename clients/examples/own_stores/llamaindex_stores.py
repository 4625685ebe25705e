"""Let BoundaryMORPH retrieve from LlamaIndex's vector stores; README.md here says how.

python llamaindex_stores.py fill nodes=http://127.0.0.1:6333                     # or pages, leaves
python llamaindex_stores.py ask "Which instruments are played with a bow?" nodes
"""

import os
import sys

from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import FilterOperator, MetadataFilter, MetadataFilters
from llama_index.core.vector_stores.types import BasePydanticVectorStore
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from texts import IDS, KEY, METADATA, MODEL, TEXTS, URL

from boundarymorph_client import BoundaryMorphError
from boundarymorph_client.llamaindex import BoundaryMorphRetriever


def fill(store: BasePydanticVectorStore) -> VectorStoreIndex:
    nodes = [TextNode(id_=id, text=text, metadata=of) for id, text, of in zip(IDS, TEXTS, METADATA, strict=True)]
    embeddings = OpenAILikeEmbedding(model_name=MODEL, api_base=URL, api_key=KEY)
    storage = StorageContext.from_defaults(vector_store=store)
    return VectorStoreIndex(nodes, storage_context=storage, embed_model=embeddings)


def fill_nodes(where: str) -> None:
    """Fill a collection of Qdrant, at a URL or in a folder.

    One process at a time can open a folder.
    """
    from llama_index.vector_stores.qdrant import QdrantVectorStore
    from qdrant_client import QdrantClient

    client = QdrantClient(url=where) if "://" in where else QdrantClient(path=where)
    fill(QdrantVectorStore("nodes", client=client))
    client.close()


def fill_pages(where: str) -> None:
    """Fill a table of LanceDB."""
    from llama_index.vector_stores.lancedb import LanceDBVectorStore

    fill(LanceDBVectorStore(uri=where, table_name="pages"))


def fill_leaves(where: str) -> None:
    """Fill a table of PostgreSQL, whose name begins with data_."""
    from llama_index.vector_stores.postgres import PGVectorStore

    fill(
        PGVectorStore.from_params(
            connection_string=where,
            async_connection_string=where.replace("postgresql:", "postgresql+asyncpg:"),
            table_name="leaves",
            embed_dim=int(os.environ.get("EMBEDDINGS_DIMENSION", "1536")),
        )
    )


def ask(index: str, question: str) -> None:
    filters = MetadataFilters(filters=[MetadataFilter(key="number", operator=FilterOperator.GTE, value=5)])
    # retriever = fill(...).as_retriever(similarity_top_k=3, filters=filters)
    retriever = BoundaryMorphRetriever(index, budget=5, similarity_top_k=3, filters=filters)
    for found in retriever.retrieve(question):
        print(f"{found.score:.3f}", found.node_id, found.node.get_content())


if __name__ == "__main__":
    command, *given = sys.argv[1:]
    if command == "fill":
        for name, where in (each.split("=", 1) for each in given):
            globals()[f"fill_{name}"](where)
    else:
        try:
            for name in given[1:]:
                ask(name, given[0])
        except BoundaryMorphError as error:
            sys.exit(f"error: {error}")
