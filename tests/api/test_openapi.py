"""Test that docs/openapi.json is complete and current, and that its examples work."""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from fastapi import FastAPI
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from pydantic import ValidationError

from boundarymorph.access import callers
from boundarymorph.access.callers import Scope
from boundarymorph.api import openapi
from boundarymorph.api.select_schemas import SelectRequest
from boundarymorph.cli import main
from boundarymorph.selection.methods import METHODS, Method
from boundarymorph.server.app import create_app, create_retriever_app, create_scorer_app
from boundarymorph.settings import Settings
from tests.fakes.service import answer

FILE = Path(__file__).parents[2] / "docs" / "openapi.json"
SECRET, KEY = callers.make_key("rag", list(Scope))
APPS: dict[str, Callable[[Settings], FastAPI]] = {
    "whole": create_app,
    "retriever": create_retriever_app,
    "scorer": create_scorer_app,
}
PUBLIC = ("/livez", "/readyz", "/metrics")
# Routes of other services, whose clients expect errors in other shapes.
OTHERS_PATHS = {
    *("/rerank", "/v1/rerank", "/v2/rerank", "/infinity/rerank", "/v1/ranking", "/info"),
    *("/v1/reranking", "/v1/models", "/voyage/v1/rerank", "/weaviate/rerank", "/retrieval"),
    "/api/v1/services/rerank/text-rerank/text-rerank",
}


@cache
def described(app: str, with_keys: bool = False) -> dict[str, Any]:
    """Return the OpenAPI document of a role, which tests must not change."""
    document = APPS[app](Settings(keys=(str(KEY),) if with_keys else ())).openapi()
    if not with_keys:
        validate(document)
    return document


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path and the description of each operation."""
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation


def test_openapi_file_matches_the_application(capsys: pytest.CaptureFixture[str]) -> None:
    main.openapi()
    assert capsys.readouterr().out == FILE.read_text(), "`make openapi` writes it anew"


@pytest.mark.parametrize("app", APPS)
def test_openapi_describes_every_field_and_parameter(app: str) -> None:
    document = described(app)
    undescribed = [
        f"{name}.{field}"
        for name, model in document["components"]["schemas"].items()
        for field, schema in model.get("properties", {}).items()
        if not schema.get("description")
    ]
    undescribed += [
        f"{path}?{parameter['name']}"
        for path, operation in operations(document)
        for parameter in operation.get("parameters", ())
        if not parameter.get("description")
    ]
    assert undescribed == []


@pytest.mark.parametrize(("app", "with_keys"), [*((app, False) for app in APPS), ("whole", True)])
def test_openapi_lists_refusals_and_security_of_each_route(app: str, with_keys: bool) -> None:
    document = described(app, with_keys)
    assert ("securitySchemes" in document["components"]) == with_keys
    for path, operation in operations(document):
        guarded = path not in PUBLIC
        assert ("security" in operation) == (guarded and with_keys)
        refusals = {"401", "403"} & set(operation["responses"])
        assert refusals == ({"401", "403"} if guarded and with_keys else set()), path
        assert ("429" in operation["responses"]) == guarded
        assert ("408" in operation["responses"]) == ("requestBody" in operation), path
        if guarded:
            assert "Retry-After" in operation["responses"]["429"]["headers"]
        for status, response in operation["responses"].items() if app == "whole" else ():
            if int(status) >= 400 and operation["summary"] != "Can it serve?" and path not in OTHERS_PATHS:
                assert "application/problem+json" in response["content"], operation["summary"]


@pytest.mark.parametrize("name", openapi.SELECT)
async def test_openapi_examples_are_answered(client: httpx.AsyncClient, name: str) -> None:
    kinds = ("trial", "review", "essay")
    papers = [
        {"id": f"p{number}", "text": f"paper {number}", "metadata": {"year": 2000 + number, "kind": kinds[number % 3]}}
        for number in range(30)
    ]
    answer(await client.put(f"/indexes/{openapi.INDEX}"))
    answer(await client.post(f"/indexes/{openapi.INDEX}/documents", json=papers))
    request = openapi.SELECT[name]["value"]
    body = answer(await client.post("/select", json=request))
    assert body["status"] == "complete"
    assert 0 < len(body["documents"]) <= request.get("k", 30)


@pytest.mark.strangers
def test_openapi_server_is_relative_or_the_public_url(tmp_path: Path) -> None:
    assert described("whole")["servers"] == [{"url": "."}]
    public = create_app(Settings(data_directory=tmp_path, public_url="https://search.example.com/bm/")).openapi()
    assert public["servers"] == [{"url": "https://search.example.com/bm"}]


GIVEN: dict[str, Any] = {
    "query": "q",
    "queries": ["a", "b"],
    "index": "i",
    "pool": ["a"],
    "max_tokens": 9,
    "objective": {"find": 0.5},
    "distinct": True,
    "hybrid": True,
    "ranked": True,
    "vectors": "encoder",
    "filter": {"a": 1},
    "calibration": True,
    "diversity": 0.5,
    "explain": True,
    "known_scores": {"0": 1.0},
    "query_embedding": [1.0],
    "min_relevance": 0.5,
    "depth": 2,
    "budget": 3,
    "k": 2,
}
BY_DEFAULT = {"depth": None, "filter": None, "hybrid": False, "ranked": False, "diversity": 0, "calibration": False}


@pytest.mark.parametrize("source", ["index", "pool"])
@pytest.mark.parametrize("asked", ["query", "queries"])
def test_openapi_schema_refuses_fields_that_exclude_each_other(asked: str, source: str) -> None:
    """The schema agrees with the service for any two further fields."""
    document = described("whole")
    validator = Draft202012Validator({**document["components"]["schemas"]["SelectRequest"], **document})
    body = {asked: GIVEN[asked], source: GIVEN[source]}
    others: list[dict[str, Any]] = [
        *({one: GIVEN[one], other: GIVEN[other]} for one, other in combinations(GIVEN, 2)),
        *({name: None} for name in body),
        {"budget": "auto"},
        {"explain": "pool"},
        BY_DEFAULT,
    ]
    answers = {True: 0, False: 0}
    for fields in others:
        try:
            SelectRequest.model_validate(body | fields)
            accepted = True
        except ValidationError:
            accepted = False
        assert validator.is_valid(body | fields) is accepted, fields
        answers[accepted] += 1
    assert min(answers.values()) > 10


def test_schema_lists_every_selection_method() -> None:
    assert get_args(Method) == tuple(METHODS)
