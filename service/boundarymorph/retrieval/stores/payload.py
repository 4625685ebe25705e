"""Documents of stores that keep them as JSON."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from boundarymorph.retrieval.document import Document
from boundarymorph.settings import Attached


class Payload:
    """Where text, title and metadata are in a JSON object.

    hidden: names of fields that are nothing of these; whole: whether a single field named as metadata has all of them.
    """

    def __init__(self, attached: Attached, hidden: Collection[str], *, whole: bool = True) -> None:
        self._text, self._title = attached.text, attached.title
        given = attached.metadata
        self._whole = given[0] if whole and given is not None and len(given) == 1 else None
        self._given, self._taken = given, {attached.text, attached.title, *hidden}

    def path(self, path: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return where a field of the metadata is; None if there is none of that name."""
        if self._whole is not None:
            return (self._whole, *path)
        return path if self.is_metadata(path[0]) else None

    def document(self, id: str, payload: Mapping[str, Any]) -> Document:
        """Return a document, with an empty text if the object has none."""
        text, title = payload.get(self._text), payload.get(self._title) if self._title else None
        if self._whole is not None:
            whole = payload.get(self._whole)
            metadata = whole if isinstance(whole, dict) else {}
        else:
            metadata = {name: value for name, value in payload.items() if self.is_metadata(name)}
        return Document(id, text if isinstance(text, str) else "", title, metadata)

    def is_metadata(self, name: str) -> bool:
        """Whether a field is one of the metadata."""
        return name not in self._taken if self._given is None else name in self._given
