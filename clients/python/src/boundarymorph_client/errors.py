"""Define the errors that a call raises.

There is a class for each type of problem that a caller may want to distinguish. Every other type is a plain
`ProblemError`, or the nearest class above it.
"""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime

import httpx
from pydantic import ValidationError

from boundarymorph_client.models import Problem, UploadReport

TYPE = "urn:boundarymorph:problem:"
MAX_CHARACTERS = 200  # most characters of an error without a problem document, perhaps from a proxy


class BoundaryMorphError(Exception):
    """The base of every error that a call raises because of the service or the connection."""


class InvalidArgument(BoundaryMorphError, ValueError):
    """An argument cannot be sent: JSON has no such value, or the service has no such filter.

    Attributes:
        report: The report about the documents before the mistake, if it ended an upload; None if nothing was written.
    """

    def __init__(self, message: str, *, report: UploadReport | None = None) -> None:
        super().__init__(message)
        self.report = report


class ConnectionFailed(BoundaryMorphError):
    """The service cannot be reached, or the connection broke. `__cause__` is httpx's error."""


class TimedOut(BoundaryMorphError, TimeoutError):
    """The time of the call was over, here or at the service."""


class UnexpectedAnswer(BoundaryMorphError):
    """The server that answered is not BoundaryMORPH."""


class ProblemError(BoundaryMorphError):
    """The service refused the request, or failed.

    Attributes:
        type: Stable, such as `urn:boundarymorph:problem:unknown-index`.
        status: The status of the HTTP answer.
        detail: The problem, and what to do about it.
        errors: Each invalid field of the body, and its mistake.
        request_id: The id of the request in the service's log.
        retry_after: Seconds to wait before another attempt, if the service names them.
    """

    def __init__(self, problem: Problem, *, request_id: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(f"{problem.detail} ({problem.status} {problem.type.removeprefix(TYPE)})")
        self.type = problem.type
        self.status = problem.status
        self.detail = problem.detail
        self.errors = problem.errors or []
        self.request_id = request_id
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[object, ...]:  # for pickle, which would only pass the message
        problem = Problem(type=self.type, title="", status=self.status, detail=self.detail, errors=self.errors)
        return _again, (type(self), problem, self.request_id, self.retry_after)


class InvalidInput(ProblemError, ValueError):
    """The request cannot be used as it stands: a field, a size, embeddings, ids, or a name."""


class NotFound(ProblemError, LookupError):
    pass


class UnknownIndex(NotFound):
    pass


class UnknownPolicy(NotFound):
    """No policy has the name in the path."""


class UnknownDocument(NotFound):
    pass


class Conflict(ProblemError):
    pass


class IndexConflict(Conflict):
    """The index exists with another encoder, dimension, or kind."""


class EmptyIndex(Conflict):
    """The index holds no documents yet."""


class Unauthenticated(ProblemError):
    """There is no key, or an unknown one."""


class Forbidden(ProblemError):
    """The key does not permit this."""


class TooManyRequests(ProblemError):
    """The request is refused for now; `retry_after` says when to try again."""


class Overloaded(TooManyRequests):
    """The service has as much waiting work as it accepts."""


class RateLimited(TooManyRequests):
    """The key has reached its rate limit."""


class Unavailable(ProblemError):
    """The service, or a part that the request needs, does not work now."""


class NotReady(Unavailable):
    """The service is starting or stopping."""


class ScorerUnavailable(Unavailable):
    pass


class RetrieverUnavailable(Unavailable):
    pass


class EncoderUnavailable(Unavailable):
    pass


class StorageUnavailable(Unavailable):
    pass


class UpstreamFailed(ProblemError):
    """A scorer, retriever, or encoder behind the service gives unusable answers.

    Its operator must act.
    """


class DeadlineExceeded(ProblemError, TimedOut):
    """The deadline passed before the service had an answer."""


KINDS: dict[str, type[ProblemError]] = {
    "invalid-input": InvalidInput,
    "limit-exceeded": InvalidInput,
    "invalid-embeddings": InvalidInput,
    "duplicate-ids": InvalidInput,
    "invalid-index-name": InvalidInput,
    "text-too-long": InvalidInput,
    "body-too-large": InvalidInput,
    "unsupported-media-type": InvalidInput,
    "not-found": NotFound,
    "unknown-policy": UnknownPolicy,
    "unknown-index": UnknownIndex,
    "unknown-document": UnknownDocument,
    "index-conflict": IndexConflict,
    "empty-index": EmptyIndex,
    "unauthenticated": Unauthenticated,
    "forbidden": Forbidden,
    "overloaded": Overloaded,
    "rate-limited": RateLimited,
    "not-ready": NotReady,
    "model-unavailable": Unavailable,
    "storage-unavailable": StorageUnavailable,
    "storage-full": StorageUnavailable,
    "scorer-unavailable": ScorerUnavailable,
    "retriever-unavailable": RetrieverUnavailable,
    "encoder-unavailable": EncoderUnavailable,
    "scorer-failed": UpstreamFailed,
    "retriever-failed": UpstreamFailed,
    "encoder-failed": UpstreamFailed,
    "malformed-frame": UpstreamFailed,
    "deadline-exceeded": DeadlineExceeded,
}
BY_STATUS: dict[int, type[ProblemError]] = {
    429: TooManyRequests,
    503: Unavailable,
}  # for answers of a proxy


def error_from_response(response: httpx.Response) -> ProblemError:
    """Return the error for an unsuccessful answer, whose body has been read."""
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        said = response.text[:MAX_CHARACTERS].strip() or response.reason_phrase
        problem = Problem(
            type="about:blank", title=response.reason_phrase, status=response.status_code, detail=said or "no detail"
        )
    return error_from_problem(problem, response)


def error_from_problem(problem: Problem, response: httpx.Response) -> ProblemError:
    """Return the error for a problem that came with this answer, or in the middle of it."""
    kind = KINDS.get(problem.type.removeprefix(TYPE)) or BY_STATUS.get(problem.status, ProblemError)
    request_id = response.headers.get("x-request-id")
    return kind(problem, request_id=request_id, retry_after=_seconds(response.headers.get("retry-after")))


def error_from_transport(error: httpx.RequestError, url: str) -> BoundaryMorphError:
    """Return the error for a request to this URL that was not answered."""
    quotes_header = isinstance(error, httpx.LocalProtocolError)  # the header may be a key
    said = f"{type(error).__name__}: {error}" if str(error) and not quotes_header else type(error).__name__
    place = httpx.URL(url).copy_with(username=None, password=None)
    if isinstance(error, httpx.ConnectError):
        return ConnectionFailed(f"{place} cannot be reached ({said}); is `boundarymorph serve` running there?")
    kind = TimedOut if isinstance(error, httpx.TimeoutException) else ConnectionFailed
    return kind(f"{place}: {said}")


def _seconds(header: str | None) -> float | None:
    """Return the seconds of a Retry-After header (a number or a date), or None if it is invalid."""
    if header is None:
        return None
    try:
        seconds = float(header)
        return seconds if seconds >= 0 else None
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _again(
    kind: type[ProblemError], problem: Problem, request_id: str | None, retry_after: float | None
) -> ProblemError:
    return kind(problem, request_id=request_id, retry_after=retry_after)
