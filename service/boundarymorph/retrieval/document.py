"""A document, as it is stored, encoded, scored and returned."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Document:
    """One retrievable unit of text. `id` is unique within an index or a pool; `metadata` is any JSON object."""

    id: str
    text: str
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """The text that the encoder and the cross-encoder read."""
        return f"{self.title}\n{self.text}" if self.title else self.text


def fingerprint(document: Document, embedding: NDArray[np.floating] | None = None) -> bytes:
    """Return 16 bytes that identify a document and any embedding given with it. Raises InvalidInput."""
    content = [document.title, document.text, dict(document.metadata)]
    state = hashlib.blake2b(canonical(document, content), digest_size=16)
    if embedding is not None:
        state.update(np.asarray(embedding, dtype="<f4").tobytes())
    return state.digest()


def canonical(document: Document, value: object) -> bytes:
    """Encode part of a document as JSON with sorted keys. Raises InvalidInput if that is not possible."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError as error:
        raise InvalidInput(f"the document {document.id!r} cannot be written as JSON: {error}") from error
