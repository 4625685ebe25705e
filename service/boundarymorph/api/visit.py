"""Share the state of a request between middleware, dependencies, and routes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from boundarymorph.access.callers import Caller
from boundarymorph.access.limits import Access
from boundarymorph.access.rates import Decision
from boundarymorph.api.schemas import Problem
from boundarymorph.selector.documents import MemoryLimits

VISIT = "visit"  # the key in the state of an ASGI scope
Refusal = Callable[[Problem], tuple[int, Any]]  # returns status and body in another wire format


@dataclass(slots=True)
class Visit:
    """The state of one request, until it is answered.

    Attributes:
        counted: Whether it is part of another request, which has been counted.
        caller: The caller on whose behalf it is answered, and whose share its bytes and work count towards.
        until_end: A stack of resources that is closed when the request has been answered.
        name: The name of its key, for the access log; None until it is identified.
        permitted: The caller with the keys that permit the request; None until it is admitted.
        decision: The state of the caller's rate limits.
        refusal: The function that writes errors in the wire format of the body, once that is known.
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

    def reserve_bytes(self, access: Access) -> Callable[[int], None]:
        """Return a function that charges bytes to the caller until the request ends.

        The bytes are those of bodies, texts, answers, and selections. The function raises Overloaded or LimitExceeded.
        """
        return self.until_end.enter_context(access.bytes_in_flight.reserve(self.caller))

    def memory_limits(self, access: Access) -> MemoryLimits:
        return MemoryLimits(self.reserve_bytes(access), answer=access.settings.limits.body_bytes)


def visit_of(request: Mapping[str, Any]) -> Visit:
    """Return the visit of a request, or of its ASGI scope."""
    found: Visit = request["state"][VISIT]
    return found
