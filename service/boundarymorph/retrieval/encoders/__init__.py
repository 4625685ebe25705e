"""Define encoders, which map queries and documents to unit vectors, and models' recipes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidConfiguration

Pooling: TypeAlias = Literal["cls", "mean", "last"]
WEB_SEARCH = "Given a web search query, retrieve relevant passages that answer the query"
_INSTRUCTED = re.compile(r"Instruct: .*\nQuery:")


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Vectors of n texts.

    Attributes:
        vectors: (n, d) float32 unit rows.
        truncated: Number of truncated texts.
        encoder: The full name of another process's encoder.
    """

    vectors: NDArray[np.float32]
    truncated: int = 0
    encoder: str | None = None


class Encoder(Protocol):
    """Maps queries and documents to one space.

    A text's embedding does not depend on the other texts of a call.
    """

    @property
    def name(self) -> str:
        """Model and precision; an index answers text queries only with the encoder that built it."""

    @property
    def dimension(self) -> int:
        """d, the length of the vectors."""

    async def check(self) -> None:
        """Warm up and encode a probe, after which name and dimension are known.

        Raises as `encode_query` does.
        """

    async def encode_query(self, text: str, caller: str = "") -> NDArray[np.float32]:
        """Return the (d,) unit vector of a query.

        Raises Overloaded, EncoderUnavailable or EncoderFailed.
        """

    async def encode_documents(self, texts: Sequence[str], caller: str = "") -> Embeddings:
        """Return (n, d) unit rows for n documents. Raises as `encode_query` does."""

    async def close(self) -> None:
        """Release threads and connections; later calls fail."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a family of models reads texts.

    Attributes:
        pooling: How the last states of a text become one.
        query: The prefix of queries.
        document: The prefix of documents.
        dense: Folders of layers after the pooling.
    """

    pooling: Pooling = "mean"
    query: str = ""
    document: str = ""
    dense: tuple[str, ...] = ()
    max_length: int | None = None
    lower_case: bool = False

    def instructed(self, instruction: str) -> Recipe:
        """Return a copy with another task for queries.

        Raises InvalidConfiguration if its prompt has none.
        """
        if not _INSTRUCTED.match(self.query):
            raise InvalidConfiguration("the queries of this encoder take no instruction: give a query_prompt instead")
        return replace(self, query=_INSTRUCTED.sub(lambda _: f"Instruct: {instruction}\nQuery:", self.query, count=1))


_INSTRUCTION = f"Instruct: {WEB_SEARCH}\nQuery:"
# The first whose pattern is found in the model's lowercase name.
_FAMILIES: tuple[tuple[str, Recipe], ...] = (
    (r"qwen3-embedding", Recipe("last", _INSTRUCTION)),
    (r"\be5-.*mistral|gte-qwen", Recipe("last", f"{_INSTRUCTION} ")),
    (r"\be5-.*instruct", Recipe("mean", f"{_INSTRUCTION} ")),
    (r"\be5-", Recipe("mean", "query: ", "passage: ")),
    (r"bge-(small|base|large)-en", Recipe("cls", "Represent this sentence for searching relevant passages: ")),
    (r"\bbge-", Recipe("cls")),
    (r"gte-(modernbert|multilingual|.*v1\.5)", Recipe("cls")),
)


def known_recipe(name: str) -> Recipe:
    """Return the recipe of a model's family by its name or folder.

    For an unknown family it is mean pooling without prompts.
    """
    lowered = name.lower()
    return next((recipe for pattern, recipe in _FAMILIES if re.search(pattern, lowered)), Recipe())
