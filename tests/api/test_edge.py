"""What every route has in common at the edge: methods, types, origins, secrets, and how it describes its refusals."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from openapi_spec_validator import validate

from boundarymorph.api import keys
from boundarymorph.api.app import create_app, create_retriever_app, create_scorer_app
from boundarymorph.api.keys import Scope
from boundarymorph.settings import RetrieverSettings, Settings
from tests.api.service import answer, problem, serving, texts

SECRET, KEY = keys.make("rag", list(Scope))
GATEWAY = RetrieverSettings(url="http://127.0.0.1:1")
BODY: dict[str, Any] = {"query": "q", "pool": texts(3)}


class TestMethods:
    @pytest.mark.parametrize(
        ("path", "allowed"),
        [
            ("/select", "POST"),
            ("/indexes", "GET"),
            ("/indexes/texts", "DELETE, GET, PUT"),
            ("/indexes/texts/documents", "DELETE, POST"),
            ("/indexes/texts/documents/d0", "DELETE, GET"),
            ("/livez", "GET"),
        ],
    )
    async def test_all_of_a_path_are_named(self, client: httpx.AsyncClient, path: str, allowed: str) -> None:
        for method in ("PATCH", "OPTIONS", "BREW"):
            refused = await client.request(method, path)
            problem(refused, 405, "method-not-allowed")
            assert refused.headers["allow"] == allowed


class TestTypes:
    @pytest.mark.parametrize(
        ("field", "value"),
        [("k", "5"), ("k", 5.0), ("k", True), ("hybrid", 0), ("priority", "1"), ("deadline_ms", "60"), ("query", 5)],
    )
    async def test_are_as_described(self, client: httpx.AsyncClient, field: str, value: object) -> None:
        assert field in problem(await client.post("/select", json=BODY | {field: value}), 422, "invalid-input")

    @pytest.mark.parametrize(
        ("field", "value"), [("score", True), ("embedding", ["1"]), ("tokens", "9"), ("bm25", "1")]
    )
    async def test_of_documents_too(self, client: httpx.AsyncClient, field: str, value: object) -> None:
        pool = [{"text": "a", field: value}]
        assert field in problem(await client.post("/select", json=BODY | {"pool": pool}), 422, "invalid-input")

    async def test_a_whole_number_is_a_number(self, client: httpx.AsyncClient) -> None:
        pool = [{"text": text, "score": 1, "embedding": [1, 0]} for text in "ab"]
        answer(
            await client.post("/select", json=BODY | {"pool": pool, "query_embedding": [1, 0], "deadline_ms": 9_000})
        )


class TestOrigins:
    async def test_of_others_are_not_let_in(self, client: httpx.AsyncClient) -> None:
        origin = {"origin": "https://elsewhere.example"}
        asked = {**origin, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        for response in (
            await client.options("/select", headers=asked),
            await client.post("/select", json=BODY, headers=origin),
        ):
            assert not [name for name in response.headers if name.startswith("access-control-")]


class TestSecrets:
    async def test_are_in_no_log_and_no_answer(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        wrong = f"{SECRET}x"
        settings = Settings(data_directory=tmp_path, keys=(str(KEY),))
        with caplog.at_level(logging.DEBUG):
            async with serving(settings) as client:
                for secret, path in (
                    (SECRET, "/indexes"),
                    (SECRET, "/nowhere"),
                    (wrong, "/indexes"),
                    (SECRET, "/select"),
                ):
                    response = await client.post(path, headers={"authorization": f"Bearer {secret}"}, content=b"{")
                    assert SECRET not in response.text and SECRET not in str(response.headers)
        assert SECRET not in caplog.text
        assert KEY.sha256 not in caplog.text


class TestDescription:
    @pytest.mark.parametrize("with_keys", [False, True])
    @pytest.mark.parametrize("app", ["whole", "gateway", "retriever", "scorer"])
    def test_says_what_is_refused(self, tmp_path: Path, app: str, with_keys: bool) -> None:
        settings = Settings(
            data_directory=tmp_path,
            keys=(str(KEY),) if with_keys else (),
            retriever=GATEWAY if app == "gateway" else RetrieverSettings(),
        )
        creators: dict[str, Callable[[Settings], FastAPI]] = {
            "retriever": create_retriever_app,
            "scorer": create_scorer_app,
        }
        described = creators.get(app, create_app)(settings).openapi()
        validate(described)
        assert ("securitySchemes" in described["components"]) == with_keys
        for path, operations in described["paths"].items():
            for operation in operations.values():
                guarded = path not in ("/livez", "/readyz", "/metrics")
                assert ("security" in operation) == (guarded and with_keys)
                refusals = {"401", "403"} & set(operation["responses"])
                assert refusals == ({"401", "403"} if guarded and with_keys else set()), path
                assert ("429" in operation["responses"]) == guarded
                assert ("408" in operation["responses"]) == ("requestBody" in operation), path
                if guarded:
                    assert "Retry-After" in operation["responses"]["429"]["headers"]
