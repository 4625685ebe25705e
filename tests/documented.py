"""Compare the output of programs with the output in the documentation."""

import re

import pytest

NUMBER = re.compile(r"\d+\.\d+")
TOLERANCE = 0.05  # models compute slightly different scores on other processors


def check_printed(printed: str, shown: str) -> None:
    """Assert that words are equal and numbers nearly equal."""
    assert NUMBER.sub("0.0", printed).split() == NUMBER.sub("0.0", shown).split()
    numbers = [list(map(float, NUMBER.findall(text))) for text in (printed, shown)]
    assert numbers[0] == pytest.approx(numbers[1], abs=TOLERANCE)
