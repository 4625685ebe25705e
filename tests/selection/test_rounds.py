"""Rounds that grow with what is known."""

import pytest

from boundarymorph.selection.rounds import growing


def rounds(budget: int, known: int = 0) -> list[int]:
    sizes: list[int] = []
    while (left := budget - sum(sizes)) > 0:
        sizes.append(growing(known + sum(sizes), left, budget))
    return sizes


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (0, []),
        (1, [1]),
        (3, [2, 1]),
        (10, [2, 2, 2, 2, 2]),
        (25, [2, 2, 2, 3, 4, 5, 4, 3]),
        (50, [2, 2, 2, 3, 4, 5, 6, 7, 7, 6, 6]),
    ],
)
def test_small_at_first_and_growing(budget: int, expected: list[int]) -> None:
    assert rounds(budget) == expected


@pytest.mark.parametrize("budget", range(1, 300))
def test_every_call_goes_out_in_few_rounds_of_bounded_size(budget: int) -> None:
    sizes = rounds(budget)
    assert sum(sizes) == budget and min(sizes) >= 1
    assert max(sizes) <= 2 + (budget / 2) ** 0.5
    assert len(sizes) <= 1 + 1.7 * budget**0.5


def test_what_is_known_already_makes_the_first_round_larger() -> None:
    assert rounds(50, known=25)[0] == 7 > rounds(50)[0]
