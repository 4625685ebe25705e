"""Test POST /select with texts without embeddings, which get BM25 and vectors of words."""

import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio

from boundarymorph.inference.concurrency import CallerGone
from boundarymorph.retrieval import lexical_vectors as lexical
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.selection.methods import METHODS
from boundarymorph.settings import Settings
from tests.fakes.service import answer, faked, serving
from tests.patience import PATIENCE
from tests.retrieval.bm25 import literal_bm25
from tests.retrieval.fakes import SeededEncoder, vector_of

QUERY = "tram driver"
TEXTS = ["a violin", "the tram stops", "the tram driver", "etc", "driver of a tractor", "the tram of the tram driver"]
MEMBERS = [*TEXTS, *(f"filler number {number} about a tram" for number in range(150))]


class CountedEncoder(SeededEncoder):
    """An encoder that counts the texts it encodes."""

    texts = 0

    async def encode_query(self, query: str, caller: str = "") -> Any:
        self.texts += 1
        return await super().encode_query(query)

    async def encode_documents(self, texts: Sequence[str], caller: str = "") -> Embeddings:
        self.texts += len(texts)
        return await super().encode_documents(texts)


ENCODER = CountedEncoder()


built = faked(encoder=ENCODER)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(Settings(data_directory=tmp_path_factory.mktemp("lexical")), build=built) as client:
        yield client


async def select(client: httpx.AsyncClient, texts: Any = TEXTS, **more: Any) -> dict[str, Any]:
    """Return the answer for k = N - 1 without calls; the ids are positions."""
    pool = more.pop("pool", [{"text": text} for text in texts])
    body = {"query": QUERY, "pool": pool, "budget": 0, "k": len(pool) - 1, **more}
    return answer(await client.post("/select", json=body))


def ranked(body: dict[str, Any]) -> list[tuple[int, float]]:
    """Return the positions and retrieval scores of the documents, in retrieval order."""
    documents = sorted(body["documents"], key=lambda document: document["retrieval_rank"])
    return [(int(document["id"]), document["retrieval_score"]) for document in documents]


async def test_pool_without_scores_is_ordered_by_bm25(client: httpx.AsyncClient) -> None:
    before = ENCODER.texts
    for texts in (TEXTS, MEMBERS):
        body = await select(client, texts)
        assert body["vectors"] == "lexical"
        assert body["warnings"] == []
        expected = literal_bm25(QUERY, texts)
        order = sorted(range(len(texts)), key=lambda place: (-expected[place], place))
        assert len(body["documents"]) == len(texts) - 1
        for document in body["documents"]:
            place = int(document["id"])
            assert document["retrieval_rank"] == order.index(place) + 1
            assert document["retrieval_score"] == pytest.approx(expected[place])
    assert ENCODER.texts == before


async def test_pool_with_scores_is_ordered_by_them(client: httpx.AsyncClient) -> None:
    before = ENCODER.texts
    pool = [{"text": text, "score": number % 3} for number, text in enumerate(TEXTS)]
    for more in ({}, {"ranked": True}):
        body = await select(client, pool=pool, **more)
        assert ranked(body) == [(2, 2), (5, 2), (1, 1), (4, 1), (0, 0)]
        assert body["vectors"] == "lexical"
    assert ENCODER.texts == before


async def test_ranked_pool_keeps_the_order_given(client: httpx.AsyncClient) -> None:
    body = await select(client, ranked=True)
    assert ranked(body) == [(place, 1 / (61 + place)) for place in range(5)]
    vectors = [vector_of(text).tolist() for text in TEXTS]
    given = [{"text": text, "embedding": vector} for text, vector in zip(TEXTS, vectors, strict=True)]
    assert [place for place, _ in ranked(await select(client, pool=given, ranked=True))] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("texts", [TEXTS, MEMBERS, ["same"] * 200, ["北京大学", "人民", "大学生"] * 3])
async def test_every_method_scores_distinct_texts_of_a_lexical_pool(
    client: httpx.AsyncClient, method: str, texts: list[str]
) -> None:
    bodies = [await select(client, texts, budget=4, k=2, rounds=2, method=method, reuse=False) for _ in range(2)]
    first, again = bodies
    assert first["usage"]["cross_encoder_calls"] == min(4, len(set(texts)))
    assert first["documents"] == again["documents"]


async def test_pool_is_encoded_when_encoder_vectors_are_requested(client: httpx.AsyncClient) -> None:
    before = ENCODER.texts
    body = await select(client, vectors="encoder")
    assert body["vectors"] == "encoder"
    assert ENCODER.texts == before + len(TEXTS) + 1
    similarity = [float(vector_of(text) @ vector_of(QUERY)) for text in TEXTS]
    assert [place for place, _ in ranked(body)] == np.argsort(np.negative(similarity))[:-1].tolist()


async def test_pool_keeps_bm25_order_when_vectors_miss_the_deadline(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that computes the vectors is freed."""
    ended = threading.Event()

    def endless(matrix: Any, *_: object, **__: object) -> None:
        try:
            while True:
                matrix.times(np.ones(matrix.shape[1], dtype=np.float32))
        except CallerGone:
            ended.set()
            raise

    monkeypatch.setattr(lexical, "_lanczos", endless)
    body = await select(client, MEMBERS, deadline_ms=300, budget=5)
    assert (body["status"], body["stop_reason"], body["vectors"]) == ("retrieval_only", "deadline", "none")
    expected = literal_bm25(QUERY, MEMBERS)
    assert [place for place, _ in ranked(body)] == sorted(range(len(MEMBERS)), key=lambda n: (-expected[n], n))[:-1]
    assert ended.wait(PATIENCE)
