"""When a busy service refuses a request instead of answering it without a score."""

from __future__ import annotations

from boundarymorph.errors import BoundaryMorphError, DeadlineExceeded, Overloaded


def refusal(error: BoundaryMorphError, others: int, seconds: float) -> Overloaded | None:
    """Return the error for a caller for whom nothing was scored, or None if the cause was not a lack of capacity.

    error: what ended the request, after so many seconds. A deadline that comes while `others` requests are served
    counts as a lack of capacity: alone, the request might have been in time.
    """
    if isinstance(error, Overloaded):
        return error
    if isinstance(error, DeadlineExceeded) and others:
        return Overloaded(
            f"the deadline came before anything was scored, while {others} other requests were served; "
            "try again later, or allow more time",
            retry_after=max(1.0, seconds / (others + 1)),
        )
    return None
