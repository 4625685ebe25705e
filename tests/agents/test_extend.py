"""The tool that extends scores which the caller has, by the SDK's own client."""

from __future__ import annotations

from typing import Any

from boundarymorph.agents import tools
from boundarymorph.library import extend
from boundarymorph.settings import AgentSettings
from tests.agents.conftest import Running, Serve, Transport, structured
from tests.api.service import answer

QUERY = "a house by the sea"
TEXTS = [
    *(f"a {kind} house {place} the sea" for kind in ("small", "white", "old", "new") for place in ("by", "near", "on")),
    *(f"a {kind} engine of a {of}" for kind in ("petrol", "diesel", "steam") for of in ("car", "train", "ship")),
]
SCORES = [0.9, None, 0.8, 0.85, None, None, None, None, None, None, None, None, 0.05, 0.1]


async def test_the_best_of_all_by_the_scores_of_some(service: Running) -> None:
    """As the library has it; nothing is judged."""
    documents = [
        {"text": text, **({} if score is None else {"cross_encoder_score": score})}
        for text, score in zip(TEXTS, [*SCORES, *[None] * (len(TEXTS) - len(SCORES))], strict=True)
    ]
    expected = extend(QUERY, documents, [], k=12)
    service.scorer.rounds.clear()
    async with service.connect(Transport.HTTP) as client:
        found = await structured(client, "extend_scores", query=QUERY, texts=TEXTS, scores=SCORES, k=12)
    assert [each["id"] for each in found["documents"]] == [each.id for each in expected.documents]
    assert {int(each["id"]) for each in found["documents"]} == set(range(12))
    assert {int(each["id"]) for each in found["documents"] if each["judged"]} == {0, 2, 3}
    for each, same in zip(found["documents"], expected.documents, strict=True):
        assert each["relevance"] == round(same.relevance, 3)
        assert each.get("uncertainty") == (None if each["judged"] else round(same.std, 3))
    assert found["answerable"] == 1.0 and service.scorer.rounds == []


async def test_its_arguments(service: Running) -> None:
    call: dict[str, Any] = {"query": QUERY, "texts": TEXTS, "scores": SCORES}
    async with service.connect(Transport.HTTP) as client:
        assert len((await structured(client, "extend_scores", **call))["documents"]) == tools.DEFAULT_K
        ids = [f"t{place}" for place in range(len(TEXTS))]
        named = await structured(client, "extend_scores", **call, ids=ids, k="2")
        assert all(each["id"] in ids for each in named["documents"]) and len(named["documents"]) == 2
        reached = await structured(client, "extend_scores", **call, min_relevance=0.95)
        assert reached["documents"] == [] and reached["answerable"] < 0.5
        assert tools.UNANSWERED in reached["notes"]


async def test_a_long_answer_is_cut_at_its_end(serve: Serve) -> None:
    texts = [f"text {number}" for number in range(200)]
    async with serve(agents=AgentSettings(answer_tokens=1_000)) as service, service.connect(Transport.HTTP) as client:
        found = await structured(client, "extend_scores", query="q", texts=texts, scores=[0.9, 0.8], k=200)
        assert 10 < len(found["documents"]) < 200
        async with service.api() as api:
            body = {"query": "q", "budget": 0, "k": 200, "ranked": True}
            pool = [{"text": text} for text in texts]
            pool[0]["cross_encoder_score"], pool[1]["cross_encoder_score"] = 0.9, 0.8  # type: ignore[assignment]
            whole = answer(await api.post("/select", json={**body, "pool": pool}))
        assert [each["id"] for each in found["documents"]] == [
            each["id"] for each in whole["documents"][: len(found["documents"])]
        ]
