"""What the routes share: the settings and, once it stands, the service behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from boundarymorph.api.problems import NotReady
from boundarymorph.settings import Settings
from boundarymorph.wiring import Rooms


@dataclass(slots=True)
class State:
    """built: the rooms, as soon as they stand; ready: a canary came back; failure: why there is nothing to wait for."""

    settings: Settings
    built: Rooms | None = None
    ready: bool = False
    failure: str | None = None

    def rooms(self) -> Rooms:
        """Raises NotReady before the canary has come back."""
        if self.built is None or not self.ready:
            raise NotReady(self.failure or "the models are still loading; try again in a second")
        return self.built


def state(request: Request) -> State:
    found: State = request.app.state.boundarymorph
    return found


def rooms(request: Request) -> Rooms:
    return state(request).rooms()


StateOf = Annotated[State, Depends(state)]
RoomsOf = Annotated[Rooms, Depends(rooms)]
