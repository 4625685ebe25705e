"""Test that an instruction in a request reaches the model, over real sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from boundarymorph.api.lifecycle import Parts
from boundarymorph.caching.scores import MemoryScoreCache
from boundarymorph.errors import InvalidInput
from boundarymorph.scoring.remote import RemoteScorer, parse
from boundarymorph.scoring.scorer import BatchingScorer, Scorer, TakesNoInstruction
from boundarymorph.server.app import create_scorer_app
from boundarymorph.settings import Settings
from tests.fakes.service import faked, listening, serving
from tests.scoring.transformer import reference, tiny
from tests.scoring.transformer.conftest import Folder
from tests.scoring.transformer.test_model import WITH_ROOM, load
from tests.scoring.transformer.tiny import QUERY

FIND = "Find timetables"
TEXTS = [text for text in tiny.TEXTS if text]
ROOMY = [text for text in WITH_ROOM if text]
MODELS = "Qwen3-Reranker-tiny"


@asynccontextmanager
async def gateway(scorer: Scorer, directory: Path, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a service with this scorer and a score cache."""
    parts = faked(scorer, cache=MemoryScoreCache())
    async with serving(Settings(data_directory=directory, **settings), parts) as client:
        yield client


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[RemoteScorer]:
    """Yield a client of a scorer application on a socket."""

    def build(settings: Settings, *_: object) -> Parts:
        return Parts(scorer=BatchingScorer(load(folder)))

    app = create_scorer_app(Settings(), build=build)
    async with listening(app) as (url, _):
        scorer = RemoteScorer([parse(url)])
        try:
            yield scorer
        finally:
            await scorer.close()


def selection(**more: Any) -> dict[str, Any]:
    return {"query": QUERY, "pool": TEXTS, "ranked": True, "budget": len(TEXTS), "k": len(TEXTS), **more}


def scores(answer: httpx.Response) -> dict[str, float]:
    return {document["id"]: document["relevance"] for document in answer.raise_for_status().json()["documents"]}


async def test_instruction_of_a_request_reaches_the_model(folder: Folder, tmp_path: Path) -> None:
    told = reference.yes_against_no(folder(MODELS), QUERY, TEXTS, FIND)
    untold = reference.yes_against_no(folder(MODELS), QUERY, TEXTS)
    assert np.abs(told - untold).max() > 1e-3
    async with served(folder(MODELS)) as scorer, gateway(scorer, tmp_path) as client:
        for instruction, expected in ((None, untold), (FIND, told), (None, untold), (FIND, told)):
            fields = {} if instruction is None else {"instruction": instruction}
            found = scores(await client.post("/select", json=selection(**fields)))
            np.testing.assert_allclose([found[str(place)] for place in range(len(TEXTS))], expected, rtol=0, atol=1e-5)
            body = {"query": QUERY, "documents": TEXTS, **fields}
            answer = (await client.post("/v2/rerank", json=body)).raise_for_status().json()
            ranked = {result["index"]: result["relevance_score"] for result in answer["results"]}
            np.testing.assert_allclose([ranked[place] for place in range(len(TEXTS))], expected, rtol=0, atol=1e-5)
            assert answer["boundarymorph"]["warnings"] == []
            assert answer["boundarymorph"]["cross_encoder_calls"] == 0, "scores of one instruction are known by it"


async def test_instruction_is_refused_or_warned_of_if_unsupported(folder: Folder, tmp_path: Path) -> None:
    """POST /select refuses the instruction; the rerank routes warn of it."""
    async with served(folder("bert")) as scorer, gateway(scorer, tmp_path) as client:
        refused = await client.post("/select", json=selection(instruction=FIND))
        assert refused.status_code == 422 and "takes none" in refused.json()["detail"]
        body = {"query": QUERY, "documents": ROOMY}
        plain, empty, told = [
            (await client.post("/rerank", json=asked)).raise_for_status().json()
            for asked in (body, body | {"instruction": ""}, body | {"instruction": FIND})
        ]
        assert told["results"] == empty["results"] == plain["results"]
        assert "warnings" not in empty["meta"]
        assert sum("instruction had no effect" in warning for warning in told["meta"]["warnings"]) == 1
        with pytest.raises(TakesNoInstruction):
            await BatchingScorer(load(folder("bert"))).score(QUERY, TEXTS, instruction=FIND)


async def test_instruction_that_fills_the_prompt_is_refused(folder: Folder) -> None:
    scorer = BatchingScorer(load(folder(MODELS), max_length=500))
    try:
        with pytest.raises(InvalidInput, match="no room"):
            await scorer.score(QUERY, TEXTS, instruction="timetables " * 1000)
    finally:
        await scorer.close()
