"""Grades of a language model, kept in a file as they come, since they cost money."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import orjson

from boundarymorph.errors import InvalidInput, StorageUnavailable
from boundarymorph.text import records_of

Grades = Mapping[str, Mapping[str, float]]


class GradedPairs:
    """A file of NDJSON with query, document, grade and model, which `--judgments` reads, too.

    Pairs that it has are not asked for again; a line that a crash has cut is cut off. One grade is null where the
    model gave none.
    """

    def __init__(self, path: Path, model: str) -> None:
        """Create the file unless it exists. Raises InvalidInput for a file of something else, StorageUnavailable."""
        self.path, self._model = path, model
        self._found: defaultdict[str, dict[str, float | None]] = defaultdict(dict)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b", buffering=0)
        except OSError as error:
            raise StorageUnavailable(f"grades cannot be kept in {path}: {error}") from error
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise

    def _read(self) -> None:
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        for place, _, record in records_of(content[:whole].splitlines(), str(self.path)):
            if not isinstance(record, dict) or not {"query", "document", "grade", "model"} <= record.keys():
                raise InvalidInput(f"{place}: no grade of a language model; choose another file with --out")
            if record["model"] == self._model:
                self._found[record["query"]][record["document"]] = record["grade"]
        self._file.truncate(whole)

    def has(self, query: str, document: str) -> bool:
        """Whether the model has been asked for this pair."""
        return document in self._found[query]

    def keep(self, query: str, grades: Mapping[str, float | None]) -> None:
        """Append the grades of documents. Raises StorageUnavailable."""
        rows = [
            {"query": query, "document": document, "grade": grade, "model": self._model}
            for document, grade in grades.items()
        ]
        try:
            self._file.write(b"".join(orjson.dumps(row) + b"\n" for row in rows))
        except OSError as error:
            raise StorageUnavailable(f"grades cannot be kept in {self.path}: {error}") from error
        self._found[query] |= grades

    @property
    def grades(self) -> Grades:
        """All grades of the model by query and document."""
        return {
            query: {document: grade for document, grade in of_query.items() if grade is not None}
            for query, of_query in self._found.items()
        }

    def __len__(self) -> int:
        return sum(map(len, self._found.values()))

    def close(self) -> None:
        self._file.close()
