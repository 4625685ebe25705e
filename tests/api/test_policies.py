"""Test policies, which set a budget for clients that cannot send one."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from pydantic import ValidationError

from boundarymorph.access import callers
from boundarymorph.access.callers import Policies, Scope
from boundarymorph.errors import InvalidConfiguration, InvalidInput, UnknownPolicy
from boundarymorph.settings import Settings
from boundarymorph.settings.sections import PolicySettings, RerankSettings
from tests.fakes.scorer import score_of
from tests.fakes.service import answer, problem, serving

QUERY = "music of the sea"
TEXTS = [f"text {number}" for number in range(40)]
SCORES = {index: score_of(QUERY, text) for index, text in enumerate(TEXTS)}
POLICIES = {
    "fast": PolicySettings(budget=0.2, deadline_ms=30_000),
    "rag": PolicySettings(budget=7, for_keys=("chat",)),
    "strict": PolicySettings(min_relevance=0.5, distinct=True),
    "default": PolicySettings(budget=12),
}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a service with the keys "chat", which has a policy, and "plain"."""
    secrets = {}
    settings_keys = []
    for name in ("chat", "plain"):
        secrets[name], key = callers.make_key(name, [Scope.SELECT])
        settings_keys.append(str(key))
    settings = Settings(data_directory=tmp_path, policies=POLICIES, keys=tuple(settings_keys))
    async with serving(settings) as client:
        client.headers["authorization"] = f"Bearer {secrets['plain']}"
        client.extensions = secrets  # type: ignore[attr-defined]
        yield client


async def reranked(client: httpx.AsyncClient, path: str = "/v1/rerank", **fields: Any) -> Any:
    headers = {"authorization": f"Bearer {client.extensions[fields.pop('key', 'plain')]}"}  # type: ignore[attr-defined]
    return answer(await client.post(path, json={"query": QUERY, "documents": TEXTS, **fields}, headers=headers))


@pytest.mark.strangers
@pytest.mark.parametrize(
    ("key", "told"), [("chat", ["default", "fast", "rag", "strict"]), ("plain", ["default", "fast", "strict"])]
)
async def test_unknown_policy_error_hides_policies_of_other_keys(
    client: httpx.AsyncClient, key: str, told: list[str]
) -> None:
    """The names of policies may be those of customers."""
    headers = {"authorization": f"Bearer {client.extensions[key]}"}  # type: ignore[attr-defined]
    body = {"query": QUERY, "pool": TEXTS, "documents": TEXTS, "texts": TEXTS}
    for path in ("/p/nosuch/select", "/p/nosuch/v1/rerank", "/p/nosuch/rerank", "/p/nosuch@5/select"):
        response = await client.post(path, json=body, headers=headers)
        assert response.status_code == 404 and f"there is {', '.join(told)}" in response.text
    models = answer(await client.get("/v1/models", headers=headers))["data"]
    assert [model["id"] for model in models[1:]] == told


@pytest.mark.parametrize(
    ("asked", "policy", "budget"),
    [
        ({}, "default", 12),
        ({"model": "owner/model@2024"}, "default", 12),
        ({"model": "fast"}, "fast", 8),
        ({"model": "owner/model@0.5"}, "default", 12),
        ({"model": "fast@0.5"}, "fast", 20),
        ({"model": "fast@auto"}, "fast", 40),
        ({"model": "default@0.35"}, "default", 14),
        ({"budget": 0.2}, "default", 8),
        ({"model": "rag"}, "rag", 7),
        ({"key": "chat"}, "rag", 7),
        ({"key": "chat", "model": "fast"}, "fast", 8),
        ({"path": "/p/default@0.2/v1/rerank", "key": "chat"}, "default", 8),
        ({"path": "/p/rag@auto/v1/rerank"}, "rag", 40),
        ({"path": "/p/fast/v1/rerank"}, "fast", 8),
        ({"path": "/p/fast/rerank", "key": "chat", "model": "rag"}, "fast", 8),
        ({"path": "/p/fast@0.5/v2/rerank", "model": "rag@5"}, "fast", 20),
        ({"path": "/p/fast/v2/rerank", "budget": 5}, "fast", 5),
    ],
)
async def test_policy_is_chosen_by_path_model_or_key(
    client: httpx.AsyncClient, asked: dict[str, Any], policy: str, budget: int
) -> None:
    body = await reranked(client, **asked)
    ours = body["boundarymorph"]
    assert (ours["policy"], ours["budget"], ours["cross_encoder_calls"]) == (policy, budget, budget)
    assert len(body["results"]) == len(TEXTS)


async def test_policy_sets_the_budget_of_a_selection(client: httpx.AsyncClient) -> None:
    body = {"query": QUERY, "pool": TEXTS, "k": 5}
    for path, fields, policy, budget in (
        ("/select", {}, "default", 12),
        ("/p/fast/select", {}, "fast", 8),
        ("/p/fast/select", {"B": 3}, "fast", 3),
        ("/p/fast/select", {"pool": {"documents": TEXTS}}, "fast", 8),
        ("/p/rag/select", {}, "rag", 7),
        ("/p/rag@0.5/select", {}, "rag", 20),
    ):
        found = answer(await client.post(path, json=body | fields))
        assert (found["policy"], found["usage"]["budget"]) == (policy, budget), path
    strict = answer(await client.post("/p/strict/select", json=body | {"pool": [*TEXTS[:4]] * 2, "k": 8}))
    texts = [TEXTS[int(document["id"]) % 4] for document in strict["documents"]]
    assert max(Counter(texts).values(), default=1) == 1 and strict["min_relevance"] == 0.5


async def test_unknown_policy_is_refused(client: httpx.AsyncClient) -> None:
    refused = await client.post("/p/slow/select", json={"query": QUERY, "pool": TEXTS})
    assert "default, fast, strict" in problem(refused, 404, "unknown-policy")
    assert (await client.post("/p/slow/v2/rerank", json={"query": QUERY, "documents": TEXTS})).status_code == 404
    for budget in ("1.5", "0.0", "-1", "20%", "", "x" * 500):
        by_name = await client.post("/v1/rerank", json={"query": QUERY, "documents": TEXTS, "model": f"fast@{budget}"})
        assert by_name.status_code == 400 and "(@0.2)" in by_name.json()["message"]
        by_path = await client.post(f"/p/fast@{quote(budget)}/v1/rerank", json={"query": QUERY, "documents": TEXTS})
        assert by_path.status_code == 400 and len(by_path.text) < 1_000
        refused = await client.post(f"/p/fast@{quote(budget)}/select", json={"query": QUERY, "pool": TEXTS})
        problem(refused, 422, "invalid-input")
    assert (await client.post("/p/fast/nothing", json={})).status_code == 404


def test_policy_settings_refuse_invalid_budgets() -> None:
    for budget in (-1, 1.0, 1.5, 0.0, "20%", "all"):
        for section in (PolicySettings, RerankSettings):
            with pytest.raises(ValidationError, match="budget"):
                section(budget=budget)
    for budget in (7, "7", 0.2, "0.2", "auto", 0):
        assert str(RerankSettings(budget=budget).budget) == str(budget)
    with pytest.raises(ValidationError, match="over limits"):
        Settings(policies={"much": PolicySettings(budget=2_001)})
    with pytest.raises(ValidationError, match=r"rerank\.budget is 2,001, over limits"):
        Settings(rerank=RerankSettings(budget=2_001))
    assert Settings(policies={"much": PolicySettings(budget=2_000)}, rerank=RerankSettings(budget=2_000))
    with pytest.raises(ValidationError, match="a key has one policy"):
        Settings(policies={name: PolicySettings(for_keys=("chat",)) for name in ("a", "b")})
    with pytest.raises(ValidationError):
        Settings(policies={"Two words": PolicySettings()})
    with pytest.raises(InvalidConfiguration, match="no key named 'chat'"):
        Policies(Settings(policies=POLICIES), {"plain"})
    policies = Policies(Settings(), set())
    with pytest.raises(UnknownPolicy):
        policies.resolve("", "fast")
    with pytest.raises(InvalidInput):
        policies.resolve("", None, "default@0.0")


CHUNKS: list[dict[str, Any]] = [
    {"text": f"chunk {number}", "doc": {"id": number // 4}} if number < 36 else {"text": f"chunk {number % 4}"}
    for number in range(40)
]
CHUNK_SCORES = [score_of(QUERY, chunk["text"]) for chunk in CHUNKS]


@pytest.mark.parametrize("budget", [None, 20])
@pytest.mark.parametrize(
    ("fields", "at_most", "count"),
    [
        ({"group_by": "doc.id", "top_n": 5}, 1, 5),
        ({"distinct": "doc.id"}, 1, 13),  # 9 documents, and 4 chunks without a document
        ({"distinct": {"by": "doc.id", "at_most": 2}, "top_n": 7}, 2, 7),
    ],
)
async def test_rerank_groups_chunks_by_document(
    client: httpx.AsyncClient, budget: int | None, fields: dict[str, Any], at_most: int, count: int
) -> None:
    results = (await reranked(client, documents=CHUNKS, model="default@auto", **fields, budget=budget))["results"]
    assert len(results) == count
    groups = [CHUNKS[result["index"]].get("doc", {}).get("id") for result in results]
    assert [result.get("group") for result in results] == groups
    assert max(Counter(group for group in groups if group is not None).values()) <= at_most
    scores = [result["relevance_score"] for result in results]
    assert scores == sorted(scores, reverse=True)
    if budget is None:
        assert scores == [CHUNK_SCORES[result["index"]] for result in results] and scores[0] == max(CHUNK_SCORES)
