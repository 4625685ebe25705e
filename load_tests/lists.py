"""Study lists of a hundred texts in a retriever's order, as applications send to rerankers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from boundarymorph import Selector
from boundarymorph.scoring.rerankers import trust_of
from boundarymorph.settings import Settings
from boundarymorph_evaluation.metrics import quality
from boundarymorph_evaluation.problem import Question
from load_tests.sessions import first_by_score, only

LISTED, K, CALLS = 100, 10, (25, 10)


def lists(question: Question, number: int) -> Iterator[dict[str, Any]]:
    """Yield nDCG@10 by people of each order, if texts are available."""
    texts, grades = question.texts, question.grades
    if texts is None or grades is None or not (grades[:LISTED] > 0).any():
        return
    given = only(question, np.arange(min(LISTED, len(question.pool))))
    documents = list(texts.documents[:LISTED])
    by_text = dict(zip(documents, given.scores.tolist(), strict=True))

    def score(query: str, asked: Sequence[str]) -> list[float]:
        return [by_text[text] for text in asked]

    trust = trust_of(question.scorer, question.trust)
    selector = Selector(score, settings=Settings.model_validate({"scorer": {"trust": trust}}))
    orders = {
        "as given": np.arange(len(documents)),
        "all reranked": first_by_score(given.scores, len(documents)),
        "the first 25 reranked": first_by_score(given.scores, 25),
    }
    pool = [{"id": str(place), "text": text} for place, text in enumerate(documents)]
    for calls in CALLS:
        found = selector.select(texts.query, pool, budget=calls, k=K, ranked=True, relevance="human")
        orders[f"{calls} calls"] = np.array([int(document.id) for document in found.documents])
    for method, ranking in orders.items():
        yield {"method": method, "ndcg_10": quality(given, ranking, K).ndcg_10}
