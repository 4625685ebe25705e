"""A document as it is stored, encoded, scored and returned."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Document:
    """One retrievable unit of text. `id` is unique within an index or a pool; `metadata` is any JSON object."""

    id: str
    text: str
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """What the encoder and the cross-encoder read."""
        return f"{self.title}\n{self.text}" if self.title else self.text
