"""A language model that searches, reads and takes notes, hop by hop, within the pool (paper app. D.2, "Agentic loop").

It needs the texts and an endpoint, so it is not among the registered contestants; `contestants` makes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx
import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import BoundaryMorphError
from boundarymorph.evaluation.methods.method import Contestant, ScoringMethod
from boundarymorph.evaluation.problem import QuestionTexts, Ranking, SelectionProblem
from boundarymorph.remote.chat import PATH, completion, json_in
from boundarymorph.remote.wire import Unusable

GROUP = "agentic"  # under --methods
HOPS = (1, 2, 4)
CHARACTERS = 1_500
NOTES = 40  # the latest ones are kept

SEARCH_PROMPT = """We are collecting as many useful documents as we can about this need:
{need}

What we know so far:
{notes}

Compose the text of the next search. It is matched by meaning, so a rich passage of a hundred words or more, full of \
the terms that useful documents would contain, finds more than a few keywords. Go where more useful documents are \
likely: further into what we have, or to a side of the need that we have not touched. Reply with the search text \
alone."""

READ_PROMPT = """We are collecting useful documents about this need:
{need}

What we know so far:
{notes}

These documents were found:
{documents}

Grade each of them from 0 (no use) to 10 (exactly what is needed), and write down what is new and useful in them, one \
short sentence each. Reply with one JSON object and nothing around it, grades first, keyed by the number in brackets:
{{"grades": {{"1": 7, "2": 0}}, "notes": ["..."]}}"""
ATTEMPTS, SECONDS, TOKENS = 4, 120.0, 4_000  # of an answer, at most
BUSY = {408, 409, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True)
class Agentic(ScoringMethod):
    """hops: searches; each shows B / hops documents that were not shown before, so that B are read in all.

    The model grades what it reads; no cross-encoder is called. Graded documents come first, best first, ties by
    similarity to the query, then the rest in retrieval order. A reply that cannot be read grades its documents 0.
    """

    hops: int
    ask: Callable[[str], str] = field(repr=False, compare=False)
    embed: Callable[[str], NDArray[np.floating]] = field(repr=False, compare=False)

    requires = frozenset({"texts"})

    def rank(self, problem: SelectionProblem) -> Ranking:
        texts = problem.question.texts
        assert texts is not None, "the experiment leaves a method out where what it requires is missing"
        pool = problem.pool
        grades: dict[int, float] = {}
        notes: list[str] = []
        budget = min(problem.budget, len(pool))
        for hop in range(self.hops):
            room = budget * (hop + 1) // self.hops - len(grades)
            if room <= 0:
                continue
            known = "\n".join(f"- {note}" for note in notes) or "(nothing yet)"
            search = problem.asked(self.ask, SEARCH_PROMPT.format(need=texts.query, notes=known)).strip() or texts.query
            similarity = pool.embeddings @ self.embed(search)
            similarity[list(grades)] = -np.inf
            shown = [int(document) for document in np.argsort(-similarity, kind="stable")[:room]]
            found, learnt = self._read(problem, texts, shown, known)
            grades |= found
            notes = (notes + learnt)[-NOTES:]
        read = sorted(grades, key=lambda document: (-grades[document], document))
        rest = np.ones(len(pool), dtype=np.bool_)
        rest[read] = False
        return np.concatenate([np.array(read, dtype=np.intp), np.flatnonzero(rest)])

    def _read(
        self, problem: SelectionProblem, texts: QuestionTexts, shown: Sequence[int], known: str
    ) -> tuple[dict[int, float], list[str]]:
        listed = "\n\n".join(
            f"[{number}] {texts.documents[document][:CHARACTERS]}" for number, document in enumerate(shown, start=1)
        )
        prompt = READ_PROMPT.format(need=texts.query, notes=known, documents=listed)
        reply = json_in(problem.asked(self.ask, prompt)) or {}
        given, notes = reply.get("grades"), reply.get("notes")
        grades = dict.fromkeys(shown, 0.0)
        for number, document in enumerate(shown, start=1):
            grade = given.get(str(number)) if isinstance(given, dict) else None
            if isinstance(grade, int | float):
                grades[document] = float(grade)
        return grades, [str(note) for note in notes] if isinstance(notes, list) else []


def contestants(
    ask: Callable[[str], str], embed: Callable[[str], NDArray[np.floating]], hops: Sequence[int] = HOPS
) -> list[Contestant]:
    """One for each number of searches. ask: prompt to answer; embed: query text to a unit vector in the space of the
    pool."""
    return [
        Contestant(
            f"{GROUP}-{count}",
            f"Agentic loop, {count} search{'es' if count > 1 else ''}",
            (Agentic(count, ask, embed),),
            f"a language model reads B documents, found in {count} search{'es' if count > 1 else ''}; no cross-encoder",
        )
        for count in hops
    ]


class ChatFailed(BoundaryMorphError):
    """The endpoint did not give a usable answer."""


class Chat:
    """Greedy answers to single prompts. base_url: as OpenAI clients take it, usually ending in /v1; pause: seconds
    before the first repetition, doubled each time."""

    def __init__(self, base_url: str, model: str, *, api_key: str | None = None, pause: float = 1.0) -> None:
        self._model, self._pause = model, pause
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(base_url=base_url.rstrip("/"), headers=headers, timeout=SECONDS)

    def __call__(self, prompt: str) -> str:
        """The answer. Raises ChatFailed; a busy or unreachable endpoint is asked again a few times first."""
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": TOKENS,
        }
        trouble = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(self._pause * 2 ** (attempt - 1))
            try:
                response = self._client.post(PATH, json=body)
            except httpx.TransportError as error:
                trouble = str(error) or type(error).__name__
                continue
            if response.status_code in BUSY:
                trouble = f"status {response.status_code}"
                continue
            if response.is_error:
                raise ChatFailed(f"the chat endpoint answered {response.status_code}: {response.text[:200]}")
            try:
                return completion(response.content).text
            except Unusable as error:
                raise ChatFailed(f"the chat endpoint's answer is no chat completion: {response.text[:200]}") from error
        raise ChatFailed(f"the chat endpoint gave no answer in {ATTEMPTS} attempts; last: {trouble}")

    def close(self) -> None:
        self._client.close()
