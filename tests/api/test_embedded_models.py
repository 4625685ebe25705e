"""The service on its embedded models: the numbers that come out are the models' own."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from boundarymorph.scoring.scorer import OnnxCrossEncoder
from boundarymorph.server import composition
from boundarymorph.settings import CacheSettings, Settings
from tests.fakes.service import answer, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUERY = "string instruments"
DOCUMENTS: list[dict[str, Any]] = [
    {"id": "violin", "text": "A violin has four strings, tuned in fifths.", "title": "Violin"},
    {"id": "cello", "text": "The cello is played sitting, held between the knees."},
    {"id": "tram", "text": "Trams leave every ten minutes.", "metadata": {"line": 4}},
    {"id": "bread", "text": "Yeast makes the dough rise overnight."},
    {"id": "guitar", "text": "Guitars are plucked or strummed."},
    {"id": "tax", "text": "The tax return is due in July."},
    {"id": "harp", "text": "A harp stands upright; its strings are plucked with the fingers."},
    {"id": "long", "text": "Rivers carry stones down to the sea. " * 120},
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(data_directory=tmp_path_factory.mktemp("data"), cache=CacheSettings(enabled=False))
    async with serving(settings, composition.build) as client:
        answer(await client.put("/indexes/few"))
        report = answer(await client.post("/indexes/few/documents", json=DOCUMENTS))
        assert (report["added"], report["truncated"]) == (8, 1)
        yield client


async def test_scores_are_the_cross_encoder_s(client: httpx.AsyncClient) -> None:
    request = {"query": QUERY, "index": "few", "k": 7, "budget": 8, "rounds": 3, "return_documents": True}
    body = answer(await client.post("/select", json=request))
    model = OnnxCrossEncoder.embedded()
    for document in body["documents"]:
        title = f"{document['title']}\n" if document["title"] else ""
        (score,) = model.run(model.tokenize(QUERY, [title + document["text"]]))
        assert document["cross_encoder_score"] == pytest.approx(score, rel=1e-6)
        assert document["std"] == 0
    expected = {"cross_encoder_calls": 8, "cached_scores": 0, "truncated_documents": 1, "rounds": 1, "trips": 1}
    assert body["usage"].items() >= expected.items()
    assert any(warning["slug"] == "scoring-truncated" for warning in body["warnings"])
    assert body["timings_ms"]["score"] > 0
