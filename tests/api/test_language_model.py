"""Test POST /select with a language model as the scorer, over a real socket."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from boundarymorph.access import callers
from boundarymorph.access.callers import Scope
from boundarymorph.api.lifecycle import Parts
from boundarymorph.caching.scores import MemoryScoreCache
from boundarymorph.scoring.build import build_scorer
from boundarymorph.settings import Settings
from tests.fakes.scorer import score_of
from tests.fakes.service import bearer, faked, select, serving
from tests.fakes.wires import Server, running
from tests.scoring.chat.scripted import READ, WRITTEN, Chat

SECRETS = {name: callers.make_key(name, [Scope.SELECT]) for name in ("rag", "batch")}
POOL = [{"id": f"d{number}", "text": f"Text {number} of music.", "score": -float(number)} for number in range(12)]
REQUEST: dict[str, Any] = {"query": "music", "pool": POOL, "budget": 6, "rounds": 3, "k": 4}


def judged(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> Parts:
    """Build a service with a cheap encoder and the scorer of the settings."""
    scorer = build_scorer(settings, on_lost)
    return faked(scorer, cache=MemoryScoreCache())(settings)


@asynccontextmanager
async def service(
    directory: Path, chat: Chat | None = None, **judge: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, Server]]:
    """Yield a ready service and its language model, which has answered one probe."""
    async with running(chat or Chat()) as (server,):
        url = f"openai+http://127.0.0.1:{server.port}/v1?model=scripted"
        settings = Settings(
            data_directory=directory,
            scorer={"url": (url,), "judge": judge},
            keys=tuple(str(key) for _, key in SECRETS.values()),
        )
        async with serving(settings, judged) as client:
            server.asked.clear()
            client.headers.update(bearer(SECRETS["rag"][0]))
            yield client, server


async def test_language_model_grades_become_scores_and_are_cached(tmp_path: Path) -> None:
    async with service(tmp_path) as (client, server):
        first = await select(client, **REQUEST)
        assert first["status"] == "complete" and len(server.asked) == 6
        scored = {d["id"]: d["cross_encoder_score"] for d in first["documents"] if d["source"] == "cross_encoder"}
        texts = {document["id"]: str(document["text"]) for document in POOL}
        assert scored and all(score == pytest.approx(score_of("music", texts[id])) for id, score in scored.items())
        assert first["usage"]["cross_encoder_calls"] == 6
        assert first["usage"]["language_model"] == {"input_tokens": 6 * READ, "output_tokens": 6 * WRITTEN}
        again = await select(client, **REQUEST)
        assert again["usage"]["reused_scores"] == 6 and len(server.asked) == 6
        assert again["usage"]["language_model"] is None
        assert 'boundarymorph_judge_tokens_total{kind="read"}' in (await client.get("/metrics")).text
