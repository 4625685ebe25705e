"""Load collections of texts, queries, and judgments from BEIR folders and ir_datasets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from boundarymorph import reading
from boundarymorph.calibration.judgments import number_of
from boundarymorph.errors import InvalidInput

IR_DATASETS = "ir_datasets:"
MAX_GRADE = 65_535


@dataclass(frozen=True, slots=True)
class Collection:
    """Texts, queries, and judgments.

    Attributes:
        name: The name of the collection.
        documents: Texts by id, in the order of the source.
        queries: Texts by id, in the order of the source.
        judgments: Grades by query and document, 0 for not relevant; None if the collection has no judgments.
        complete: Whether a document without a grade is not relevant.
    """

    name: str
    documents: Mapping[str, str]
    queries: Mapping[str, str]
    judgments: Mapping[str, Mapping[str, int]] | None = None
    complete: bool = False

    def head(self, queries: int | None) -> Collection:
        """Return the collection with only the first `queries` queries; None keeps all."""
        return replace(self, queries=dict(list(self.queries.items())[:queries]))


def fingerprint(texts: Mapping[str, str]) -> str:
    """Return a hash that changes whenever an id, a text, or the order does."""
    digest = hashlib.blake2b(digest_size=16)
    for identifier, text in texts.items():
        digest.update(f"{len(identifier)} {identifier}{len(text)} {text}".encode())
    return digest.hexdigest()


def load(source: str) -> Collection:
    """Load a BEIR folder, or "ir_datasets:ID". Raises InvalidInput.

    If there are judgments, only judged queries are kept.
    """
    if source.startswith(IR_DATASETS):
        collection = _from_ir_datasets(source.removeprefix(IR_DATASETS))
    else:
        collection = _from_beir(Path(source))
    if not collection.documents or not collection.queries:
        raise InvalidInput(
            f"{source} holds {len(collection.documents)} documents and {len(collection.queries)} queries"
        )
    if collection.judgments is None:
        return collection
    found = {query for query, grades in collection.judgments.items() if any(grades.values())}
    judged = {query: text for query, text in collection.queries.items() if query in found}
    if not judged:
        raise InvalidInput(
            f"the qrels of {source} leave no query with a relevant document: none of its queries has a grade above 0; "
            "correct them, or take them away to evaluate CE-nCG alone"
        )
    if (largest := max(max(grades.values()) for grades in collection.judgments.values())) > MAX_GRADE:
        raise InvalidInput(f"the qrels of {source} hold the grade {largest}; grades go up to {MAX_GRADE}")
    return replace(collection, queries=judged)


def _from_beir(directory: Path) -> Collection:
    """Load corpus.jsonl, queries.jsonl, and any qrels.tsv or qrels/test.tsv.

    Each may end in .gz.
    """
    corpus, queries = _existing_file(directory, "corpus.jsonl"), _existing_file(directory, "queries.jsonl")
    if corpus is None or queries is None:
        raise InvalidInput(f"{directory} is no BEIR folder: it needs corpus.jsonl[.gz] and queries.jsonl[.gz]")
    qrels = _existing_file(directory, "qrels.tsv") or _existing_file(directory, "qrels/test.tsv")
    return Collection(
        directory.resolve().name,
        dict(_records(corpus)),
        dict(_records(queries)),
        _judgments(qrels) if qrels else None,
    )


def _existing_file(directory: Path, name: str) -> Path | None:
    return next((path for path in (directory / name, directory / f"{name}.gz") if path.is_file()), None)


def _records(path: Path) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    with reading.open_path(path) as stream:
        for place, _, record in reading.records(stream, str(path)):
            if not isinstance(record, dict) or "text" not in record or not {"_id", "id"} & record.keys():
                raise InvalidInput(f"{place}: not a JSON object with _id (or id) and text")
            identifier, text = record["_id"] if "_id" in record else record["id"], record["text"]
            if isinstance(identifier, bool) or not isinstance(identifier, str | int):
                raise InvalidInput(f"{place}: _id must be a string or an integer")
            identifier, text = str(identifier), "" if text is None else str(text)
            if identifier in seen:
                raise InvalidInput(f"{place}: the id {identifier!r} occurs twice")
            seen.add(identifier)
            title = record.get("title")
            yield identifier, f"{title}\n{text}" if title else text


def _judgments(path: Path) -> dict[str, dict[str, int]]:
    """Read query-id, corpus-id and score, tab-separated, with or without a header.

    TREC's four columns are accepted as well.
    """
    grades: dict[str, dict[str, int]] = {}
    with reading.open_path(path) as stream:
        for number, line in reading.lines(stream, str(path)):
            fields = line.split()
            try:
                query, document, grade = fields[0], fields[-2], int(fields[-1])
            except (IndexError, ValueError) as error:
                if number == 1 and number_of(fields[-1]) is None:
                    continue  # names of columns
                raise InvalidInput(f"{path}, line {number}: not query-id, corpus-id and a whole grade") from error
            grades.setdefault(query, {})[document] = max(0, grade)
    return grades


def _from_ir_datasets(identifier: str) -> Collection:
    try:
        library: Any = import_module("ir_datasets")
    except ImportError as error:
        raise InvalidInput(f"{IR_DATASETS}{identifier} needs a library: pip install ir_datasets") from error
    try:
        dataset = library.load(identifier)
    except KeyError as error:
        raise InvalidInput(f"ir_datasets knows no dataset {identifier!r}") from error
    judgments: dict[str, dict[str, int]] | None = None
    if dataset.has_qrels():
        judgments = {}
        for qrel in dataset.qrels_iter():
            judgments.setdefault(str(qrel.query_id), {})[str(qrel.doc_id)] = max(0, int(qrel.relevance))
    return Collection(
        identifier.replace("/", "-"),
        {str(document.doc_id): str(document.default_text()) for document in dataset.docs_iter()},
        {str(query.query_id): str(query.default_text()) for query in dataset.queries_iter()},
        judgments,
    )
