"""Test that the client's models match docs/openapi.json, and its errors docs/api.md."""

import inspect
import json
import re
import runpy
from pathlib import Path
from typing import Any, is_typeddict

import pytest
from pydantic import BaseModel

import boundarymorph_client
from boundarymorph_client import models
from boundarymorph_client.errors import KINDS, ProblemError

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENT: dict[str, Any] = json.loads((DOCS / "openapi.json").read_text())
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
CALLED = ("/select", "/indexes", "/readyz")  # the client calls paths that begin so
NAMES = {"Round": "RoundEvent", "Selection": "SelectResponse"}  # models with another name in the client
DEFINED = [found for found in vars(models).values() if isinstance(found, type) and found.__module__ == models.__name__]
ANSWERS = [found for found in DEFINED if issubclass(found, models.Answer) and found is not models.Answer]
# Problems that no answer to a client has, and problems that the client cannot tell from others.
OTHERS = {  # the first is a problem of the rerank routes, the second of MCP
    "no-documents", "not-installed", "malformed-http", "method-not-allowed", "body-too-slow", "corrupt-index",
    "internal-error", "client-disconnected", "headers-too-large", "too-many-connections",
}  # fmt: skip


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    return SCHEMAS[NAMES.get(model.__name__, model.__name__)]  # type: ignore[no-any-return]


def shape(schema: Any) -> Any:
    """Return a JSON schema's types, without descriptions, values, and bounds."""
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return NAMES.get(name, name)
    if "anyOf" in schema:
        return sorted(str(shape(choice)) for choice in schema["anyOf"])
    kept = {"type", "items", "additionalProperties", "format"}
    return {key: shape(value) for key, value in schema.items() if key in kept}


@pytest.mark.parametrize("model", ANSWERS)
def test_answer_models_match_the_openapi_schemas(model: type[BaseModel]) -> None:
    theirs, ours = schema_of(model), model.model_json_schema(mode="serialization")
    fields = {name: schema for name, schema in theirs["properties"].items() if not schema.get("deprecated")}
    assert ours["properties"].keys() == fields.keys()
    assert set(ours.get("required", ())) == set(theirs.get("required", ())) & fields.keys()
    for field, schema in fields.items():
        assert shape(ours["properties"][field]) == shape(schema), field


def named_in(schema: Any) -> set[str]:
    """Return the models that a part of the document refers to, directly or not."""
    names = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(schema)))
    return names.union(*(named_in(SCHEMAS[name]) for name in names))


def test_every_answer_of_the_service_has_a_client_model() -> None:
    called = [path for path in DOCUMENT["paths"] if path.startswith(CALLED) and not path.endswith("/artifacts")]
    operations = [DOCUMENT["paths"][path].values() for path in called]
    answered = named_in([operation["responses"] for item in operations for operation in item])
    assert {NAMES.get(model.__name__, model.__name__) for model in ANSWERS} == answered | {"RoundEvent"}


@pytest.mark.parametrize("model", [models.PoolDocument, models.UploadedDocument])
def test_document_types_match_the_openapi_schemas(model: Any) -> None:
    assert is_typeddict(model)
    schema = SCHEMAS[model.__name__]
    assert model.__annotations__.keys() == schema["properties"].keys()
    assert model.__required_keys__ == set(schema["required"])


def test_select_options_match_the_openapi_schema() -> None:
    ours = models.SelectOptions.__annotations__.keys()
    theirs = SCHEMAS["SelectRequest"]["properties"]
    of_the_pool = SCHEMAS["PoolBody"]["properties"].keys() - {"documents"}
    assert ours - of_the_pool == theirs.keys() - {"query", "queries"}  # the method's first argument
    assert of_the_pool < ours
    described = inspect.getdoc(models.SelectOptions)
    assert described is not None
    for option in ours:
        assert f"{option}:" in described


def test_every_problem_type_has_an_error_class() -> None:
    """There is no class for an unknown type."""
    rows = re.findall(r"^\| (`[a-z-]+`(?:, `[a-z-]+`)*) \| \d{3}", (DOCS / "api.md").read_text(), re.MULTILINE)
    types = {name for row in rows for name in re.findall(r"[a-z-]+", row)}
    assert len(types) > 30
    assert KINDS.keys() == types - OTHERS


def test_public_names_include_every_error_class() -> None:
    public = boundarymorph_client.__all__
    assert {kind.__name__ for kind in KINDS.values()} <= {*public}
    assert all(hasattr(boundarymorph_client, name) for name in public)
    assert issubclass(boundarymorph_client.DeadlineExceeded, ProblemError | TimeoutError)


PYTHON = Path(__file__).parents[2] / "clients/python"


def test_blocking_client_is_generated_from_the_asynchronous_one() -> None:
    source = (PYTHON / "src/boundarymorph_client/client.py").read_text()
    assert source == runpy.run_path(str(PYTHON / "unasync.py"))["written"](), "async_client.py has changed: make client"
    assert not any(word in source for word in ("async ", "await", "Async", "asyncio"))
