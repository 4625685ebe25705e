"""Test the completion of sets with documents about which the session says nothing."""

from typing import Any

import numpy as np
import pytest

from boundarymorph.selection import Selection, capacity_of
from boundarymorph.selector.composition import SetLimits
from boundarymorph.selector.documents import Grouping
from boundarymorph.selector.finish import append_blank, in_given_order, unused_limits
from tests.selector.fakes import changed, task

FOUND = Selection(np.array([4, 1]), np.array([0.9, 0.2]), np.array([0.0, 0.1]), np.array([True, False]))
BLANK = np.array([0, 2, 3])


def limits(k: int | None, lengths: list[float] | None = None, most: int | None = None) -> SetLimits:
    sizes = None if lengths is None else np.array(lengths)
    return SetLimits(capacity_of(k=k, lengths=sizes, max_tokens=most), sizes, np.empty(0, dtype=np.intp), ())


@pytest.mark.parametrize(
    ("fields", "k", "expected"),
    [
        ({}, 2, [4, 1]),
        ({}, 3, [4, 1, 0]),
        ({}, 9, [4, 1, 0, 2, 3]),
        ({"min_relevance": 0.1}, 9, [4, 1]),
        ({"distinct": Grouping()}, 9, [4, 1]),
        ({"negligible": 0.01}, 9, [4, 1]),
        ({"max_tokens": 100}, None, [4, 1]),
        ({"goal": "ranking"}, 2, [4, 1, 0, 2, 3]),
    ],
)
def test_documents_without_text_fill_a_set_that_only_k_limits(
    fields: dict[str, Any], k: int | None, expected: list[int]
) -> None:
    filled = append_blank(FOUND, BLANK, changed(task(), **{"k": k, **fields}), k)
    added = len(expected) - 2
    assert filled.documents.tolist() == expected
    assert filled.relevance.tolist() == [0.9, 0.2, *[0.0] * added]
    assert filled.std.tolist() == [0.0, 0.1, *[0.0] * added]
    assert filled.scored.tolist() == [True, False, *[True] * added]


def test_given_order_puts_documents_without_text_last_and_leaves_out_excluded_ones() -> None:
    chosen = in_given_order(task(), limits(3), np.arange(6), blank=np.array([0]), excluded=np.array([2]))
    assert chosen.documents.tolist() == [1, 3, 4]
    everything = in_given_order(task(), limits(6), np.arange(6), blank=np.array([0]), excluded=np.array([2]))
    assert everything.documents.tolist() == [1, 3, 4, 5, 0]
    assert everything.relevance.tolist() == [0.5, 0.5, 0.5, 0.5, 0.0]
    assert not everything.scored.any()


def test_given_order_takes_the_first_documents_that_fit_the_tokens() -> None:
    nothing = np.empty(0, dtype=np.intp)
    lengths = [90.0, 10.0, 20.0, 20.0, 20.0]  # more of the short ones would fit
    chosen = in_given_order(task(), limits(None, lengths, 100), np.arange(5), blank=nothing, excluded=nothing)
    assert chosen.documents.tolist() == [0, 1]


def test_fields_that_need_scores_are_named_in_warnings() -> None:
    assert not unused_limits(task())
    assert [notice.slug for notice in unused_limits(changed(task(), min_relevance=0.5))] == ["min-relevance-not-used"]
