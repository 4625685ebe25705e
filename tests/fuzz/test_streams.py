"""Test damaged base64 blocks, uploads in odd pieces, and damaged pool frames."""

import asyncio
import base64
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from boundarymorph.retrieval.uploads import parse_ndjson
from boundarymorph.server.app import create_app
from boundarymorph.settings import Settings
from tests.fakes.service import NDJSON, answer, block, fake_service, on_socket, ready, texts
from tests.patience import PATIENCE
from tests.stateful.profile import times

many = settings(
    max_examples=times(40, 1_000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """Yield the URL of a service with the empty index "own" of dimension 4."""
    app = create_app(Settings(data_directory=tmp_path), build=fake_service)
    async with on_socket(app) as url, httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        await ready(client)
        answer(await client.put("/indexes/own", json={"dimension": 4}))
        yield url


@pytest.fixture
async def client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        yield client


def check_typed(response: httpx.Response) -> None:
    """Check that a response is a success or a typed problem."""
    assert response.status_code < 500, response.text
    if not response.is_success:
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["type"].startswith("urn:boundarymorph:problem:")


def mutate(given: bytes, chance: random.Random) -> bytes:
    """Change, remove, insert, or double a few bytes, or cut the end off."""
    data = bytearray(given)
    for _ in range(chance.randint(1, 5)):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0 if place < len(data):
                data[place] = chance.randrange(256)
            case 1:
                del data[place : place + chance.randint(1, 9)]
            case 2:
                data[place:place] = chance.randbytes(chance.randint(1, 9))
            case 3:
                data[place:place] = data[place : place + chance.randint(1, 50)]
            case _ if chance.random() < 0.2:
                del data[place:]
    return bytes(data)


class TestBlocks:
    def body(self, given: dict[str, Any], count: int) -> dict[str, Any]:
        pool = {"documents": texts(count), "embeddings": given}
        return {"query": "q", "query_embedding": [1.0, 0.5, 0.0, 0.0], "pool": pool, "budget": 2, "k": 2}

    @many
    @given(
        raw=st.binary(max_size=64),
        shape=st.lists(st.integers(0, 5) | st.sampled_from([2**31, 2**63, 2**64]), max_size=3),
        dtype=st.sampled_from(["float16", "float32"]),
        url_safe=st.booleans(),
        count=st.integers(1, 4),
    )
    async def test_base64_block_of_any_bytes_is_answered_or_refused(
        self, client: httpx.AsyncClient, raw: bytes, shape: list[int], dtype: str, url_safe: bool, count: int
    ) -> None:
        encode = base64.urlsafe_b64encode if url_safe else base64.b64encode
        given = {"data": encode(raw).decode(), "shape": shape, "dtype": dtype}
        check_typed(await client.post("/select", json=self.body(given, count)))
        check_typed(await client.post("/select", json=self.body({}, count) | {"query_embedding": given}))

    @many
    @given(seed=st.integers(0, 2**32))
    async def test_damaged_base64_block_is_answered_or_refused(self, client: httpx.AsyncClient, seed: int) -> None:
        chance = random.Random(seed)
        vectors = np.random.default_rng(seed).standard_normal((3, 4))
        good = block(vectors, chance.choice(["float16", "float32"]))
        bad = mutate(good["data"].encode(), chance).decode("latin-1")
        check_typed(await client.post("/select", json=self.body(good | {"data": bad}, 3)))
        check_typed(await client.post("/select", content=mutate(json.dumps(self.body(good, 3)).encode(), chance)))


def lines(count: int) -> bytes:
    return b"".join(
        orjson.dumps(
            {"id": f"e{i}", "text": f"naïve 文字 {i}", "metadata": {"i": i}, "embedding": [float(i), 1.0, 0.0, 0.5]},
            option=orjson.OPT_APPEND_NEWLINE,
        )
        for i in range(count)
    )


async def random_pieces(data: bytes, chance: random.Random) -> AsyncIterator[bytes]:
    """Yield data in pieces of odd sizes."""
    start = 0
    while start < len(data):
        end = start + chance.choice([1, 2, 3, 7, 61, 500])
        yield data[start:end]
        start = end


class TestUploads:
    @settings(max_examples=times(100, 5_000), deadline=None)
    @given(seed=st.integers(0, 2**32), longest=st.sampled_from([20, 90, 10_000]))
    async def test_ndjson_parser_ignores_how_bytes_are_cut(self, seed: int, longest: int) -> None:
        chance = random.Random(seed)
        data = mutate(lines(4), chance)

        async def parsed(pieces: AsyncIterator[bytes]) -> list[str]:
            async with asyncio.timeout(PATIENCE):
                return [repr(entry) async for entry in parse_ndjson(pieces, 4, max_line_bytes=longest)]

        async def whole() -> AsyncIterator[bytes]:
            yield data

        assert await parsed(random_pieces(data, chance)) == await parsed(whole())

    @many
    @given(seed=st.integers(0, 2**32), strict=st.booleans())
    async def test_damaged_upload_is_answered_or_refused(
        self, client: httpx.AsyncClient, seed: int, strict: bool
    ) -> None:
        chance = random.Random(seed)
        pieces = random_pieces(mutate(lines(4), chance), chance)
        path = f"/indexes/own/documents?strict={str(strict).lower()}"
        response = await client.post(path, content=pieces, headers=NDJSON)
        check_typed(response)
        if response.is_success:
            report = response.json()
            assert (await client.get("/indexes/own")).json()["count"] >= report["added"]
