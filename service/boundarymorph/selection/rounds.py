"""Rounds that grow: how many documents the next trip to the scorer has, where the caller leaves that open."""

from math import isqrt

FIRST = 2  # the documents at ranks 0 and k, which no score decides


def growing(known: int, left: int, budget: int) -> int:
    """Documents of the next round, after `known` scores and with `left` of `budget` calls to go.

    A quarter of what is known, and one: few while each score changes much, more as the field settles, up to 2 + the
    square root of half of the budget. 10 calls go out as five times 2; 50 as 2, 2, 2, 3, 4, 5, 6, 7, 7, 6, 6. Where two
    rounds are left they are about equal.
    """
    size = min(max(1 + -(-known // 4), FIRST), 2 + isqrt(budget // 2))
    return size if left >= 2 * size else left if left <= size else -(-left // 2)
