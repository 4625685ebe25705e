"""Test the files of the web pages."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from boundarymorph.selection import StopReason
from boundarymorph.selector.result import Interruption
from boundarymorph.settings import Settings
from boundarymorph.web.pages import STATIC
from tests.fakes.service import fake_service, problem, starting
from tests.web import pictures


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with starting(Settings(data_directory=tmp_path), fake_service) as client:
        yield client


async def test_playground_loads_nothing_from_elsewhere(client: httpx.AsyncClient) -> None:
    page = await client.get("/playground")
    for name in ("", *(f"/{path.name}" for path in (Path(str(STATIC)) / "playground").glob("*.[cjs]*s"))):
        answer = await client.get(f"/playground{name}")
        policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'" and policy["script-src"] == policy["style-src"] == "'self'"
    assert not re.search(r"https?://|<style|style=|<script(?![^>]*src=)|\son\w+=", page.text)


def test_playground_picture_matches_the_page() -> None:
    assert pictures.DIGEST.read_text().strip() == pictures.digest(), "the page has changed: run `make pictures`"


@pytest.mark.strangers
async def test_pages_are_cached_and_compressed(client: httpx.AsyncClient) -> None:
    first = await client.get("/playground")
    again = await client.get("/playground", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304 and again.content == b""
    assert (await client.get("/playground", headers={"If-None-Match": '"other"'})).status_code == 200
    for path in ("/playground/main.js", "/playground/icon.svg", "/docs/docs.css"):
        plain = await client.get(path, headers={"Accept-Encoding": "identity"})
        packed = await client.get(path, headers={"Accept-Encoding": "gzip"})
        assert packed.headers["content-encoding"] == "gzip" and packed.content == plain.content
        assert packed.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"


async def test_pages_redirect_and_refuse_other_paths(client: httpx.AsyncClient) -> None:
    for path in ("/", "/playground/"):
        assert (await client.get(path, follow_redirects=True)).url.path == "/playground"
    problem(await client.get("/playground/index.js"), 404, "not-found")
    problem(await client.get("/playground/..%2Fdocs%2Fdocs.js"), 404, "not-found")


async def test_first_example_of_the_docs_works_on_an_empty_service(client: httpx.AsyncClient) -> None:
    operation = (await client.get("/openapi.json")).json()["paths"]["/select"]["post"]
    first, *_ = operation["requestBody"]["content"]["application/json"]["examples"].values()
    answer = await client.post("/select", json=first["value"])
    assert answer.is_success and len(answer.json()["documents"]) == first["value"]["k"]
    assert "defaultModelsExpandDepth: -1" in (await client.get("/docs/docs.js")).text  # the page shows no schemas


async def test_playground_can_be_turned_off(tmp_path: Path) -> None:
    async with starting(Settings(data_directory=tmp_path, playground=False), fake_service) as client:
        problem(await client.get("/playground/main.js"), 404, "not-found")
        assert (await client.get("/docs")).is_success


def test_playground_describes_every_stop_reason() -> None:
    words = (STATIC / "playground" / "summary.js").read_text()
    table = words[words.index("const STOPPED") : words.index("};", words.index("const STOPPED"))]
    assert set(re.findall(r"^  (\w+):", table, re.MULTILINE)) == {*map(str, (*StopReason, *Interruption))}
