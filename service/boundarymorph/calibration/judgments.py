"""Parse queries and judgements, and choose the documents that are worth a person's time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain, zip_longest

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput
from boundarymorph.reading import Record, has_content, is_table

Judgments = Mapping[str, Mapping[str, float]]  # grades by the query's text and the document's id


def queries_of(records: Iterable[Record]) -> dict[str, str]:
    """Return the texts of queries by id; a query without an id is its own id.

    Queries are objects with `query` or `text`, and `_id` or `id`, as in BEIR; lines ID<tab>TEXT, below a header or not;
    or texts.

    Raises:
        InvalidInput: For a query without a text, and for a line with more than one tab, which is ambiguous.
    """
    found = {}
    for place, number, value in records:
        if isinstance(value, dict):
            query, identifier = value.get("query", value.get("text")), value.get("_id", value.get("id"))
        else:
            parts = [part.strip() for part in value.split("\t")]
            if len(parts) > 2:
                raise InvalidInput(f"{place} has several tabs; write ID<tab>TEXT, or a JSON object a line")
            if number == 1 and is_table(value):
                continue
            query, identifier = parts[-1], parts[0] if len(parts) > 1 else None
        if query is not None and not isinstance(query, str):
            raise InvalidInput(f"{place}: the query {identifier or query!r} is not a text; give a string")
        if query is None or not has_content(query):
            raise InvalidInput(f"{place} has no 'query' and no 'text' to read")
        found[query if identifier is None else str(identifier)] = query
    return found


def judgments_of(records: Iterable[Record], queries: Mapping[str, str] | None = None) -> Judgments:
    """Return the grades by query and document.

    Judgements are objects with `query`, `document` and `grade`, or TREC qrels: query, 0, document, grade, below a
    header or not. Objects whose grade is null were not judged. The last judgement of a pair counts.

    Args:
        records: The judgements.
        queries: Texts by id. A query that is missing is its own text, except in qrels.

    Raises:
        InvalidInput: If a judgement is malformed; the message names its line.
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
            raise InvalidInput(f"{place}: not a query, a document, and a grade of 0 or more")
        found[texts.get(query, query)][str(document)] = float(grade)
    return found


def number_of(text: str) -> float | None:
    """Return the number that a text expresses; None if it is not a number."""
    try:
        return float(text)
    except ValueError:
        return None


PAIRS = 40  # pairs of a query to judge
RANDOM = 4  # one pair in this many is random


def worth_judging(by_scorer: NDArray[np.intp], size: int, seed: int, *, count: int = PAIRS) -> NDArray[np.intp]:
    """Return ascending positions of at most `count` documents of a pool that are worth judging.

    Three quarters are the best by the scorer and the first by the retriever, equally many of each. The last quarter is
    drawn at random from the rest.

    Args:
        by_scorer: Positions, best first by the scorer.
        size: The size of the pool.
        seed: The seed of the random choice.
        count: The most documents.
    """
    most = min(count, size)
    wanted = most - most // RANDOM
    both = chain.from_iterable(zip_longest(by_scorer[:wanted].tolist(), range(wanted)))
    heads = list(dict.fromkeys(position for position in both if position is not None))[:wanted]
    rest = np.setdiff1d(np.arange(size), heads)
    chosen = np.random.default_rng(seed).choice(rest, min(most - len(heads), len(rest)), replace=False)
    return np.union1d(np.array(heads, dtype=np.intp), chosen).astype(np.intp)
