"""The statement under the table of `calibrate` says what its rows show."""

import pytest

from boundarymorph.calibration.learning import _standing


@pytest.mark.strangers
@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [(5, 0.770, 0.750, 0.844), (10, 0.775, 0.779, 0.853)],
            "the scorer is better than your retriever at k = 5 and worse than your retriever at k = 10; "
            "calibrated together they beat both by 7.4 points",
        ),
        (
            [(5, 0.6, 0.8, 0.83), (10, 0.6, 0.7, 0.71)],
            "the scorer is worse than your retriever; calibrated together they beat both by 1.0 to 3.0 points",
        ),
        (
            [(5, 0.9, 0.8, 0.95), (10, 0.9, 0.8, 0.85)],
            "the scorer is better than your retriever; calibrated together they beat both at k = 5 by 5.0 points",
        ),
        (
            [(5, 0.80004, 0.80001, 0.7)],
            "the scorer is as good as your retriever; calibrated together they do not beat the better of the two",
        ),
        ([], "calibrated probabilities are better than the scorer's"),
    ],
)
def test_it_agrees_with_every_row(rows: list[tuple[int, float, float, float]], said: str) -> None:
    ncg = [{"k": k, "scorer": scorer, "retriever": retriever, "calibrated": c} for k, scorer, retriever, c in rows]
    assert _standing(ncg) == said
