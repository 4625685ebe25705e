"""Models that are not known from the start: those that load after the other parts are built, and those of servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from boundarymorph.errors import BoundaryMorphError


class Named(Protocol):
    """A model, or a client of one. It also has an `identity` if its name is not known from the start, or may change."""

    @property
    def name(self) -> str: ...


def identity_of(model: Named) -> str | None:
    """Return the full name of a model, under which its results may be kept; None while that is unknown."""
    identity: str | None = model.identity if hasattr(model, "identity") else model.name
    return identity


class Checked(Named, Protocol):
    """What serves a model."""

    async def check(self) -> None: ...

    async def close(self) -> None: ...


Model = TypeVar("Model", bound=Checked)


class Loading(Generic[Model]):
    """Loads a model in its first `check`, so that a process can serve before what needs none.

    unavailable: the error of what needs the model before it is loaded.
    """

    def __init__(self, load: Callable[[], Model], unavailable: type[BoundaryMorphError]) -> None:
        """load: blocks; raises ModelUnavailable or InvalidConfiguration."""
        self._load = load
        self._unavailable = unavailable
        self._loaded: Model | None = None

    @property
    def identity(self) -> str | None:
        """The name of the model; None until it is loaded."""
        return None if self._loaded is None else self._loaded.name

    @property
    def name(self) -> str:
        return self.loaded.name

    @property
    def loaded(self) -> Model:
        """What serves the model."""
        if self._loaded is None:
            raise self._unavailable("the model is still loading", public="the model is still loading; try again")
        return self._loaded

    async def check(self) -> None:
        """Load the model if it is not loaded, warm up, and try it. Raises what loading and trying raise."""
        if self._loaded is None:
            self._loaded = await asyncio.to_thread(self._load)
        await self._loaded.check()

    async def close(self) -> None:
        if self._loaded is not None:
            await self._loaded.close()
