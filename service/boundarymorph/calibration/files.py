"""Judgements and queries in what people write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from boundarymorph.errors import InvalidInput
from boundarymorph.reading import Record, is_table
from boundarymorph.text import has_content

Judgments = Mapping[str, Mapping[str, float]]  # grades by the query's text and the document's id
ID_NAMES, QUERY_NAMES = ("_id", "id"), ("query", "text")  # as in BEIR


def asked_in(records: Iterable[Record]) -> Iterator[tuple[int, str | None, dict[str, Any]]]:
    """Yield number, id (None without one) and fields of each query; the text is in the field `query`.

    Queries are objects with `query` or `text`, and `_id` or `id`, lines ID<tab>TEXT, below a header or not, or texts.

    Queries are objects with `query` or `text`, and `_id` or `id`, lines ID<tab>TEXT, below a header or not, or texts.

    Raises InvalidInput for what has no text, and for lines with more tabs, as it is not clear which part is the query.
    """
    for place, number, value in records:
        if isinstance(value, dict):
            fields = dict(value)
            query = next((fields.pop(name) for name in QUERY_NAMES if name in fields), None)
            identifier = next((fields.pop(name) for name in ID_NAMES if name in fields), None)
        else:
            parts = [part.strip() for part in value.split("\t")]
            if len(parts) > 2:
                raise InvalidInput(f"{place} has several tabs; write ID<tab>TEXT, or a JSON object a line")
            if number == 1 and is_table(value):
                continue
            query, fields = parts[-1], {}
            identifier = parts[0] if len(parts) > 1 else None
        if query is None or (isinstance(query, str) and not has_content(query)):
            raise InvalidInput(f"{place} has no 'query' and no 'text' to read")
        yield number, None if identifier is None else str(identifier), {"query": query, **fields}


def queries_of(records: Iterable[Record]) -> dict[str, str]:
    """Texts of queries by id; a query without id is its own. Raises InvalidInput as `asked_in` does."""
    found = {}
    for _, identifier, fields in asked_in(records):
        text = fields["query"]
        if not isinstance(text, str):
            raise InvalidInput(f"the query {identifier or text!r} is not a text")
        found[text if identifier is None else identifier] = text
    return found


def judgments_of(records: Iterable[Record], queries: Mapping[str, str] | None = None) -> Judgments:
    """Grades from objects with `query`, `document` and `grade`, or from TREC qrels: query, 0, document, grade, below a
    header or not.

    Objects whose grade is null were not judged. queries: texts by id; a query that is not among them is its own text,
    but in qrels. The last judgement of a pair counts. Raises InvalidInput, naming the line.
    """
    texts = queries or {}
    found: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for place, number, value in records:
        if isinstance(value, dict):
            query, document, grade = (value.get(key) for key in ("query", "document", "grade"))
            if grade is None and isinstance(query, str):
                continue
        else:
            fields = value.split()
            if number == 1 and number_of(fields[-1]) is None:
                continue  # names of columns
            query, document, grade = (fields[0], fields[-2], number_of(fields[-1])) if len(fields) > 2 else (None,) * 3
            if query is not None and query not in texts:
                raise InvalidInput(
                    f"{place}: the text of the query {query!r} is not known; name a file of texts with --queries"
                )
        valid = isinstance(grade, int | float) and not isinstance(grade, bool) and 0 <= grade < float("inf")
        if not isinstance(query, str) or not isinstance(document, str | int) or not valid or grade is None:
            raise InvalidInput(f"{place}: not a query, a document and a grade of 0 or more")
        found[texts.get(query, query)][str(document)] = float(grade)
    return found


def number_of(text: str) -> float | None:
    """Return the number that a text is; None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None
