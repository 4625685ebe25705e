"""Whether a pool has an answer: the probability that at least one of its documents scores enough.

The numbers were chosen on two tables of docs/evaluation.md, cystic_fibrosis and trec_dl19_pool, and are reported on the
two others (`python -m load_tests.studies answerable`): by logistic regression where no scored document was an answer,
after 5 to 50 scores. A third of the questions had lost every document that the scorer or people accept, and a sixth all
but one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.belief import Belief
from boundarymorph.selection.pool import Pool

ENOUGH = 0.5  # the score of an answer, for requests without `min_relevance`
LEVEL, SLOPE = -2.1, 0.37  # log-odds where one answer is expected, and by the log of the expected number
# Log-odds before any score, by how far the best similarities are above the mean of the pool's.
LEVEL_BEFORE, SLOPE_BEFORE = -0.2, 4.5
BEST, FARTHEST = 10, 0.3  # similarities whose mean counts, and its largest distance: little more was seen
CERTAIN = 1e-12  # distance of an uncertain probability from 0 and 1


def after(belief: Belief) -> float:
    """The probability once something is scored. belief: about the event that each document scores enough.

    A scored document that does is proof. Otherwise, if the others were independent given the scores, and L were the sum
    of -log(1 - p), none would with probability exp(-L). But neighbours score alike, and doubt about the trend is doubt
    about all of them, so L counts only by its logarithm: the log-odds are `LEVEL` plus `SLOPE` times log L.
    """
    if (belief.mean[belief.scored] > 0.0).any():
        return 1.0
    shares = np.minimum(belief.mean[~belief.scored], 1.0 - CERTAIN)
    expected = -float(np.log1p(-shares).sum())
    return 0.0 if expected == 0.0 else _logistic(LEVEL + SLOPE * math.log(expected))


def before(pool: Pool, shares: NDArray[np.float64], usual: NDArray[np.float64]) -> float:
    """The probability before any score, when the level of the scores is unknown: by the similarities of the list.

    shares, usual: (n,) probabilities that each document scores enough, and that it scores `ENOUGH`. By how the odds of
    the likeliest document differ, those of an answer do.
    """
    if not shares.size:
        return 0.0
    similarities = np.sort(pool.embeddings @ pool.query)[::-1]
    above = float(similarities[:BEST].mean() - similarities.mean())
    rarer = _log_odds(float(shares.max())) - _log_odds(float(usual.max()))
    return _logistic(LEVEL_BEFORE + SLOPE_BEFORE * min(above, FARTHEST) + rarer)


def _log_odds(share: float) -> float:
    held = min(max(share, CERTAIN), 1.0 - CERTAIN)
    return math.log(held) - math.log1p(-held)


def _logistic(log_odds: float) -> float:
    return 1.0 / (1.0 + math.exp(-log_odds))
