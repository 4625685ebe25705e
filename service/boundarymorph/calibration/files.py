"""Reading judgements and queries from lines of text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from boundarymorph.errors import InvalidInput
from boundarymorph.text import has_content, records_of

Judgments = Mapping[str, Mapping[str, float]]  # grades by the query's text and the document's id


def queries_of(lines: Iterable[bytes], name: str) -> dict[str, str]:
    """Texts of queries by id: of NDJSON objects with `_id` or `id`, and `text` or `query`, of lines ID<tab>TEXT, or of
    bare texts, which are their own ids. name: of the source, for messages. Raises InvalidInput."""
    found = {}
    for place, _, record in records_of(lines, name):
        if isinstance(record, dict):
            text = record.get("text", record.get("query"))
            identifier = record.get("_id", record.get("id", text))
        else:
            head, tab, tail = record.partition("\t")
            identifier, text = head, tail if tab else head
        if not isinstance(text, str) or not has_content(text):
            raise InvalidInput(f"{place}: there is no text of a query")
        found[str(identifier)] = text
    return found


def judgments_of(lines: Iterable[bytes], name: str, queries: Mapping[str, str] | None = None) -> Judgments:
    """Grades from NDJSON objects with `query`, `document` and `grade`, or from TREC qrels: query, 0, document, grade.

    Objects whose grade is null were not judged. queries: texts by id; a query that is not among them is its own text,
    but in qrels. The last judgement of a pair counts. Raises InvalidInput, naming the line.
    """
    texts = queries or {}
    found: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for place, _, record in records_of(lines, name):
        if isinstance(record, dict):
            query, document, grade = (record.get(key) for key in ("query", "document", "grade"))
            if grade is None and isinstance(query, str):
                continue
        else:
            fields = record.split()
            query, document, grade = (fields[0], fields[-2], _number(fields[-1])) if len(fields) > 2 else (None,) * 3
            if query is not None and query not in texts:
                raise InvalidInput(
                    f"{place}: the text of the query {query!r} is not known; name a file of texts with --queries"
                )
        valid = isinstance(grade, int | float) and not isinstance(grade, bool) and 0 <= grade < float("inf")
        if not isinstance(query, str) or not isinstance(document, str | int) or not valid or grade is None:
            raise InvalidInput(f"{place}: not a query, a document and a grade of 0 or more")
        found[texts.get(query, query)][str(document)] = float(grade)
    return found


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
