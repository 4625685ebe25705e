"""Test the parsing of JSON from callers: refusals, and models that stop at a mistake."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from boundarymorph import reading
from boundarymorph.api import openapi, retrieval
from boundarymorph.errors import InvalidInput
from boundarymorph.server import app  # noqa: F401 - its routes register their bodies

OF_RETRIEVERS: set[type[BaseModel]] = {retrieval.Retrieve, retrieval.Ids, retrieval.Query, retrieval.Texts}
# Routes are declared at import, in any order.
REQUESTS = sorted(OF_RETRIEVERS.union(openapi.BODIES), key=lambda model: (model.__name__, model.__module__))


@pytest.mark.parametrize("text", [b"[{}, ]", b"{", b'{"a": NaN, b}', b"\xff", b"", b"1 2"])
def test_parse_refuses_malformed_json(text: bytes) -> None:
    with pytest.raises(InvalidInput, match="the body is not JSON"):
        reading.parse(text)


@pytest.mark.parametrize("opening", ["[", '{"a":', '[1,{"b":2,"a":'])
def test_parse_accepts_nesting_up_to_the_bound(opening: str) -> None:
    levels = opening.count("[") + opening.count("{")
    closing = "".join("]" if mark == "[" else "}" for mark in reversed(opening) if mark in "[{")
    most = 200 // levels
    reading.parse((opening * most + "1" + closing * most).encode())
    with pytest.raises(InvalidInput, match="recursion"):
        reading.parse((opening * (most + 1) + "1" + closing * (most + 1)).encode())


@pytest.mark.parametrize("value", [b"{}", b'{"a":1}', b"[[]]"])
def test_parse_refuses_too_many_small_objects_and_arrays(value: bytes) -> None:
    """They may take 32 MiB, whatever the size of the body is."""
    few, many = (b"[" + b",".join([value] * number) + b"]" for number in (100_000, 700_000))
    assert len(reading.parse(few)) == 100_000
    with pytest.raises(InvalidInput, match="more than 15 times its"):
        reading.parse(many)


@pytest.mark.parametrize(
    ("value", "number"),
    [(b"1", 700_000), (b'"a"', 700_000), (b'{"id": "a", "text": "some words of it, and, more"}', 120_000)],
)
def test_parse_accepts_many_values_of_the_usual_kinds(value: bytes, number: int) -> None:
    assert len(reading.parse(b"[" + b",".join([value] * number) + b"]")) == number


@pytest.mark.parametrize("model", REQUESTS, ids=lambda model: model.__name__)
def test_request_lists_are_validated_up_to_the_first_mistake(model: type[BaseModel]) -> None:
    lists = list(_schemas(model.__pydantic_core_schema__, "list"))
    if model.__name__ != "UploadedDocument":  # this model only describes the route
        assert all(found.get("fail_fast") for found in lists), lists


def _schemas(schema: Any, kind: str) -> Iterator[dict[str, Any]]:
    """Yield all parts of a core schema that are of a kind."""
    if isinstance(schema, dict):
        if schema.get("type") == kind:
            yield schema
        for name, part in schema.items():
            if name not in ("metadata", "serialization", "json_schema_input_schema"):
                yield from _schemas(part, kind)
    elif isinstance(schema, list | tuple):
        for part in schema:
            yield from _schemas(part, kind)
