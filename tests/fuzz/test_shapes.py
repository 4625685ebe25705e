"""Bodies of every shape: bounded memory, and a loop that goes on meanwhile."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import BaseModel

from boundarymorph.agents.tools import TOOLS
from boundarymorph.api import openapi
from boundarymorph.server.app import create_app, create_retriever_app, create_scorer_app
from boundarymorph.settings import Settings
from tests.fuzz.services import App
from tests.fuzz.shapes import ROUTES

SIZE, DRAWN = 2**21, 3


def test_memory_and_pauses() -> None:
    """In a process of its own, whose memory nothing else uses."""
    command = [sys.executable, "-m", "tests.fuzz.shapes", "--size", str(SIZE), "--shapes", str(DRAWN)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    taken = [json.loads(line) for line in done.stdout.splitlines()]
    assert [found for found in taken if not found["holds"]] == []
    assert done.returncode == 0, done.stderr
    assert len(taken) == sum(map(len, ROUTES.values())) * DRAWN


def test_every_route_with_a_body_is_among_them(tmp_path: Path) -> None:
    settings = Settings(data_directory=tmp_path)
    applications: dict[App, FastAPI] = {
        "whole": create_app(settings),
        "retriever": create_retriever_app(settings),
        "scorer": create_scorer_app(settings),
    }
    drawn = {(method, _pattern(path)) for routes in ROUTES.values() for method, path, _, _ in routes}
    for app in applications.values():
        for path, operations in app.openapi()["paths"].items():
            for method, operation in operations.items():
                assert "requestBody" not in operation or (method.upper(), path) in drawn, path


def _pattern(path: str) -> str:
    parts = path.split("/")
    return "/".join([*parts[:2], "{name}", *parts[3:]]) if parts[1] == "indexes" else path


REQUESTS = [*dict.fromkeys(openapi.BODIES), *(tool.arguments for tool in TOOLS)]


@pytest.mark.parametrize("model", REQUESTS, ids=lambda model: model.__name__)
def test_lists_of_requests_are_checked_to_their_first_mistake(model: type[BaseModel]) -> None:
    lists = list(_schemas(model.__pydantic_core_schema__, "list"))
    if model.__name__ != "UploadedDocument":  # which is for the description only
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
