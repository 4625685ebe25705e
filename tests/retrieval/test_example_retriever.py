"""Test that the example retriever follows docs/architecture.md, and that a service uses it."""

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


async def test_service_selects_from_the_example_retriever(url: str) -> None:
    app = create_app(Settings(retriever=RetrieverSettings(url=(url,))), build=fake_gateway)
    async with client_of(app) as client:
        await ready(client)
        request = {"query": "a violin", "index": "notes", "budget": 2, "k": 2, "return_documents": True}
        chosen = answer(await client.post("/select", json={**request, "filter": {"year": 1600}}))["documents"]
        assert [each["text"] for each in chosen] == ["A violin has four strings."]
        assert len(answer(await client.post("/select", json=request))["documents"]) == 2
    retriever = RemoteRetriever(url)
    pool = (await retriever.retrieve("notes", Search("a violin", 10))).pool
    assert np.abs(pool.embeddings.astype(np.float64) @ pool.query - pool.scores).max() < 1e-3
    with pytest.raises(UnknownIndex):
        await retriever.retrieve("unknown", Search("a violin", 1))
    assert dict(await retriever.characters("notes", ["violin", "unknown"])) == {"violin": 26}
    await retriever.close()
