"""Every application of ours on a real socket, with small indexes: what the fuzzers knock at."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Literal

import httpx
import orjson
from fastapi import FastAPI
from pydantic import SecretStr

from boundarymorph.access import callers
from boundarymorph.access.callers import Scope
from boundarymorph.api.lifecycle import Parts
from boundarymorph.retrieval.remote import RemoteRetriever
from boundarymorph.scoring.scorer import BatchingScorer
from boundarymorph.selector.selector import Selector
from boundarymorph.server.app import create_app, create_retriever_app, create_scorer_app
from boundarymorph.server.composition import build, build_retrieval, build_scoring
from boundarymorph.settings import RetrieverSettings, Settings
from tests.api.service import NDJSON, answer, fake_retrieval, fake_service, on_socket, ready, texts
from tests.fakes.scorer import SeededCrossEncoder, SeededScorer
from tests.patience import PATIENCE

App = Literal["whole", "gateway", "retriever", "scorer"]
SECRET, KEY = callers.make_key("fuzzer", list(Scope))
APPS: tuple[App, ...] = ("whole", "gateway", "retriever", "scorer")


@asynccontextmanager
async def serving(app: App, directory: Path, *, embedded: bool) -> AsyncIterator[httpx.AsyncClient]:
    """A client, with a key, of an application that is ready. embedded: with the embedded models, or with cheap ones."""
    settings = Settings(data_directory=directory, threads=1, keys=(str(KEY),))
    headers = {"authorization": f"Bearer {SECRET}"}
    async with (
        started(app, settings, SECRET, embedded=embedded) as (_, url),
        httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE) as client,
    ):
        await ready(client)
        if app != "scorer":
            await _fill(client)
        yield client


@asynccontextmanager
async def started(
    app: App, settings: Settings, secret: str, *, embedded: bool = False
) -> AsyncIterator[tuple[FastAPI, str]]:
    """An application on a socket, and its URL. secret: of the key with which a gateway calls its retriever."""
    async with AsyncExitStack() as stack:
        match app:
            case "whole":
                made = create_app(settings, build=build if embedded else fake_service)
            case "retriever":
                made = create_retriever_app(settings, build=build_retrieval if embedded else fake_retrieval)
            case "scorer":
                made = create_scorer_app(settings, build=build_scoring if embedded else _cheap_scorer)
            case "gateway":
                _, url = await stack.enter_async_context(started("retriever", settings, secret, embedded=embedded))
                retriever = RetrieverSettings(url=url, api_key=SecretStr(secret))
                made = create_app(settings.model_copy(update={"retriever": retriever}), build=_cheap_gateway)
        yield made, await stack.enter_async_context(on_socket(made))


async def _fill(client: httpx.AsyncClient) -> None:
    """The indexes "texts" (d0 to d39) and "own" (e0 to e3, the unit vectors)."""
    answer(await client.put("/indexes/texts"))
    lines = b"\n".join(orjson.dumps(document | {"metadata": {"year": 2020}}) for document in texts(40))
    assert answer(await client.post("/indexes/texts/documents", content=lines, headers=NDJSON))["added"] == 40
    answer(await client.put("/indexes/own", json={"dimension": 4}))
    units = [{"id": f"e{i}", "text": f"unit {i}", "embedding": [float(i == j) for j in range(4)]} for i in range(4)]
    assert answer(await client.post("/indexes/own/documents", json=units))["added"] == 4


def _cheap_scorer(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> Parts:
    return Parts(scorer=BatchingScorer(SeededCrossEncoder(), on_lost=on_lost))


def _cheap_gateway(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> Parts:
    given, scorer = settings.retriever, SeededScorer()
    assert given.api_key is not None
    retriever = RemoteRetriever(*given.url, api_key=given.api_key.get_secret_value())
    return Parts(retriever=retriever, scorer=scorer, selector=Selector(retriever, scorer))
