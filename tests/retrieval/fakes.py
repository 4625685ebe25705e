"""A cheap encoder: a text's vector is drawn from a generator that is seeded with the text."""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import ArrayLike, NDArray

from boundarymorph.retrieval.catalog import Index
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.retrieval.retriever import Search
from boundarymorph.selection import Pool


def vector_of(text: str, dimension: int = 32) -> NDArray[np.float32]:
    seed = int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
    vector = np.random.default_rng(seed).standard_normal(dimension)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def nearest(index: Index, query: ArrayLike, depth: int) -> Pool:
    """The documents of an index that are nearest to a vector."""
    return index.retrieve(Search("", depth, query)).pool


class SeededEncoder:
    """An `Encoder` that understands nothing, keeps what it encodes, and counts over 100 characters as truncated."""

    name = "seeded"
    dimension = 32

    def __init__(self) -> None:
        self.encoded: list[str] = []

    async def check(self) -> None:
        await self.encode_query("probe")

    async def encode_query(self, text: str) -> NDArray[np.float32]:
        return vector_of(text)

    async def encode_documents(self, texts: Sequence[str]) -> Embeddings:
        self.encoded += texts
        vectors = np.array([vector_of(text) for text in texts], dtype=np.float32).reshape(-1, self.dimension)
        return Embeddings(vectors, truncated=sum(len(text) > 100 for text in texts))

    async def close(self) -> None:
        pass
