"""Let BoundaryMORPH retrieve from LangChain's vector stores; README.md here says how.

python langchain_stores.py fill articles=postgresql://postgres@127.0.0.1/rag     # or papers, books, chunks
python langchain_stores.py ask "Which instruments are played with a bow?" articles
"""

import sys

from langchain_core.documents import Document
from langchain_openai import OpenAIEmbeddings
from pydantic import SecretStr
from texts import IDS, KEY, METADATA, MODEL, TEXTS, URL

from boundarymorph_client import BoundaryMorphError
from boundarymorph_client.langchain import BoundaryMorphRetriever

documents = [Document(text, id=id, metadata=of) for text, id, of in zip(TEXTS, IDS, METADATA, strict=True)]
embeddings = OpenAIEmbeddings(
    model=MODEL, openai_api_base=URL, openai_api_key=SecretStr(KEY), check_embedding_ctx_length=False
)


def fill_articles(where: str) -> None:
    """Fill a table of its own in PostgreSQL."""
    from langchain_postgres import PGEngine, PGVectorStore

    engine = PGEngine.from_connection_string(where.replace("postgresql:", "postgresql+psycopg:"))
    engine.init_vectorstore_table("articles", len(embeddings.embed_query("")))
    store = PGVectorStore.create_sync(engine, embeddings, "articles")
    store.add_documents(documents)


def fill_papers(where: str) -> None:
    """Fill the older store for PostgreSQL.

    It has all collections in one table, so a view shows one.
    """
    import psycopg
    from langchain_postgres import PGVector

    connection = where.replace("postgresql:", "postgresql+psycopg:")
    PGVector(embeddings, connection=connection, collection_name="others").add_texts(["of another collection"])
    store = PGVector(embeddings, connection=connection, collection_name="papers")
    store.add_documents(documents)
    with psycopg.connect(where) as connected:
        connected.execute(
            "CREATE VIEW papers AS SELECT id, document, cmetadata, embedding FROM langchain_pg_embedding "
            "WHERE collection_id = (SELECT uuid FROM langchain_pg_collection WHERE name = 'papers')"
        )


def fill_books(where: str) -> None:
    """Fill a table of LanceDB."""
    from langchain_lancedb import LanceDB

    store = LanceDB(embeddings, uri=where, table_name="books")
    store.add_documents(documents, ids=IDS)


def fill_chunks(where: str) -> None:
    """Fill a collection of Qdrant, at a URL or in a folder.

    One process at a time can open a folder.
    """
    from langchain_qdrant import QdrantVectorStore

    place = {"url": where} if "://" in where else {"path": where}
    store = QdrantVectorStore.from_documents(documents, embeddings, ids=IDS, collection_name="chunks", **place)
    store.client.close()


def ask(index: str, question: str) -> None:
    # retriever = store.as_retriever(search_kwargs={"k": 3})
    retriever = BoundaryMorphRetriever(index=index, budget=5, k=3, options={"filter": {"number": {"gte": 5}}})
    for document in retriever.invoke(question):
        print(f"{document.metadata['relevance_score']:.3f}", document.id, document.page_content)


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
