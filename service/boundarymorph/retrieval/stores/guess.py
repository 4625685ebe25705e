"""Guessing which column of a table is which, by the names that frameworks give them."""

from __future__ import annotations

from collections.abc import Mapping

from boundarymorph.settings import Attached

_IDS = ("id", "_id", "langchain_id", "uuid", "pk", "doc_id")
_TEXTS = ("text", "document", "content", "page_content", "body", "chunk", "passage", "_node_content")
_METADATA = ("metadata", "cmetadata", "metadata_", "langchain_metadata", "meta")


def guessed(table: str, columns: Mapping[str, str]) -> Attached | None:
    """Return the columns of a table, given the kind of each: "vector", "json" or another; None if that is not clear."""
    vectors = [name for name, kind in columns.items() if kind == "vector"]
    ids = ("node_id", *_IDS) if "metadata_" in columns else _IDS  # LlamaIndex's "id" is a number of its own
    id = next((name for name in ids if name in columns), None)
    text = next((name for name in _TEXTS if name in columns), None)
    if len(vectors) != 1 or id is None or text is None:
        return None
    title = "title" if "title" in columns else None
    metadata = next((name for name in _METADATA if columns.get(name) == "json"), None)
    return Attached(
        table=table, id=id, text=text, vector=vectors[0], title=title, metadata=(metadata,) if metadata else None
    )
