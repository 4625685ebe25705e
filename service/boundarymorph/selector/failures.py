"""Decide whether a selection goes on after a failure."""

from __future__ import annotations

import logging

from boundarymorph.errors import BoundaryMorphError, DeadlineExceeded, Overloaded
from boundarymorph.notices import Notice, Slug
from boundarymorph.selector.observer import Observer
from boundarymorph.selector.result import Interruption, Status
from boundarymorph.selector.shared import SharedState
from boundarymorph.selector.task import Context

log = logging.getLogger(__name__)


class Failures:
    """The failures of one selection.

    Attributes:
        interruption: The first failure that ended the selection early; None without one.
    """

    def __init__(self, context: Context, shared: SharedState, observer: Observer, warnings: list[Notice]) -> None:
        """Start without a failure; `warnings` receives a warning about each."""
        self._context, self._shared, self._observer, self._warnings = context, shared, observer, warnings
        self.interruption: Interruption | None = None

    def status(self, *, scored: bool) -> Status:
        """Return how complete the result is, given whether any document is scored."""
        if self.interruption is None:
            return Status.COMPLETE
        return Status.PARTIAL if scored else Status.RETRIEVAL_ONLY

    def interrupt(self, slug: Slug, shortfall: str, error: BoundaryMorphError, *, scored: bool) -> None:
        """Record why the result is incomplete.

        It raises the error, or Overloaded, unless the task accepts an incomplete result.

        Args:
            slug: The slug of the warning.
            shortfall: The consequence, for the warning.
            error: The failure.
            scored: Whether any document is scored.
        """
        if self._context.accepts == "complete":
            raise error
        self.refuse_overload(error, scored=scored)
        self.interruption = self.interruption or Interruption.from_error(error)
        self.warn(slug, shortfall, error)

    def refuse_overload(self, error: BoundaryMorphError, *, scored: bool) -> None:
        """Check whether the task accepts a result in which nothing was scored for lack of capacity.

        A deadline that comes while other requests are served counts as a lack of capacity: without them, the request
        might have been in time.

        Raises:
            Overloaded: If the task does not accept it.
        """
        if self._context.accepts != "scored" or scored:
            return
        if isinstance(error, Overloaded):
            raise error
        if isinstance(error, DeadlineExceeded) and (others := self._shared.running - 1):
            raise Overloaded(
                f"the deadline came before anything was scored, while {others} other requests were served; "
                "try again later, or allow more time",
                retry_after=max(1.0, self._observer.seconds()["total"] / (others + 1)),
            ) from error

    def warn(self, slug: Slug, shortfall: str, error: BoundaryMorphError) -> None:
        """Add a warning for the caller, and log the details that the caller may not read."""
        if error.public != str(error) and not error.logged:
            log.warning("%s: %s", shortfall, error)
        self._warnings.append(Notice(slug, f"{shortfall}: {error.public}"))
