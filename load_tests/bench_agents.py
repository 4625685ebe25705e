"""Run a research loop with and without a reranker: `make bench NAME=agents`.

python -m load_tests.bench_agents --data FOLDER [--table TABLE.npz] [--encode] [--every 10] [--turns 3]

The agent is a script. It asks its question, reads the answer, and stops once it has read NEEDED relevant documents, or
all if there are fewer. Else it asks again, three times in all, without the documents that it has read: the question
with words of the first document, then the rarer half of the question's words. It recognises a relevant document by the
judgements of a BEIR folder. Candidates are the first POOL documents by the embedded encoder, with vectors of a table or
made here, or by BM25. Scores are the embedded cross-encoder's; a table brings its own scores. A token is four bytes of
the documents that the agent reads. Selections have an hour each, so that a slow machine finds the same.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.library import Selector
from boundarymorph.retrieval.encoders.encoder import OnnxDualEncoder
from boundarymorph.retrieval.words import PoolWords
from boundarymorph.scoring.scorer import OnnxCrossEncoder
from boundarymorph.settings import Settings
from boundarymorph_evaluation import datasets, tables
from load_tests import report

NEEDED, TURNS, POOL, RERANKED, ADDED, BYTES_A_TOKEN, HOUR = 5, 3, 500, 100, 5, 4, 3600.0
Vectors = NDArray[np.floating[Any]]
Score = Callable[[str, Sequence[str]], NDArray[np.float64]]
Known = dict[tuple[str, str], float]  # scores by query and text
Answer = tuple[list[int], int]  # documents, best first, by their places in the collection, and calls of the scorer


@dataclass
class Search:
    """A collection and its models.

    `vectors` are of the documents, None to retrieve by BM25.
    """

    texts: Sequence[str]
    score: Score
    encode: Callable[[str], Vectors]
    vectors: Vectors | None = None
    turns: int = TURNS

    def __post_init__(self) -> None:
        self._words = PoolWords.from_texts(self.texts)
        settings = {"scorer": {"trust": "weak"}, "deadline_seconds": HOUR, "limits": {"deadline_seconds": HOUR}}
        self._selector = Selector(self.score, settings=Settings.model_validate(settings), on_failure="error")
        self.frequencies = Counter(word for text in self.texts for word in set(words_of(text)))

    def retrieved(self, query: str, read: set[int]) -> list[int]:
        """Return the first POOL documents that were not read."""
        values = self._words.bm25(query) if self.vectors is None else self.vectors @ self.encode(query)
        order = np.argsort(-values, kind="stable").tolist()
        return [place for place in order if place not in read][:POOL]

    def reranked(self, query: str, read: set[int], k: int) -> Answer:
        """Return the best k of the first RERANKED documents, all of which are scored."""
        places = self.retrieved(query, read)[:RERANKED]
        scores = self.score(query, [self.texts[place] for place in places])
        best = np.argsort(-scores, kind="stable")[:k]
        return [places[at] for at in best.tolist()], len(places)

    def selected(self, query: str, read: set[int], k: int, budget: int | str) -> Answer:
        """Return k documents as the service selects them."""
        places, vectors = self.retrieved(query, read), self.vectors
        documents = [{"id": str(place), "text": self.texts[place]} for place in places]
        known = {} if vectors is None else {"embeddings": vectors[places], "query_embedding": self.encode(query)}
        answer = self._selector.select(query, documents, k=k, budget=budget, **known)
        return [int(document.id) for document in answer.documents], answer.usage.cross_encoder_calls


Tool = Callable[[Search, str, set[int]], Answer]
TOOLS: Mapping[str, Tool] = {
    "k = 10, B = 0": lambda search, query, read: search.selected(query, read, 10, 0),
    "k = 10, B = 25": lambda search, query, read: search.selected(query, read, 10, 25),
    "k = 10, B = auto": lambda search, query, read: search.selected(query, read, 10, "auto"),
    "k = 40, no reranker": lambda search, query, read: (search.retrieved(query, read)[:40], 0),
    "k = 10 of 100 reranked": lambda search, query, read: search.reranked(query, read, 10),
}


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z0-9-]{3,}", text.lower())


def asked(turn: int, question: str, first: str, search: Search) -> str:
    """Return the query of a turn. `first` is the first text that the turn before read."""
    if turn == 0:
        return question
    rarity = {word: log(len(search.texts) / (1 + count)) for word, count in search.frequencies.items()}
    own = list(dict.fromkeys(words_of(question)))
    if turn == 1:
        counts = Counter(word for word in words_of(first) if word not in own)
        return " ".join([question, *sorted(counts, key=lambda word: (-counts[word] * rarity[word], word))[:ADDED]])
    kept = sorted(own, key=lambda word: -rarity.get(word, log(len(search.texts))))[: -(-len(own) // 2)]
    return " ".join(word for word in own if word in kept) or question


def researched(search: Search, tool: Tool, question: str, relevant: set[int]) -> dict[str, int]:
    """Run the loop for a question, and return its costs and findings."""
    needed, read = min(NEEDED, len(relevant)), list[int]()
    turns, calls, found, first = 0, 0, 0, ""
    while turns < search.turns and found < needed:
        documents, made = tool(search, asked(turns, question, first, search), set(read))
        turns, calls, read = turns + 1, calls + made, read + documents
        first = search.texts[documents[0]] if documents else ""
        found = min(needed, len(relevant.intersection(read)))
    tokens = sum(len(search.texts[place].encode()) for place in read) // BYTES_A_TOKEN
    return {"needed": needed, "found": found, "turns": turns, "calls": calls, "documents": len(read), "tokens": tokens}


def played(search: Search, questions: Mapping[str, set[int]], name: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each tool.

    `questions` has the positions of the relevant documents, by question.
    """
    for tool_name, tool in TOOLS.items():
        loops = [researched(search, tool, question, relevant) for question, relevant in questions.items()]
        total = {key: sum(loop[key] for loop in loops) for key in loops[0]}
        yield {
            "collection": name,
            "tool": tool_name,
            "questions": len(loops),
            "evidence_found_percent": 100 * total["found"] / total["needed"],
            **{key: total[key] / len(loops) for key in ("turns", "calls", "tokens")},
            "found_per_turn": total["found"] / total["turns"],
            "found_per_100_calls": 100 * total["found"] / total["calls"] if total["calls"] else "",
            "found_per_10000_tokens": 10_000 * total["found"] / total["tokens"],
        }


def remembering(score: Score, known: Known) -> Score:
    """Score each pair once. `known` has scores that need not be computed."""

    def scored(query: str, texts: Sequence[str]) -> NDArray[np.float64]:
        new = [text for text in dict.fromkeys(texts) if (query, text) not in known]
        if new:
            known.update(zip(((query, text) for text in new), score(query, new).tolist(), strict=True))
        return np.array([known[query, text] for text in texts])

    return scored


def known_by(table: tables.ScoreTable, queries: Mapping[str, str], texts: Sequence[str]) -> Known:
    """Return the scores of a table.

    `queries` are by id, and `texts` those of its documents.
    """
    known = Known()
    asked = table.arrays["query_ids"].astype(str).tolist()
    for query, pool, scores in zip(asked, table.arrays["pool"], table.arrays["score"], strict=True):
        if query in queries:
            known |= {(queries[query], texts[row]): float(score) for row, score in zip(pool, scores, strict=True)}
    return known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a BEIR folder with judgements")
    parser.add_argument("--table", type=Path, help="table with vectors and scores, whose questions are asked")
    parser.add_argument("--encode", action="store_true", help="encode the documents, to retrieve by their vectors")
    parser.add_argument("--every", type=int, default=1, help="use one question in this many")
    parser.add_argument("--turns", type=int, default=TURNS, help="the most calls of the tool")
    parser.add_argument("--max-length", type=int, default=512, help="tokens of a pair that the scorer reads")
    given = parser.parse_args()
    collection = datasets.load(str(given.data))
    table = None if given.table is None else tables.read(given.table)
    ids, queries = list(collection.documents), list(collection.queries)
    if table is not None:
        ids, there = (table.arrays[name].astype(str).tolist() for name in ("doc_ids", "query_ids"))
        queries = [query for query in queries if query in there]
    texts, chosen = [collection.documents[id] for id in ids], queries[:: given.every]
    encoder = OnnxDualEncoder.embedded(threads=1)
    scorer = OnnxCrossEncoder.embedded(max_length=given.max_length, threads=1)
    vectors: Vectors | None = encoder.run(encoder.tokenize_documents(texts)) if given.encode else None
    vectors = vectors if table is None else table.arrays["doc_emb"].astype(np.float64)
    known = Known() if table is None else known_by(table, {id: collection.queries[id] for id in chosen}, texts)
    search = Search(
        texts,
        remembering(lambda query, some: scorer.run(scorer.tokenize(query, some)), known),
        lru_cache(None)(lambda query: encoder.run([encoder.tokenize_query(query)])[0]),
        vectors,
        given.turns,
    )
    places, judgments = {id: place for place, id in enumerate(ids)}, collection.judgments or {}
    questions = {
        collection.queries[query]: {places[id] for id, grade in judgments[query].items() if grade and id in places}
        for query in chosen
    }
    measured = report.Rows(f"agents-{collection.name}")
    for row in played(search, questions, collection.name):
        measured.append(row)
    measured.write()


if __name__ == "__main__":
    report.run(main)
