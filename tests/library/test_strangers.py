"""What people who had not seen the library before gave to it."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boundarymorph import InvalidScores, Selector, extend
from boundarymorph.errors import InvalidInput
from boundarymorph.settings import Settings
from tests.fakes.scorer import score_of
from tests.patience import PATIENCE

pytestmark = pytest.mark.strangers

QUERY = "by the sea"
TEXTS = [f"text {number} by the sea" for number in range(20)]


def scores(query: str, texts: Sequence[str]) -> list[float]:
    return [score_of(query, text) for text in texts]


class Table:
    """A table as pandas, polars and pyarrow have it: it is read by the names of its columns."""

    columns = ("text", "id", "score")

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)


class Column:
    """A column of such a table."""

    def __iter__(self) -> Iterator[str]:
        return iter(TEXTS)

    def keys(self) -> range:
        return range(len(TEXTS))


WRONG_TEXTS = [
    pytest.param(Table(), r"a Table is read by the names of its columns; give df\[\"text\"\]\.tolist\(\)", id="table"),
    pytest.param({"a": "one", "b": "two"}, "a dict is read by its keys; give a list", id="dict"),
    pytest.param({"id": "1", "text": "one"}, "a dict is read by its keys; give a list", id="a document"),
    pytest.param("one text", "give a list of texts, not a single one", id="text"),
    pytest.param(b"one text", "give a list of texts, not a single one", id="bytes"),
    pytest.param(None, "give a list of texts, not a NoneType", id="None"),
    pytest.param(7, "give a list of texts, not a int", id="number"),
    pytest.param([["one", "two"]], r"texts\[0\] is of the type list", id="list of lists"),
]


@pytest.mark.parametrize("select", [Selector(scores).select, partial(extend, scores=[])], ids=["select", "extend"])
@pytest.mark.parametrize(("texts", "says"), WRONG_TEXTS)
def test_wrong_kinds_of_documents_are_refused(select: Callable[..., Any], texts: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        select(QUERY, texts)


def test_wrong_kinds_of_metadata_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"metadata: a Table is read .* give df\.to_dict\('records'\)"):
        Selector(scores).select(QUERY, TEXTS, metadata=Table())


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(lambda: tuple(TEXTS), id="tuple"),
        pytest.param(lambda: np.array(TEXTS), id="array"),
        pytest.param(lambda: Column(), id="column"),
        pytest.param(lambda: (text for text in TEXTS), id="generator"),
        pytest.param(lambda: dict.fromkeys(range(3), "a text").values(), id="values of a dict"),
    ],
)
def test_anything_that_yields_texts_is_taken(texts: Callable[[], Any]) -> None:
    assert len(Selector(scores).select(QUERY, texts(), budget=2, k=2).documents) == 2
    assert len(extend(QUERY, texts(), [0.5], k=2).documents) == 2


@pytest.mark.parametrize("rounded", [1 + 2e-16, 1 + 1e-9, float(np.float32(1.0000001)), 1 + 1e-6, -1e-9, -1e-6])
def test_scores_that_rounding_moved_out_of_range_are_taken(rounded: float) -> None:
    found = Selector(lambda query, texts: [rounded] * len(texts)).select(QUERY, TEXTS, budget=20, k=2, spend="order")
    assert {document.cross_encoder_score for document in found.documents} == {float(round(rounded))}
    assert extend(QUERY, TEXTS, [rounded], k=1, relevance="scorer").status == "complete"


@pytest.mark.parametrize("beyond", [1 + 2e-6, 1.0001, -2e-6])
def test_scores_beyond_rounding_are_refused_with_all_their_digits(beyond: float) -> None:
    with pytest.raises(InvalidScores, match=f"the score of text 0 is {beyond!r}, not in"):
        Selector(lambda query, texts: [beyond] * len(texts)).select(QUERY, TEXTS, budget=2, k=2)


@pytest.mark.parametrize(
    ("known", "says"),
    [
        pytest.param({20: 0.5}, "one for position 20; positions are 0 to 19", id="beyond the last"),
        pytest.param({-1: 0.5}, "one for position -1", id="negative"),
        pytest.param({"0": 0.5}, "one for position '0'", id="text"),
        pytest.param({True: 0.5}, "one for position True", id="bool"),
        pytest.param({0: 1.5}, "not in", id="logit"),
        pytest.param({0: None}, "NaN means", id="None"),
    ],
)
def test_scores_of_wrong_positions_are_refused(known: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        extend(QUERY, TEXTS, known)


def test_scores_by_position() -> None:
    found = extend(QUERY, TEXTS, {3: 0.9, np.int64(7): np.float32(0.25)}, k=20, relevance="scorer")
    scored = {
        int(document.id): document.relevance for document in found.documents if document.source == "cross_encoder"
    }
    assert scored == {3: 0.9, 7: 0.25}
    assert extend(QUERY, TEXTS, {}, k=2).usage.reused_scores == 0


COMPRESSION = ("gzip compresses", "cat", "xz compresses", "dog")


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_an_order_that_means_nothing_is_no_evidence(order: tuple[int, ...]) -> None:
    texts = [COMPRESSION[number] for number in order]
    known = {order.index(0): 0.9}
    found = extend("compress", texts, known, k=2, relevance="people")
    assert [document.text for document in found.documents] == ["gzip compresses", "xz compresses"]
    found = extend("compress", texts, known, k=4, relevance="people")
    relevance = {str(document.text): document.relevance for document in found.documents}
    assert relevance["cat"] == pytest.approx(relevance["dog"])


def test_an_order_of_the_retriever_is_evidence() -> None:
    assert extend("compress", COMPRESSION[:3], [0.9], k=2, ranked=True).documents[1].text == "cat"


@pytest.mark.parametrize("name", ["embeded", "Embedded", "embbeded", "EMBEDDED"])
def test_a_name_like_embedded_is_taken_for_a_typing_error(name: str) -> None:
    with pytest.raises(InvalidInput, match="did you mean 'embedded'"):
        Selector(name)


def test_another_name_asks_for_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("boundarymorph.library.import_module", _missing)
    with pytest.raises(InvalidInput, match="pip install sentence-transformers"):
        Selector("BAAI/bge-reranker-base")


def _missing(name: str) -> Any:
    raise ModuleNotFoundError(name, name=name)


def relevances(selector: Selector) -> list[float]:
    return [document.relevance for document in selector.select(QUERY, TEXTS, budget=3, k=5).documents]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_selectors_can_be_copied_and_pickled(copied: Callable[[Selector], Selector], tmp_path: Path) -> None:
    settings = Settings(budget=2)
    for selector in (
        Selector("embedded"),
        Selector(scores, rounds=2, settings=settings),
    ):
        assert relevances(copied(selector)) == relevances(selector)
    assert copied(Selector(scores, settings=settings)).select(QUERY, TEXTS).usage.budget == 2


def test_the_embedded_scorer_works_after_a_fork() -> None:
    selector = Selector("embedded")
    PARENTS.append(selector)
    expected = relevances(selector)
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert pool.map_async(relevances, [selector] * 6).get(PATIENCE) == [expected] * 6
        assert pool.map_async(_relevances_of_parent, range(6)).get(PATIENCE) == [expected] * 6


PARENTS: list[Selector] = []


def _relevances_of_parent(_: int) -> list[float]:
    return relevances(PARENTS[-1])
