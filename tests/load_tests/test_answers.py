"""Test the recorder of answers: its requests, its records, and their comparison."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest
from fastapi.routing import APIRoute
from pydantic import AliasChoices, BaseModel
from starlette.routing import Match

from boundarymorph.api import retrieval
from boundarymorph.api.rerank.dialects import DIALECTS
from boundarymorph.api.schemas import CreateIndex, DeleteDocuments, Describe, ScoreRequest
from boundarymorph.api.select_schemas import SelectRequest
from boundarymorph.retrieval.uploads import UploadedDocument
from boundarymorph.server.app import create_app, create_retriever_app, create_scorer_app
from boundarymorph.settings import Settings
from load_tests import answers, processes
from load_tests.recorded_routes import scenes
from load_tests.recorded_selections import INDEX, LISTS, Request

REQUESTS = [event for scene in scenes().values() for event in scene.events if isinstance(event, Request)]
RERANK = {dialect.request for dialect in DIALECTS}
ROLES = {"service": create_app, "retriever": create_retriever_app, "scorer": create_scorer_app}
DOCS = Path(__file__).parents[2] / "docs"
UNREACHED = {  # refusals that need more than a request
    "body-too-slow", "corrupt-index", "encoder-failed", "encoder-unavailable", "internal-error",
    "malformed-frame", "model-unavailable", "not-installed", "not-ready", "retriever-failed", "scorer-failed",
    "storage-full", "storage-unavailable", "too-many-connections",
}  # fmt: skip
WITHOUT = (  # slow requests that add little to this test
    "select/*+*", "pool/*+*", "select/query/*", "rerank/[ijnvw]*", "refused/*", "http/*", "read/*",
)  # fmt: skip


def names(model: type[BaseModel]) -> Iterator[str]:
    """Yield the names of a model's fields as they are sent, and of the models within it."""
    for name, field in model.model_fields.items():
        alias = field.validation_alias
        yield from map(str, alias.choices) if isinstance(alias, AliasChoices) else [field.alias or name]
        yield from (inner for part in parts(field.annotation) for inner in names(part))


def parts(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from parts(inner)


def keys(value: Any) -> Iterator[str]:
    """Yield the names of all fields in a JSON value."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    for inner in value if isinstance(value, list | tuple) else ():
        yield from keys(inner)


def test_recorded_requests_are_many_and_uniquely_named() -> None:
    assert len({request.name for request in REQUESTS}) == len(REQUESTS) >= 300


@pytest.mark.parametrize(
    "model",
    [
        SelectRequest,
        *sorted(RERANK, key=str),
        ScoreRequest,
        CreateIndex,
        DeleteDocuments,
        Describe,
        UploadedDocument,
        retrieval.Retrieve,
        retrieval.Ids,
        retrieval.Texts,
    ],
    ids=lambda model: model.__name__,
)
def test_recorded_requests_use_every_field(model: type[BaseModel]) -> None:
    sent = {name for request in REQUESTS if not isinstance(request.body, bytes) for name in keys(request.body)}
    assert set(names(model)) <= sent


@pytest.mark.parametrize("role", ROLES)
def test_recorded_requests_reach_every_route(role: str, tmp_path: Path) -> None:
    app = ROLES[role](Settings(data_directory=tmp_path))
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    for request in (request for request in REQUESTS if request.role in (role, "service")):
        path = request.path.partition("?")[0]
        scope = {"type": "http", "method": request.method, "path": path, "headers": []}
        routes = [route for route in routes if route.matches(scope)[0] is not Match.FULL]
    assert [route.path for route in routes] == ["/openapi.json"]  # this answer changes on purpose


@pytest.fixture
def data(tmp_path: Path, tiny_weights: None) -> Path:
    """Return a folder like that of `make demo`, with few documents."""
    folder = tmp_path / "data"
    folder.mkdir()
    with processes.serving(["serve", "--data-directory", str(folder)]) as server, answers.client(server.url) as client:
        client.put(f"/indexes/{INDEX}").raise_for_status()
        texts = [
            *LISTS,
            *(f"heapq.push{number}" for number in range(20)),
            *(f"os.read{number}" for number in range(20)),
        ]
        documents = [
            {"id": text, "text": text.replace(".", " "), "metadata": {"kind": "class", "module": text.split(".")[0]}}
            for text in texts
        ]
        client.post(f"/indexes/{INDEX}/documents", json=documents).raise_for_status()
    return folder


def test_recordings_of_one_version_are_equal(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They contain every kind of refusal that a request can cause."""
    for name in ("one", "other"):
        recording = answers.record(data, left_out=[] if name == "one" else WITHOUT)
        (tmp_path / name).write_bytes(orjson.dumps(recording))
    assert answers.compare(tmp_path / "one", tmp_path / "other", left_out=WITHOUT) == 0, capsys.readouterr().out
    recorded = (tmp_path / "one").read_text()
    assert not re.search('"status":500', recorded)
    table = re.findall(r"^\| (`.*?) \| \d{3}", (DOCS / "api.md").read_text(), re.MULTILINE)
    slugs = {slug for row in table for slug in re.findall(r"`([a-z-]+)`", row)}
    assert {slug for slug in slugs if f"problem:{slug}" not in recorded} == UNREACHED


def test_comparison_names_the_fields_that_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def entry(**answer: Any) -> dict[str, Any]:
        return {"request": "POST /select {}", "body": {"k": 1}, "status": 200, "headers": {}, "answer": answer}

    same = entry(documents=[{"id": "a"}])
    before = {"same": same, "set": entry(k=1, old=2), "other/lines": same}
    after = {"same": same, "set": entry(k=2, new=[3]), "new": same}
    for name, recording in (("before", before), ("after", after)):
        (tmp_path / name).write_bytes(orjson.dumps(recording))
    files = tmp_path / "before", tmp_path / "after"
    assert answers.compare(*files) == 3
    assert capsys.readouterr().out.splitlines()[:4] == [
        "set", "  answer.k: 1 -> 2", "  answer.old: 2 -> nothing", "  answer.new: nothing -> [3]"
    ]  # fmt: skip
    assert answers.compare(*files, ["old", ".new"], ["other/*", "new"]) == 1
    assert answers.compare(*files, ["old", "new", "k"], ["other/*", "new"]) == 0
