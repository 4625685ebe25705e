"""Do peaks mean something? A language model splits documents of two peaks, and is compared with where they came from
(paper app. E.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from sklearn.metrics import adjusted_rand_score

from boundarymorph.evaluation.multimodality import Landscape, Peak
from boundarymorph.evaluation.problem import Question
from boundarymorph.remote.chat import json_in

FEWEST = 3  # members that a peak needs to be audited
SAMPLE = 8
CORE = 0.5  # of the summit's score
CHARACTERS = 1_500

PROMPT = """Someone asked: {query}

Every one of the {count} numbered texts below helps with this in its own way. Divide them into two groups, by the side \
of the question that a text answers: its subject, angle or aspect. Ignore how a text is written and how long it is. \
Each number belongs to exactly one group; both groups must have members, though not equally many.

{documents}

Reply with one JSON object and nothing around it:
{{"first": {{"about": "what unites this group, in a sentence", "numbers": [..]}}, \
"second": {{"about": "what unites this group, in a sentence", "numbers": [..]}}}}"""


@dataclass(frozen=True, slots=True)
class AuditedPair:
    """Two peaks of a query, counted from the tallest; agreement: adjusted Rand index of the model's split with the
    peaks of origin, None where the answer could not be read."""

    query: str
    peaks: tuple[int, int]
    documents: int
    agreement: float | None


def audit(question: Question, landscape: Landscape, ask: Callable[[str], str], seed: int = 0) -> list[AuditedPair]:
    """Every pair of peaks with at least three members: up to eight documents of each, shuffled, to be split in two."""
    if question.texts is None:
        return []
    rng = np.random.default_rng(seed)
    large = [number for number, peak in enumerate(landscape.peaks) if len(peak.members) >= FEWEST]
    pairs = []
    for one, other in combinations(large, 2):
        samples = [_sample(question, landscape.peaks[number], rng) for number in (one, other)]
        documents = [document for sample in samples for document in sample]
        origin = [number for number, sample in enumerate(samples) for _ in sample]
        order = rng.permutation(len(documents))
        texts = question.texts.documents
        listed = "\n\n".join(
            f"[{place}] {texts[documents[index]][:CHARACTERS]}" for place, index in enumerate(order, start=1)
        )
        answer = ask(PROMPT.format(query=question.texts.query, count=len(documents), documents=listed))
        split = _split(answer, len(documents))
        agreement = None
        if split is not None:
            agreement = float(adjusted_rand_score([origin[index] for index in order], split))
        pairs.append(AuditedPair(question.id, (one, other), len(documents), agreement))
    return pairs


def _sample(question: Question, peak: Peak, rng: np.random.Generator) -> list[int]:
    core = peak.members[question.scores[peak.members] >= CORE * question.scores[peak.summit]]
    members = core if len(core) >= FEWEST else peak.members
    return [int(document) for document in rng.permutation(members)[:SAMPLE]]


def _split(answer: str, count: int) -> list[int] | None:
    """(count,) group of each text; None unless the answer puts every text into exactly one of two groups."""
    found = json_in(answer)
    try:
        groups = [[int(number) for number in found[name]["numbers"]] for name in ("first", "second")]  # type: ignore[index]
    except (KeyError, TypeError, ValueError):
        return None
    if not all(groups) or sorted(groups[0] + groups[1]) != list(range(1, count + 1)):
        return None
    return [int(number in groups[1]) for number in range(1, count + 1)]
