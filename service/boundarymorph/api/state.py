"""What the routes of a process share: the settings and, once it stands, what is behind them."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Generic, Protocol, TypeVar

from fastapi import Depends, Request

from boundarymorph.api.admission import Admission
from boundarymorph.api.keys import KeyRing, Scope
from boundarymorph.api.problems import NotReady
from boundarymorph.errors import (
    BoundaryMorphError,
    EncoderUnavailable,
    Overloaded,
    RetrieverUnavailable,
    ScorerUnavailable,
)
from boundarymorph.retrieval.retriever import Retriever
from boundarymorph.scoring.batching import BatchingScorer
from boundarymorph.selector import Selector
from boundarymorph.settings import Settings
from boundarymorph.wiring import Gateway, Retrieval, Rooms

RETRY_SECONDS = 1.0  # between canaries while another process is not there yet
NOT_YET = (ScorerUnavailable, EncoderUnavailable, RetrieverUnavailable, Overloaded)  # what another process may say then
log = logging.getLogger(__name__)


class Part(Protocol):
    """What a process serves."""

    async def check(self) -> None:
        """Warm up and let a canary through. Raises what keeps it from working."""

    async def close(self) -> None:
        """Release everything."""


Built = TypeVar("Built", bound=Part)
Build = Callable[[Settings, Callable[[], None]], Built]  # the second: to be called when it is broken for good


@dataclass(slots=True)
class State(Generic[Built]):
    """A process from its start to its end.

    built: what it serves, as soon as that stands; ready: a canary came back, and nothing broke since; waiting: for
    what; failure: why there is nothing to wait for; draining: it was told to stop.
    """

    settings: Settings
    on_failure: Callable[[], None] = lambda: None
    built: Built | None = None
    ready: bool = False
    waiting: str = "the models are loading"
    failure: str | None = None
    draining: bool = False
    keys: KeyRing = field(init=False)
    admission: Admission = field(init=False)

    def __post_init__(self) -> None:
        """Raises InvalidConfiguration for malformed keys."""
        self.keys = KeyRing(self.settings.keys)
        limits = self.settings.limits
        self.admission = Admission(running=limits.sessions, waiting=limits.waiting)

    async def start(self, build: Build[Built]) -> None:
        """Build, warm up, be ready; a failure is for `on_failure`, except that another process is waited for."""
        try:
            self.built = await asyncio.to_thread(build, self.settings, self._break)
            await self._check(self.built)
        except Exception as error:
            log.error("the service cannot start: %s", error, exc_info=not isinstance(error, BoundaryMorphError))
            self._fail(str(error) or repr(error))
        else:
            # What stands now stays; without this, parsing one large pool makes the collector walk through it all again.
            gc.collect()
            gc.freeze()
            self.ready = True
            log.info("ready")

    def require(self) -> Built:
        """Raises NotReady before the canary has come back, and after a breakdown."""
        if self.built is None or not self.ready:
            raise NotReady(self.failure or f"{self.waiting}; try again in a second")
        return self.built

    async def _check(self, built: Built) -> None:
        while True:
            try:
                return await built.check()
            except NOT_YET as error:
                if self.failure is not None:
                    raise
                self.waiting = str(error)
                log.warning("not ready: %s", error)
                await asyncio.sleep(RETRY_SECONDS)

    def _break(self) -> None:
        self._fail("the device is lost; a new process is needed")

    def _fail(self, reason: str) -> None:
        self.ready, self.failure = False, reason
        self.on_failure()


def state(request: Request) -> State[Part]:
    found: State[Part] = request.app.state.boundarymorph
    return found


def allowed(scope: Scope) -> Callable[[Request], str]:
    """The dependency of a route that only keys of this scope may use: the caller's name."""

    def caller(request: Request) -> str:
        return state(request).keys.caller(request.headers.get("authorization"), scope)

    return caller


def selector(request: Request) -> Selector:
    found: State[Rooms] | State[Gateway] = request.app.state.boundarymorph
    return found.require().selector


def indexes(request: Request) -> Rooms | Retrieval:
    found: State[Rooms] | State[Retrieval] = request.app.state.boundarymorph
    return found.require()


def scorer(request: Request) -> BatchingScorer:
    found: State[BatchingScorer] = request.app.state.boundarymorph
    return found.require()


def retriever(request: Request) -> Retriever:
    found: State[Retrieval] = request.app.state.boundarymorph
    return found.require().retriever


def gateway(request: Request) -> Gateway:
    found: State[Gateway] = request.app.state.boundarymorph
    return found.require()


StateOf = Annotated[State[Part], Depends(state)]
CallerOf = Annotated[str, Depends(allowed(Scope.SELECT))]
SelectorOf = Annotated[Selector, Depends(selector)]
IndexesOf = Annotated[Rooms | Retrieval, Depends(indexes)]
ScorerOf = Annotated[BatchingScorer, Depends(scorer)]
RetrieverOf = Annotated[Retriever, Depends(retriever)]
GatewayOf = Annotated[Gateway, Depends(gateway)]
