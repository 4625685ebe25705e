"""docs/openapi.json: what the service says of itself, whole and up to date, with examples that work."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from boundarymorph.api import examples
from boundarymorph.cli import main
from boundarymorph.parsing import ALLOWED
from boundarymorph.server.app import create_app, create_retriever_app, create_scorer_app
from boundarymorph.settings import Settings
from tests.api.service import answer

FILE = Path(__file__).parents[2] / "docs" / "openapi.json"


def test_the_file_has_not_drifted(capsys: pytest.CaptureFixture[str]) -> None:
    main.openapi()
    assert capsys.readouterr().out == FILE.read_text(), "`make openapi` writes it anew"


def patterns(schema: Any) -> Iterator[str]:
    """Yield the regular expressions of a JSON schema."""
    if isinstance(schema, dict):
        yield from (found for name, found in schema.items() if name == "pattern" and isinstance(found, str))
        yield from schema.get("patternProperties", ())
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from patterns(part)


def test_no_caller_has_to_read_a_regular_expression(settings: Settings) -> None:
    used = {*patterns(create_app(settings).openapi()["components"]), *patterns(Settings.model_json_schema())}
    assert used == set(ALLOWED), "`parsing.ALLOWED` says in words what each of them allows"


@pytest.mark.parametrize("create", [create_app, create_retriever_app, create_scorer_app])
def test_every_field_and_parameter_is_described(create: Any, settings: Settings) -> None:
    document = create(settings).openapi()
    undescribed = [
        f"{name}.{field}"
        for name, model in document["components"]["schemas"].items()
        for field, schema in model.get("properties", {}).items()
        if not schema.get("description")
    ]
    undescribed += [
        f"{path}?{parameter['name']}"
        for path, operations in document["paths"].items()
        for operation in operations.values()
        for parameter in operation.get("parameters", ())
        if not parameter.get("description")
    ]
    assert undescribed == []


@pytest.mark.parametrize("name", examples.SELECT)
async def test_examples_are_answered(client: httpx.AsyncClient, name: str) -> None:
    kinds = ("trial", "review", "essay")
    papers = [
        {"id": f"p{number}", "text": f"paper {number}", "metadata": {"year": 2000 + number, "kind": kinds[number % 3]}}
        for number in range(30)
    ]
    answer(await client.put(f"/indexes/{examples.INDEX}"))
    answer(await client.post(f"/indexes/{examples.INDEX}/documents", json=papers))
    request = examples.SELECT[name]["value"]
    body = answer(await client.post("/select", json=request))
    assert body["status"] == "complete"
    assert 0 < len(body["documents"]) <= request.get("k", 30)


@pytest.mark.strangers
@pytest.mark.parametrize(
    ("url", "server"), [(None, "."), ("https://search.example.com/bm/", "https://search.example.com/bm")]
)
def test_paths_go_from_where_the_service_is(tmp_path: Path, url: str | None, server: str) -> None:
    described = create_app(Settings(data_directory=tmp_path, public_url=url)).openapi()
    assert described["servers"] == [{"url": server}]
