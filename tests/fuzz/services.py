"""Run every application on a real socket with small indexes, for the fuzzing tests."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Literal

import httpx
from fastapi import FastAPI
from pydantic import SecretStr

from boundarymorph.access import callers
from boundarymorph.access.callers import Scope
from boundarymorph.api.lifecycle import Parts
from boundarymorph.scoring.scorer import BatchingScorer
from boundarymorph.server.app import create_app, create_retriever_app, create_scorer_app
from boundarymorph.server.composition import build, build_retrieval, build_scoring
from boundarymorph.settings import RetrieverSettings, Settings
from tests.fakes.scorer import SeededCrossEncoder
from tests.fakes.service import fake_gateway, fake_retrieval, fake_service, fill, on_socket, ready
from tests.patience import PATIENCE

App = Literal["whole", "gateway", "retriever", "scorer"]
SECRET, KEY = callers.make_key("fuzzer", list(Scope))
APPS: tuple[App, ...] = ("whole", "gateway", "retriever", "scorer")


@asynccontextmanager
async def serving(app: App, directory: Path, *, embedded: bool) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client with a key of a ready application, with embedded or with cheap models."""
    settings = Settings(data_directory=directory, threads=1, keys=(str(KEY),))
    headers = {"authorization": f"Bearer {SECRET}"}
    async with (
        run_application(app, settings, SECRET, embedded=embedded) as (_, url),
        httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE) as client,
    ):
        await ready(client)
        if app != "scorer":
            await fill(client)
        yield client


@asynccontextmanager
async def run_application(
    app: App, settings: Settings, secret: str, *, embedded: bool = False
) -> AsyncIterator[tuple[FastAPI, str]]:
    """Yield an application and its URL.

    `secret` is the key with which a gateway calls its retriever.
    """
    async with AsyncExitStack() as stack:
        match app:
            case "whole":
                made = create_app(settings, build=build if embedded else fake_service)
            case "retriever":
                made = create_retriever_app(settings, build=build_retrieval if embedded else fake_retrieval)
            case "scorer":
                made = create_scorer_app(settings, build=build_scoring if embedded else _cheap_scorer)
            case "gateway":
                _, url = await stack.enter_async_context(
                    run_application("retriever", settings, secret, embedded=embedded)
                )
                retriever = RetrieverSettings(url=url, api_key=SecretStr(secret))
                made = create_app(settings.model_copy(update={"retriever": retriever}), build=fake_gateway)
        yield made, await stack.enter_async_context(on_socket(made))


def _cheap_scorer(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> Parts:
    return Parts(scorer=BatchingScorer(SeededCrossEncoder(), on_lost=on_lost))
