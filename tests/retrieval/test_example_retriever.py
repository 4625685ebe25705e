"""The retriever of clients/examples fulfils docs/retriever.md, and a service selects from it."""

import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from boundarymorph.errors import UnknownIndex
from boundarymorph.retrieval.document import Search
from boundarymorph.retrieval.remote import RemoteRetriever
from boundarymorph.server.app import create_app
from boundarymorph.settings import RetrieverSettings, Settings
from tests.fakes.service import answer, client_of, fake_gateway, on_socket, ready

EXAMPLE = Path(__file__).parents[2] / "clients" / "examples" / "retriever_over_a_dict.py"
QUERY = "a violin of 1600"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("retriever_over_a_dict", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
async def url(example: ModuleType) -> AsyncIterator[str]:
    async with on_socket(example.app) as url:
        yield url


async def test_example_fulfils_the_contract(url: str, example: ModuleType) -> None:
    retriever = RemoteRetriever(url)
    await retriever.check()
    pool = (await retriever.retrieve("notes", Search(QUERY, 10))).pool
    assert sorted(pool.ids) == ["bread", "tram", "violin"] and pool.ids[0] == "violin"
    assert np.abs(pool.embeddings.astype(np.float64) @ pool.query - pool.scores).max() < 1e-3
    own = await retriever.embed_query(QUERY)
    assert list((await retriever.retrieve("notes", Search("", 10, own))).pool.ids) == list(pool.ids)
    found = await retriever.retrieve("notes", Search(QUERY, 10, filter={"year": 1900}))
    assert list(found.pool.ids) == ["tram"]
    nothing = await retriever.retrieve("notes", Search(QUERY, 10, filter={"page": "x"}))
    assert not len(nothing.pool) and nothing.warnings
    with pytest.raises(UnknownIndex):
        await retriever.retrieve("unknown", Search(QUERY, 1))
    documents = await retriever.documents("notes", ["violin", "unknown", "tram"])
    assert {id: each.text for id, each in documents.items()} == {id: example.TEXTS[id] for id in ("violin", "tram")}
    lengths = await retriever.characters("notes", ["violin", "unknown"])
    assert dict(lengths) == {"violin": len(example.TEXTS["violin"])}
    await retriever.close()


async def test_a_service_selects_from_it(url: str) -> None:
    app = create_app(Settings(retriever=RetrieverSettings(url=(url,))), build=fake_gateway)
    async with client_of(app) as client:
        await ready(client)
        request = {"query": "a violin", "index": "notes", "budget": 2, "k": 2, "return_documents": True}
        chosen = answer(await client.post("/select", json={**request, "filter": {"year": 1600}}))["documents"]
        assert [each["text"] for each in chosen] == ["A violin has four strings."]
        assert len(answer(await client.post("/select", json=request))["documents"]) == 2
