"""Provide the applications as deployments of Ray Serve (`[ray]` extra).

`deploy/ray/rayservice.yaml` names them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve import Application

from boundarymorph.settings import Settings

Values = dict[str, Any]  # settings, as Settings.load takes them


def gateway(values: Values) -> Application:
    """Return the gateway.

    It can answer without its scorers, so it is replaced only if it has failed itself.
    """
    return _application("gateway", values, {"failed"})


def retriever(values: Values) -> Application:
    """Return a retriever for the indexes of its node or of a store.

    It is replaced if they do not answer.
    """
    return _application("retriever", values, {"failed", "unready"})


def scorer(values: Values) -> Application:
    """Return a scorer; it is replaced if its cross-encoder does not answer."""
    return _application("scorer", values, {"failed", "unready"})


def _application(role: str, values: Values, unhealthy: Collection[str]) -> Application:
    def create() -> FastAPI:
        app = _create(role)(Settings.load(**values))
        app.state.lifecycle.listen_when_ready = True  # Ray Serve then sends it no requests before it is ready
        return app

    class Replica:
        app: FastAPI

        async def check_health(self) -> None:
            ready = self.app.state.lifecycle.health()
            if ready.status in unhealthy:
                raise RuntimeError(ready.detail)

    application: Application = serve.deployment(name=role)(serve.ingress(create)(Replica)).bind()
    return application


def _create(role: str) -> Callable[[Settings], FastAPI]:
    from boundarymorph.server import app

    return {"gateway": app.create_app, "retriever": app.create_retriever_app, "scorer": app.create_scorer_app}[role]
