"""The rerank route as Weaviate's module reranker-transformers calls it, without a content type and without a key."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from boundarymorph.errors import ScorerUnavailable
from boundarymorph.settings import Limits, Settings
from boundarymorph.settings.sections import PolicySettings
from tests.api.service import answer, serving
from tests.scoring.fakes import SeededScorer, failing, score_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUERY = "what is asked"
TEXTS = [f"text {number}" for number in range(31)] + [""]  # of an object without the property
SCORES = [score_of(QUERY, text) for text in TEXTS[:-1]] + [0.0]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    """A service with two policies that takes 40 documents."""
    settings = Settings(
        data_directory=tmp_path_factory.mktemp("weaviate"),
        limits=Limits(pool=40, answer_bytes=10_000),
        depth=40,
        policies={"few": PolicySettings(budget=8), "strict": PolicySettings(min_relevance=0.5)},
    )
    async with serving(settings) as client:
        yield client


async def post(client: httpx.AsyncClient, path: str = "/rerank", **fields: Any) -> httpx.Response:
    """Send the bytes of Go's encoder."""
    sent = {"query": QUERY, "documents": TEXTS, "property": "", **fields}
    content = json.dumps(sent, separators=(",", ":"), ensure_ascii=False).encode()
    return await client.post(path, content=content)


async def test_every_document_has_its_score_at_its_place(client: httpx.AsyncClient) -> None:
    pairs = [{"document": text, "score": score} for text, score in zip(TEXTS, SCORES, strict=True)]
    assert answer(await post(client)) == {"query": QUERY, "scores": pairs}


async def test_without_its_mark_a_list_of_documents_is_answered_as_before(client: httpx.AsyncClient) -> None:
    body = answer(await client.post("/rerank", json={"query": QUERY, "documents": TEXTS}))
    assert "scores" not in body and len(body["results"]) == len(TEXTS)
    texts = answer(await client.post("/rerank", json={"query": QUERY, "texts": TEXTS, "property": ""}))
    assert len(texts) == len(TEXTS)


async def test_policies_leave_no_place_out(client: httpx.AsyncClient) -> None:
    strict = answer(await post(client, "/p/strict/rerank"))["scores"]
    assert [pair["score"] for pair in strict] == [score if score >= 0.5 else 0 for score in SCORES]
    few = answer(await post(client, "/p/few/rerank", query="another question"))["scores"]
    assert [pair["document"] for pair in few] == TEXTS
    assert sum(pair["score"] == score_of("another question", pair["document"]) for pair in few) == 8


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"documents": [*TEXTS, *TEXTS]}, "documents: over this service's limit of 40"),
        ({"documents": ["x" * 11_000]}, "limits.answer_bytes"),
        ({"query": ""}, "query: "),
    ],
)
async def test_an_error_is_a_text(client: httpx.AsyncClient, fields: dict[str, Any], message: str) -> None:
    refused = await post(client, **fields)
    assert refused.status_code == 422
    assert message in refused.json()["error"]


async def test_a_scorer_that_is_away(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SeededScorer, "score", failing(ScorerUnavailable("away")))
    refused = await post(client, query="nobody knows this")
    assert refused.status_code == 503
    assert isinstance(refused.json()["error"], str)


async def test_warnings_are_in_a_header(client: httpx.AsyncClient) -> None:
    response = await post(client, documents=TEXTS[:3], unheard_of=1)
    [warning] = json.loads(response.headers["x-boundarymorph-warnings"])
    assert "'unheard_of'" in warning


@pytest.mark.parametrize("prefix", ["", "/p/few"])
async def test_what_it_asks_for_before_and_besides(client: httpx.AsyncClient, prefix: str) -> None:
    assert answer(await client.get(f"{prefix}/.well-known/ready"))["status"] == "ok"
    assert answer(await client.get(f"{prefix}/meta"))["model_id"] == "seeded"
