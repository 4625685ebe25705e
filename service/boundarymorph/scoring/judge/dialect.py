"""Asking a chat model for a grade, and reading its answer."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal, get_args

import numpy as np
import orjson

from boundarymorph.remote.chat import PATH, Completion, completion, json_in
from boundarymorph.remote.wire import Answer, Context, Dialect, Request, TokenCounts, Unusable
from boundarymorph.scoring.judge.wording import BEST, DIGIT, OBJECT, messages
from boundarymorph.settings import JudgeSettings

_GRADES = {str(grade): grade for grade in range(BEST + 1)}
_DIGITS = re.compile(r"\d+(?:[.,]\d+)*")
Way = Literal["logprobs", "json", "digit"]
WAYS: tuple[Way, ...] = get_args(Way)
TOKEN_BYTES = 256  # of a token in an answer, with its log-probability
TEMPLATE_TOKENS = 200  # most that a chat template adds to two messages
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "grade",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"grade": {"type": "integer", "enum": list(range(BEST + 1))}},
            "required": ["grade"],
            "additionalProperties": False,
        },
    },
}


def expected_grade(completion: Completion) -> float | None:
    """Return the mean grade, weighted by token probabilities at the place of the first grade that the model wrote.

    None without log-probabilities there. Servers report only the likeliest tokens, so the probabilities of the grades
    among them are normalized to 1.
    """
    for token in completion.tokens:
        if _grade(token.get("token")) is None:
            continue
        weights: defaultdict[int, float] = defaultdict(float)
        for grade, probability in _likeliest_grades(token):
            weights[grade] += probability
        total = sum(weights.values())
        return sum(grade * weight for grade, weight in weights.items()) / total if total > 0 else None
    return None


def object_grade(text: str) -> float | None:
    """Return the grade in a JSON object, which may be fenced or between sentences."""
    grade = (json_in(text) or {}).get("grade")
    if isinstance(grade, str):
        return _grade(grade)
    whole = isinstance(grade, int | float) and not isinstance(grade, bool) and grade in _GRADES.values()
    return float(grade) if whole else None  # type: ignore[arg-type]  # `whole` implies a number


def bare_grade(text: str) -> float | None:
    """Return the grade in a text: its only number."""
    numbers = set(_DIGITS.findall(text))
    return _grade(numbers.pop()) if len(numbers) == 1 else None


def _likeliest_grades(token: Mapping[str, Any]) -> Iterator[tuple[int, float]]:
    """Yield the grades among the likeliest tokens with their probabilities, always including the one written."""
    likeliest = token.get("top_logprobs")
    entries = [entry for entry in likeliest if isinstance(entry, dict)] if isinstance(likeliest, list) else []
    if all(entry.get("token") != token.get("token") for entry in entries):
        entries.append(dict(token))
    for entry in entries:
        grade, log = _grade(entry.get("token")), entry.get("logprob")
        if grade is not None and isinstance(log, int | float) and not isinstance(log, bool) and not math.isnan(log):
            yield grade, math.exp(min(0.0, log))


def _grade(token: object) -> int | None:
    return _GRADES.get(token.strip()) if isinstance(token, str) else None


class Ungraded(Unusable):
    """The model answered without a grade. refused: whether it, or the server, declined; usage, served: see `Answer`."""

    def __init__(self, message: str, *, refused: bool, usage: TokenCounts | None, served: str | None) -> None:
        super().__init__(message)
        self.refused, self.usage, self.served = refused, usage, served


class OpenAI(Dialect):
    """Chat completions of OpenAI's API and of compatible servers, one text per request.

    Ways to ask for a grade: `logprobs`, a digit with the probabilities of the others; `json`, an object that follows a
    schema; `digit`, a digit alone.
    """

    name, path, most_texts = "openai", PATH, 1
    home, prefix = "https://api.openai.com/v1", "/v1"

    def __init__(
        self,
        chosen: JudgeSettings | None = None,
        way: Way = "logprobs",
        *,
        at_home: bool = False,
        strict: bool = False,
    ) -> None:
        """at_home: whether the server is `home`; strict: whether a grade without its probability is an error, for the
        way `logprobs`."""
        self._chosen, self.way = chosen or JudgeSettings(), way
        self._strict = strict
        self.answer_bytes = TOKEN_BYTES * self._chosen.answer_tokens * (1 + self._chosen.top_logprobs)
        self._token_field = self._chosen.token_field or ("max_completion_tokens" if at_home else "max_tokens")

    @property
    def fingerprint(self) -> str:
        """A hash of all that a grade depends on besides the model, the query and the text: wording, way, fields."""
        asked = self.request("", Context(), [""], 0.0).body | {"text_characters": self._chosen.text_characters}
        return blake2b(orjson.dumps(asked, option=orjson.OPT_SORT_KEYS), digest_size=6).hexdigest()

    def request(self, model: str, context: Context, texts: Sequence[str], seconds: float) -> Request:
        (text,) = texts
        chosen = self._chosen
        shown = text[: chosen.text_characters]
        form = OBJECT if self.way == "json" else DIGIT
        body: dict[str, object] = {
            "model": model,
            "messages": messages(context, shown, form, chosen.instruction),
            "temperature": 0,
            "seed": chosen.seed,
            self._token_field: chosen.answer_tokens,
        }
        if self.way == "logprobs":
            body |= {"logprobs": True, "top_logprobs": chosen.top_logprobs}
        if self.way == "json":
            body["response_format"] = SCHEMA
        body |= chosen.body
        return Request(
            self.path, {key: body[key] for key in body if key not in chosen.omit}, int(len(shown) < len(text))
        )

    def most_usage(self, sent: bytes) -> TokenCounts:
        """Return the most tokens that a request may take: no tokenizer makes more than one of a byte."""
        return TokenCounts(len(sent) + TEMPLATE_TOKENS, self._chosen.answer_tokens)

    def read(self, body: bytes, count: int) -> Answer:
        """Read the relevance of one text. Raises Ungraded if the model gave no grade."""
        found = completion(body)

        def ungraded(why: str, *, refused: bool = False) -> Ungraded:
            return Ungraded(why, refused=refused, usage=found.usage, served=found.model)

        if found.refusal is not None:
            raise ungraded(f"it refused: {found.refusal[:200]}", refused=True)
        grade = object_grade(found.text) if self.way == "json" else bare_grade(found.text)
        if grade is None:
            raise ungraded(f"there is no grade in {found.text[:60]!r}", refused=not found.text)
        if self.way == "logprobs":
            expected = expected_grade(found)
            if expected is None and self._strict:
                raise ungraded("the log-probability of its grade is missing")
            grade = grade if expected is None else expected
        return Answer(np.array([grade / BEST]), served=found.model, usage=found.usage)
