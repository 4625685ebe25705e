"""The work for a text grows at most linearly with its length, whatever it consists of."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from boundarymorph import reading
from boundarymorph.retrieval import words
from boundarymorph.retrieval.lexical_vectors import lexical_vectors
from tests.texts import KINDS

pytestmark = pytest.mark.strangers

SMALL = 25_000  # characters of the first of three sizes, of which each is twice the one before it
TOO_SMALL = 0.002  # seconds: less cannot be told from noise
RUNS = 2
SLACK = 2  # times as much CPU time as is linear


def words_of_a_pool(text: str) -> object:
    return words.PoolWords.of([text, "the sea"]).index_terms()


def vectors_of_a_pool(text: str) -> object:
    return lexical_vectors(words.PoolWords.of([text, "the sea", "a tram"]), "sea")


ENTRIES: dict[str, Callable[[str], object]] = {
    "words": words.words,
    "words of a query": lambda text: words.hashes(text),
    "words of a pool": words_of_a_pool,
    "vectors of a pool": vectors_of_a_pool,
    "what can be read": lambda text: (reading.has_content(text), reading.composed(text)),
}


def seconds(call: Callable[[str], object], text: str) -> float:
    """Return the least CPU time that a call takes."""
    least = float("inf")
    for _ in range(RUNS):
        begun = time.thread_time()
        call(text)
        least = min(least, time.thread_time() - begun)
    return least


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("entry", ENTRIES)
def test_the_work_is_linear(entry: str, kind: str) -> None:
    spent = [seconds(ENTRIES[entry], KINDS[kind](SMALL * times)) for times in (1, 2, 4)]
    for times, this in zip((2, 4), spent[1:], strict=True):
        assert this <= SLACK * times * max(spent[0], TOO_SMALL), f"{entry}, {kind}: {spent}"


@pytest.mark.parametrize("kind", KINDS)
def test_texts_have_the_length_that_is_asked_for(kind: str) -> None:
    assert {len(KINDS[kind](count)) for count in (100, 101, 102)} == {100, 101, 102}
