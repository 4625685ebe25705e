"""Finding the grade in a chat model's answer."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from boundarymorph.remote.chat import Completion, json_in
from boundarymorph.scoring.judge.wording import BEST

_GRADES = {str(grade): grade for grade in range(BEST + 1)}
_DIGITS = re.compile(r"\d+(?:[.,]\d+)*")


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
