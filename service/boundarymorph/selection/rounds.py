"""The sizes of growing rounds, used where the caller sets none."""

from math import isqrt

FIRST = 2  # the documents at ranks 0 and k, which no score decides


def growing(known: int, left: int, budget: int) -> int:
    """The size of the next round, after `known` scores and with `left` of `budget` calls remaining.

    It is one more than a quarter of the known scores, at most 2 + sqrt(budget / 2). Rounds are small while each score
    changes much. The last two are about equal. 10 calls make five rounds of 2; 50 make rounds of 2, 2, 2, 3, 4, 5, 6,
    7, 7, 6 and 6.
    """
    size = min(max(1 + -(-known // 4), FIRST), 2 + isqrt(budget // 2))
    return size if left >= 2 * size else left if left <= size else -(-left // 2)
