"""Study the shipped map from relevance to probability for the embedded scorer.

The map is fitted to the rankings of whole pools and of their first 100 documents, without and with calls. A document
counts by one over its rank, so that short and long sets count alike. Its expected calibration error is that of the sets
of 10 after 10, 25 and 50 calls, over ten bins of equal mass, in a table that was left out. Beside it are maps fitted to
the table itself: to all of its rankings, or to those of ten of its questions, where the error is that of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from boundarymorph.calibration.calibration import ProbabilityMap, log_odds
from boundarymorph.calibration.learning import fit
from boundarymorph.selection.methods import HUMAN_CONFIG
from boundarymorph_evaluation.problem import Question
from load_tests.sessions import only, played

Row = dict[str, Any]
CALLS, K, FIRST, ROUNDS = (0, 10, 25, 50), 10, 100, 3
CLIP, BINS, DRAWN = 1e-7, 10, 30  # documents of a ranking
JUDGED, DRAWS = 10, 20  # questions of a table that are judged, at most half of them, and random draws of them


def documents(question: Question, number: int) -> Iterator[Row]:
    """Yield documents of each ranking, and those of each set.

    They are evenly spaced by the logarithm of the rank.
    """
    if question.grades is None or not (question.grades > 0).any():
        return
    config = question.configured(HUMAN_CONFIG)
    for size, calls in product((FIRST, len(question.pool)), CALLS):
        asked = only(question, np.arange(min(size, len(question.pool))))
        ((_, session),) = played(asked.pool, asked.scores, K, (calls,), size=None, rounds=ROUNDS, config=config)
        ranking, chosen = session.ranking(), session.selection()
        drawn = (len(asked.pool) ** ((np.arange(DRAWN) + 0.5) / DRAWN)).astype(np.intp) - 1
        for part, relevance, positions in (
            ("ranking", ranking.relevance[drawn], ranking.documents[drawn]),
            ("set", chosen.relevance, chosen.documents),
        ):
            assert asked.grades is not None
            relevant = np.minimum(asked.grades[positions], 1.0)
            for value, target in zip(relevance.tolist(), relevant.tolist(), strict=True):
                yield {"N": size, "B": calls, "part": part, "relevance": value, "relevant": target}


def calibration_error(said: NDArray[np.float64], happened: NDArray[np.float64]) -> float:
    """Return the expected calibration error of (n,) probabilities over bins of equal mass."""
    bins = np.array_split(np.argsort(said, kind="stable"), BINS)
    return sum(abs(float((said[here] - happened[here]).sum())) for here in bins) / len(said)


def fitted(frame: pd.DataFrame) -> ProbabilityMap:
    """Return the map of the rankings in a frame."""
    rankings = frame[frame["part"] == "ranking"]
    return ProbabilityMap(*fit(log_odds(rankings["relevance"].to_numpy(), CLIP), rankings["relevant"].to_numpy()), CLIP)


def error_after_judging(own: pd.DataFrame, sets: pd.DataFrame) -> float:
    """Return the mean error of maps of a few questions, in the sets of the others.

    Args:
        own: The rows of a table.
        sets: The rows of its sets.
    """
    rng, questions = np.random.default_rng(0), own["query"].unique()
    count, errors = min(JUDGED, len(questions) // 2), list[float]()
    for _ in range(DRAWS):
        judged = rng.permutation(questions)[:count]
        learned, others = fitted(own[own["query"].isin(judged)]), sets[~sets["query"].isin(judged)]
        errors.append(calibration_error(learned(others["relevance"].to_numpy()), others["relevant"].to_numpy()))
    return float(np.mean(errors))


def lines(rows: Sequence[Row]) -> list[Row]:
    """Return a line for each table, with the map of the other tables, and three more.

    These are the mean, the worst, and the map of all.
    """
    frame, found = pd.DataFrame(rows), list[Row]()
    largest = frame.groupby(["table", "query"])["N"].transform("max")
    sets = frame[(frame["part"] == "set") & (frame["N"] == largest)]
    for table, own in frame.groupby("table", sort=False):
        learned = fitted(frame[frame["table"] != table])
        here, line = sets[sets["table"] == table], _of(str(table), learned)
        for name, some in (("", here[here["B"] > 0]), (", no calls", here[here["B"] == 0])):
            said, happened = some["relevance"].to_numpy(), some["relevant"].to_numpy()
            line[f"as it is{name}"] = calibration_error(said, happened)
            line[f"left out{name}"] = calibration_error(learned(said), happened)
            line[f"{JUDGED} judged{name}"] = error_after_judging(own, some)
            line[f"own map{name}"] = calibration_error(fitted(own)(said), happened)
            line[f"relevant{name}"] = float(happened.mean())
        found.append(line)
    columns = pd.DataFrame(found).drop(columns=["table", "slope", "intercept"])
    ends = _of("mean", fitted(frame)) | columns.mean().to_dict(), {"table": "worst"} | columns.max().to_dict()
    return [{name: _shown(value) for name, value in line.items()} for line in (*found, *ends)]


def _of(table: str, learned: ProbabilityMap) -> Row:
    return {"table": table, "slope": learned.slope, "intercept": learned.intercept}


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3f}"
