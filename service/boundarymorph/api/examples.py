"""Example requests to POST /select for the OpenAPI document; a test sends them."""

from __future__ import annotations

from typing import Any

INDEX = "papers"
SELECT: dict[str, Any] = {
    "index": {
        "summary": "The best 20 documents of an index",
        "value": {"query": "effects of exercise on sleep", "index": INDEX, "budget": 25, "k": 20},
    },
    "pool": {
        "summary": "A pool of your own, with the scores of its retriever",
        "value": {
            "query": "effects of exercise on sleep",
            "pool": [
                {"id": "a", "text": "Aerobic exercise improves the quality of sleep in older adults.", "score": 14.2},
                {"id": "b", "text": "Evening training and the onset of sleep in athletes.", "score": 13.9},
                {"id": "c", "text": "A survey of sleeping bags for alpine use.", "score": 11.3},
            ],
            "budget": 2,
            "k": 2,
        },
    },
    "queries": {
        "summary": "Several queries, one budget and one set",
        "value": {
            "queries": ["effects of exercise on sleep", {"query": "naps of athletes", "weight": 0.5}],
            "index": INDEX,
            "budget": 25,
            "k": 20,
        },
    },
    "vectors": {
        "summary": "Embeddings as one block of float16, two vectors of dimension 4",
        "value": {
            "query": "effects of exercise on sleep",
            "query_embedding": [1, 0, 0, 0],
            "pool": {
                "documents": [{"text": "Exercise and sleep quality."}, {"text": "Sleeping bags for alpine use."}],
                "embeddings": {"data": "ADwAAAAAAAAAAAA8AAAAAA==", "shape": [2, 4], "dtype": "float16"},
            },
            "budget": 1,
            "k": 1,
        },
    },
    "filter": {
        "summary": "Hybrid candidates that match a filter, until little is left to gain, for 4,000 tokens of context",
        "value": {
            "query": "effects of exercise on sleep",
            "index": INDEX,
            "filter": {"and": [{"year": {"gte": 2015}}, {"kind": {"in": ["trial", "review"]}}]},
            "hybrid": True,
            "budget": "auto",
            "max_tokens": 4000,
            "return_documents": True,
        },
    },
    "deadline": {
        "summary": "The best set after two seconds, or an error if the scorer fails",
        "value": {
            "query": "effects of exercise on sleep",
            "index": INDEX,
            "k": 10,
            "deadline_ms": 2000,
            "on_failure": "error",
            "explain": True,
        },
    },
}
