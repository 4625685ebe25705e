"""Test inputs of the first users of the library."""

import copy
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from boundarymorph import InvalidScores, Selector, extend
from boundarymorph.errors import InvalidInput
from boundarymorph.settings import Settings
from tests.fakes.scorer import score_of

pytestmark = pytest.mark.strangers

QUERY = "by the sea"
TEXTS = [f"text {number} by the sea" for number in range(20)]


def scores(query: str, texts: Sequence[str]) -> list[float]:
    return [score_of(query, text) for text in texts]


class Table:
    """A table like those of `pandas`, `polars`, and `pyarrow`, which is read by column names."""

    columns = ("text", "id", "score")

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)


@pytest.mark.parametrize("select", [Selector(scores).select, partial(extend, scores=[])], ids=["select", "extend"])
@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (Table(), r"a Table is read by the names of its columns; give df\[\"text\"\]\.tolist\(\)"),
        ({"id": "1", "text": "one"}, "a dict is read by its keys; give a list"),
        ("one text", "give a list of texts, not a single one"),
        (b"one text", "give a list of texts, not a single one"),
        (None, "give a list of texts, not a NoneType"),
        (7, "give a list of texts, not a int"),
        ([["one", "two"]], r"texts\[0\] is of the type list"),
        ([*TEXTS, None], r"texts\[20\] is of the type NoneType"),
        ([float("nan")], r"texts\[0\] is of the type float"),
    ],
)
def test_wrong_kinds_of_documents_are_refused(select: Callable[..., Any], texts: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        select(QUERY, texts)


@pytest.mark.parametrize("kind", [tuple, np.array, iter, lambda texts: dict(enumerate(texts)).values()])
def test_select_takes_any_iterable_of_texts(kind: Callable[[list[str]], Any]) -> None:
    assert len(Selector(scores).select(QUERY, kind(TEXTS), budget=2, k=2).documents) == 2
    assert len(extend(QUERY, kind(TEXTS), [0.5], k=2).documents) == 2


@pytest.mark.parametrize("rounded", [0, 1, 1 + 2e-16, float(np.float32(1.0000001)), 1 + 1e-6, -1e-6])
def test_scores_out_of_range_by_rounding_are_clipped(rounded: float) -> None:
    found = Selector(lambda query, texts: [rounded] * len(texts)).select(QUERY, TEXTS, budget=20, k=2, spend="order")
    assert {document.cross_encoder_score for document in found.documents} == {float(round(rounded))}
    assert extend(QUERY, TEXTS, [rounded], k=1, relevance="scorer").status == "complete"


@pytest.mark.parametrize("beyond", [1 + 2e-6, 1.0001, -2e-6])
def test_scores_out_of_range_beyond_rounding_are_refused(beyond: float) -> None:
    with pytest.raises(InvalidScores, match=f"the score of text 0 is {beyond!r}, not in"):
        Selector(lambda query, texts: [beyond] * len(texts)).select(QUERY, TEXTS, budget=2, k=2)


@pytest.mark.parametrize(
    ("known", "says"),
    [
        ({20: 0.5}, "one for position 20; positions are 0 to 19"),
        ({-1: 0.5}, "one for position -1"),
        ({"0": 0.5}, "one for position '0'"),
        ({True: 0.5}, "one for position True"),
        ({0: 1.5}, "not in"),
        ({0: None}, "NaN means"),
        ([1.5], "not in"),
        ([float("nan")], "nan"),
        ([[0.5]], r"of the shape \(1, 1\)"),
        ([0.5] * 21, "for 20 texts"),
        (0.5, "of the shape"),
    ],
)
def test_invalid_known_scores_are_refused(known: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        extend(QUERY, TEXTS, known)


COMPRESSION = ("gzip compresses", "cat", "xz compresses", "dog")


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 3, 2), (3, 2, 1, 0), (2, 3, 0, 1)], ids=str)
def test_extend_ignores_the_order_of_unranked_texts(order: tuple[int, ...]) -> None:
    texts = [COMPRESSION[number] for number in order]
    known = {order.index(0): 0.9}
    found = extend("compress", texts, known, k=2, relevance="human")
    assert [document.text for document in found.documents] == ["gzip compresses", "xz compresses"]
    found = extend("compress", texts, known, k=4, relevance="human")
    relevance = {str(document.text): document.relevance for document in found.documents}
    assert relevance["cat"] == pytest.approx(relevance["dog"])
    ranked = extend("compress", COMPRESSION[:3], [0.9], k=2, ranked=True)
    assert ranked.documents[1].text == "cat", "an order of the retriever is evidence"


def relevances(selector: Selector) -> list[float]:
    return [document.relevance for document in selector.select(QUERY, TEXTS, budget=3, k=5).documents]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_selectors_can_be_copied_and_pickled(copied: Callable[[Selector], Selector]) -> None:
    ours = Selector(scores, rounds=2, settings=Settings(budget=2))
    assert relevances(copied(ours)) == relevances(ours)
    assert copied(ours).select(QUERY, TEXTS).usage.budget == 2
