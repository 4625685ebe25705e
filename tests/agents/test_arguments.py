"""Arguments of tools as clients send them, and what is said of those that are wrong."""

from __future__ import annotations

from typing import Any

import pytest

from boundarymorph.agents.arguments import understood
from boundarymorph.agents.rest import ToolError
from boundarymorph.agents.schemas import Fetch, Search, SelectDocuments

pytestmark = pytest.mark.strangers


@pytest.mark.parametrize(
    ("name", "given", "meant"),
    [
        ("k", "3", 3),
        ("k", "3.0", 3),
        ("k", 3.0, 3),
        ("max_tokens", "500", 500),
        ("min_relevance", "0.5", 0.5),
        ("min_relevance", "1", 1.0),
        ("budget", "20", 20),
        ("budget", "auto", "auto"),
        ("distinct", "true", True),
        ("distinct", "url", "url"),
        ("distinct", "2020", "2020"),
        ("exclude_ids", '["a", "b"]', ["a", "b"]),
        ("further_queries", '["what else"]', ["what else"]),
        ("filter", '{"kind": "function"}', {"kind": "function"}),
        ("filter", {"year": '{"gte": 2020}'}, {"year": {"gte": 2020}}),
        ("filter", {"year": {"in": "[1, 2]"}}, {"year": {"in": [1, 2]}}),
        ("filter", {"or": '[{"a": 1}, {"not": {"b": 2}}]'}, {"or": [{"a": 1}, {"not": {"b": 2}}]}),
        ("filter", {"year": "2020"}, {"year": "2020"}),
        ("filter", {"text": '{"a": 1}'}, {"text": '{"a": 1}'}),
        ("index", "3", "3"),
        ("instruction", '{"a": 1}', '{"a": 1}'),
        ("instruction", "true", "true"),
    ],
)
def test_a_string_is_taken_for_what_it_has_in_json(name: str, given: Any, meant: Any) -> None:
    found = getattr(understood(SelectDocuments, {"query": "q", name: given}), name)
    assert found == meant and type(found) is type(meant)


def test_a_query_stays_as_it_is() -> None:
    for query in ("3", "true", '["a"]', '{"a": 1}', '"quoted"'):
        assert understood(Search, {"query": query}).query == query
    assert understood(Fetch, {"id": "3", "offset": "7"}).offset == 7


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"querry": "q"}, "query: is missing"),
        ({"query": "q", "min_relevence": 1}, "unknown argument 'min_relevence'; did you mean 'min_relevance'?"),
        ({"query": "q", "zzz": 1}, "unknown argument 'zzz'."),
        ({"query": "q", "filter": "{"}, "filter: Input should be an object"),
        ({"query": "q", "exclude_ids": "a"}, "exclude_ids: Input should be an array"),
        ({"query": "q", "k": "many"}, "k: Input should be a valid integer"),
        ({"query": "q", "k": "true"}, "k: Input should be a valid integer"),
        ({"query": "q", "k": "0"}, "k: Input should be greater than or equal to 1"),
    ],
)
def test_a_mistake_is_said_in_words_of_json(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ToolError) as refused:
        understood(SelectDocuments, arguments)
    message = str(refused.value)
    assert said in message and message.endswith("Correct that argument and call again.")
    assert "Extra inputs" not in message and "dictionary" not in message
