"""Test requests that pages of other sites send from the browser of a user."""

from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
from pydantic import ValidationError

from boundarymorph.access import callers
from boundarymorph.access.callers import Scope
from boundarymorph.settings import Settings
from tests.fakes.service import application, client_of, problem, serving, texts

SELECT = {"query": "q", "pool": texts(3), "budget": 1, "k": 1}
ALLOWED = ("search.example.org", "*.example.com")
REBOUND = {"host": "rebind.evil.example", "origin": "http://rebind.evil.example"}
SECRET, KEY = callers.make_key("all", list(Scope))


HOSTS = (
    "LOCALHOST.", "[::1]:8080", "10.2.3.4:8080", "gateway:8080", "gateway.search.svc.cluster.local:8080",
    "Search.Example.Org:443", "a.b.example.com",
)  # fmt: skip
OTHER_HOSTS = (
    "example.com", "search.example.org.evil.example", "evil.example#localhost", "localhost@evil.example",
    "127.0.0.1.evil.example", "[::1", "",
)  # fmt: skip


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({}, None),
        *(({"host": host}, None) for host in HOSTS),
        *(({"host": host}, "host") for host in OTHER_HOSTS),
        *(({"origin": origin}, None) for origin in ("http://localhost:3000", "https://search.example.org")),
        *(({"origin": origin}, "pages") for origin in ("https://e.example", "http://localhost.e.example", "null")),
        ({"host": "10.2.3.4:8080", "origin": "http://10.2.3.4:8080"}, None),  # the playground
        ({"host": "10.2.3.4:8080", "origin": "http://1.2.3.4"}, "pages"),
        (REBOUND, "host"),
    ],
)
async def test_request_without_a_key_needs_an_allowed_host_and_origin(
    tmp_path: Path, headers: dict[str, str], refused: str | None
) -> None:
    async with serving(Settings(data_directory=tmp_path, allowed_hosts=ALLOWED)) as client:
        for method, path, body in (("GET", "/indexes", None), ("POST", "/select", SELECT), ("GET", "/livez", None)):
            response = await client.request(method, path, json=body, headers=headers)
            if refused is None:
                assert response.is_success, response.text
            else:
                detail = problem(response, 403, "forbidden")
                assert refused in detail and "allowed_hosts" in detail


@pytest.mark.parametrize("role", ["whole", "retriever", "scorer"])
async def test_every_route_checks_the_host(tmp_path: Path, role: str) -> None:
    app = application(role, Settings(data_directory=tmp_path))
    async with client_of(app) as client:
        for path, operations in app.openapi()["paths"].items():
            for method in operations:
                response = await client.request(method, path.format(name="a", id="b"), headers=REBOUND)
                problem(response, 403, "forbidden")
        for path in ("/mcp", "/playground", "/docs", "/nowhere"):
            problem(await client.get(path, headers=REBOUND), 403, "forbidden")


@pytest.mark.parametrize(("allowed", "status"), [((), 200), (ALLOWED, 403), (("*",), 200), ((*ALLOWED, "*"), 200)])
async def test_key_replaces_the_host_check_unless_hosts_are_set(
    tmp_path: Path, allowed: tuple[str, ...], status: int
) -> None:
    settings = Settings(data_directory=tmp_path, keys=(str(KEY),), allowed_hosts=allowed)
    async with serving(settings) as client:
        headers = {"authorization": f"Bearer {SECRET}"}
        assert (await client.get("/indexes", headers=headers)).status_code == 200
        assert (await client.get("/indexes", headers=headers | REBOUND)).status_code == status


async def test_probe_without_a_host_is_answered(tmp_path: Path) -> None:
    """HAProxy sends such probes: HTTP/1.0 without a Host header."""
    async with serving(Settings(data_directory=tmp_path)) as client:
        request = client.build_request("GET", "/readyz")
        del request.headers["host"]
        assert (await client.send(request)).is_success


PAGE = {"origin": "http://localhost:3000"}


@pytest.mark.parametrize(
    ("headers", "accepted"),
    [
        ({}, True),
        ({"content-type": "application/x-www-form-urlencoded"}, True),  # curl's content type
        ({"content-type": "Application/JSON; charset=utf-8"} | PAGE, True),
        ({"content-type": "application/vnd.api+json"} | PAGE, True),
        ({"content-type": "application/x-ndjson"} | PAGE, True),
        (PAGE, False),
        ({"content-type": "application/x-www-form-urlencoded"} | PAGE, False),
        ({"content-type": "text/plain"}, False),
        ({"content-type": "text/plain;application/json"}, False),
        ({"content-type": "multipart/form-data; boundary=json"}, False),
    ],
)
@pytest.mark.parametrize("with_keys", [False, True])
async def test_body_sent_by_a_web_page_must_be_json(
    tmp_path: Path, headers: dict[str, str], accepted: bool, with_keys: bool
) -> None:
    settings = Settings(data_directory=tmp_path, keys=(str(KEY),) if with_keys else ())
    key = {"authorization": f"Bearer {SECRET}"} if with_keys else {}
    async with serving(settings) as client:
        for chunked in (False, True):
            body = orjson.dumps(SELECT)
            content = pieces(body) if chunked else body
            response = await client.post("/select", content=content, headers=headers | key)
            if accepted:
                assert response.is_success, response.text
            else:
                assert "application/json" in problem(response, 415, "unsupported-media-type")
        kind = {name: value for name, value in headers.items() if name == "origin"} | key
        assert (await client.get("/indexes", headers=kind)).is_success  # a request without a body has no type


@pytest.mark.parametrize(
    "name", ["https://search.example.org", "search.example.org:80", "a/b", "", "*.", "a.*.b", " a"]
)
def test_malformed_allowed_host_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="allowed_hosts"):
        Settings(allowed_hosts=(name,))


async def pieces(body: bytes) -> AsyncIterator[bytes]:
    yield body[:9]
    yield body[9:]
