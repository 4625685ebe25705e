"""Test the bodies of requests, and mistakes that the client refuses before it sends them."""

import base64
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from boundarymorph_client import AsyncClient, Client, InvalidArgument, bodies, calls, haystack, langchain, llamaindex

POOL = ["the sea", "the hills"]


def test_selection_body_omits_options_that_are_none() -> None:
    names = ("pool", "embeddings", "features", "query_embedding", "ranked", "deadline_ms")
    assert bodies.selection("q", {**dict.fromkeys(names), "index": "i"}) == {"query": "q", "index": "i"}  # type: ignore[typeddict-item]
    assert bodies.selection(["a", "b"], {"pool": POOL, "index": None}) == {  # type: ignore[typeddict-item]
        "queries": ["a", "b"],
        "pool": {"documents": [{"text": text} for text in POOL]},
    }


@pytest.mark.parametrize(
    ("dtype", "sent"), [("float64", "<f4"), ("float32", "<f4"), ("float16", "<f2"), (">f4", "<f4"), ("int8", "<f4")]
)
def test_selection_body_sends_arrays_as_base64_blocks(dtype: str, sent: str) -> None:
    vectors = np.arange(8).reshape(2, 4).astype(dtype)
    body = bodies.selection(
        "q", {"pool": POOL, "embeddings": np.asfortranarray(vectors), "query_embedding": vectors[0]}
    )
    for block, expected in ((body["pool"]["embeddings"], vectors), (body["query_embedding"], vectors[0])):
        assert (block["shape"], block["dtype"]) == (list(expected.shape), {"<f4": "float32", "<f2": "float16"}[sent])
        found = np.frombuffer(base64.b64decode(block["data"]), sent).reshape(block["shape"])
        assert np.array_equal(found, expected)
    lists = bodies.selection("q", {"pool": POOL, "embeddings": vectors.tolist()})
    assert [document["embedding"] for document in lists["pool"]["documents"]] == vectors.tolist()


def test_selection_body_sends_missing_signals_as_null() -> None:
    signals: dict[str, Any] = {"clicks": [3, None], "age": np.array([0.5, np.nan]), "size": np.array([1, 2])}
    body = bodies.selection("q", {"pool": POOL, "features": signals})
    assert body["pool"]["features"] == {"clicks": [3, None], "age": [0.5, None], "size": [1, 2]}


@pytest.mark.parametrize("scores", [[0.9], {0: 0.9}])
def test_extend_body_sends_given_scores_and_budget_zero(scores: Any) -> None:
    body = calls.extend("q", [POOL[0], {"text": POOL[1]}], scores, {}).body
    documents = [{"text": POOL[0], "cross_encoder_score": 0.9}, {"text": POOL[1]}]
    assert body == {"query": "q", "pool": {"documents": documents}, "budget": 0}


class Table:
    """A table like those of `pandas`, `polars`, and `pyarrow`, which is read by column names."""

    columns = ("text", "id")

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __bool__(self) -> bool:
        raise ValueError("the truth value of a table is ambiguous")


TAKING: dict[str, Callable[[Any], object]] = {
    "select": lambda given: bodies.selection("q", {"pool": given}),
    "extend": lambda given: bodies.documents_with_scores(given, [0.5]),
    "upload": bodies.Lines,
    "upload, asynchronous": bodies.AsyncLines,
    "select_batch": Client().select_batch,
    "select_batch, asynchronous": AsyncClient().select_batch,
    "LangChain": lambda given: langchain.BoundaryMorphRerank(base_url="http://nowhere").compress_documents(given, "q"),
    "LlamaIndex": lambda given: llamaindex.BoundaryMorphRerank(base_url="http://nowhere").postprocess_nodes(
        given, query_str="q"
    ),
    "Haystack": lambda given: haystack.BoundaryMorphRanker(base_url="http://nowhere").run("q", given),
}


@pytest.mark.strangers
@pytest.mark.parametrize("taking", TAKING)
def test_wrong_kinds_of_documents_are_refused(taking: str) -> None:
    for given, message in (
        (Table(), "a Table is read by the names of its columns"),
        ({"a": "one"}, "a dict is read by its keys"),
        ("one text", "not a single text"),
        (b"one text", "not a single text"),
        (7, "not a int"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            TAKING[taking](given)
    if taking in ("LangChain", "LlamaIndex", "Haystack"):
        with pytest.raises(InvalidArgument, match=r"\[0\] is of the type str; give a (Document|NodeWithScore)"):
            TAKING[taking](["a text"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(bodies.selection, "q", {"pool": POOL, "embeddings": np.ones((3, 4))}), "3 embeddings for 2 documents"),
        (partial(calls.extend, "q", POOL, [0.5] * 3, {}), "position 2, and 2 documents"),
        (partial(calls.extend, "q", POOL, [0.5], {"budget": 5}), "makes no call"),
    ],
)
def test_bodies_with_mismatched_counts_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
