"""The state that middleware, dependencies and routes share about a request until it is answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from boundarymorph.access.callers import Caller
from boundarymorph.access.limits import Access
from boundarymorph.access.rates import Decision
from boundarymorph.api.schemas import Problem
from boundarymorph.selector.documents import Room

VISIT = "visit"  # the key in the state of an ASGI scope
Refusal = Callable[[Problem], tuple[int, Any]]  # returns status and body in another wire format


@dataclass(slots=True)
class Visit:
    """What middleware, dependencies and routes tell each other about one request.

    Attributes:
        counted: Whether it is part of another request, which has been counted.
        caller: On whose behalf it is answered; what it takes counts towards the share of this caller.
        until_end: Closed when the request has been answered.
        name: The name of its key, once identified, for the access log.
        permitted: Its caller, once admitted, with the keys that permit it.
        decision: The state of the caller's rate limits.
        refusal: What makes an error of the wire format that the body was found to have.
        compressible: Whether its streamed answer is worth compressing.
    """

    counted: bool = False
    caller: str = ""
    until_end: ExitStack = field(default_factory=ExitStack)
    name: str | None = None
    permitted: Caller | None = None
    decision: Decision | None = None
    refusal: Refusal | None = None
    compressible: bool = False

    def charging(self, access: Access) -> Callable[[int], None]:
        """Return what charges bytes of bodies, texts, answers and selections to the caller until the request ends. It
        raises Overloaded or LimitExceeded."""
        return self.until_end.enter_context(access.bytes_in_flight.reserve(self.caller))

    def room(self, access: Access) -> Room:
        return Room(self.charging(access), answer=access.settings.limits.body_bytes)


def visit_of(request: Mapping[str, Any]) -> Visit:
    """Return the visit of a request, or of its ASGI scope."""
    found: Visit = request["state"][VISIT]
    return found
