"""The applications as deployments of Ray Serve: the very same ASGI applications, behind its proxies (`[ray]` extra).

`boundarymorph ray` prints the configuration that names the functions here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve import Application

from boundarymorph.settings import Settings

Values = dict[str, Any]  # of settings, as Settings.load takes them


def gateway(values: Values) -> Application:
    """The service in front of others. It answers without them, so it is replaced only when it has failed itself."""
    return _application("gateway", values, {"failed"})


def retriever(values: Values) -> Application:
    """The indexes of the node that it runs on, or of Milvus; replaced when they do not answer."""
    return _application("retriever", values, {"failed", "unready"})


def scorer(values: Values) -> Application:
    """A cross-encoder; replaced when it does not answer."""
    return _application("scorer", values, {"failed", "unready"})


def _application(role: str, values: Values, unhealthy: Collection[str]) -> Application:
    def create() -> FastAPI:
        app = _create(role)(Settings.load(**values))
        app.state.lifecycle.listen_when_ready = True  # a replica gets requests once it is ready
        return app

    class Replica:
        app: FastAPI

        async def check_health(self) -> None:
            """What /readyz says. Raises RuntimeError where another replica should take its place."""
            ready = self.app.state.lifecycle.health()
            if ready.status in unhealthy:
                raise RuntimeError(ready.detail)

    application: Application = serve.deployment(name=role)(serve.ingress(create)(Replica)).bind()
    return application


def _create(role: str) -> Callable[[Settings], FastAPI]:
    from boundarymorph.server import app

    return {"gateway": app.create_app, "retriever": app.create_retriever_app, "scorer": app.create_scorer_app}[role]
