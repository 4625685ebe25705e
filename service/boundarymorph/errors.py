"""Errors that a caller can act on. They are raised where they are noticed and become HTTP once, in `api.problems`.

`slug` is the stable name that ends up in a problem's `type`; the message says what is wrong and what to do about it.
Messages are for operators and may name hosts or quote other servers; `public` is what callers read.
"""

from typing import ClassVar

PROBLEM_TYPE = "urn:boundarymorph:problem:"  # what the type of a problem begins with, before the slug


class BoundaryMorphError(Exception):
    """Base of every error that is part of the interface.

    public: what a caller may read; the message, where neither the error nor its kind says otherwise.
    """

    slug: ClassVar[str] = "internal-error"
    summary: ClassVar[str | None] = None
    """Shown to callers in place of the message, where that names other servers."""

    def __init__(self, message: str = "", *, public: str | None = None) -> None:
        super().__init__(message)
        self.public = public or self.summary or message


class InvalidInput(BoundaryMorphError, ValueError):
    """The caller's input cannot be used as it stands."""

    slug = "invalid-input"


class InvalidEmbeddings(InvalidInput):
    """Embeddings of the wrong shape, of zero length, or not finite."""

    slug = "invalid-embeddings"


class DuplicateIds(InvalidInput):
    """Two documents of one pool share an id."""

    slug = "duplicate-ids"


class LimitExceeded(InvalidInput):
    """A size, count or length is over a configured bound."""

    slug = "limit-exceeded"


class InvalidIndexName(InvalidInput):
    """The name of an index is not one that a file system and a URL both take safely."""

    slug = "invalid-index-name"


class UnknownIndex(BoundaryMorphError, LookupError):
    """No index has this name."""

    slug = "unknown-index"


class IndexConflict(BoundaryMorphError):
    """An index of this name exists with another configuration."""

    slug = "index-conflict"


class EmptyIndex(BoundaryMorphError):
    """The index holds no documents yet."""

    slug = "empty-index"


class CorruptIndex(BoundaryMorphError):
    """An index's files are damaged or were written by an incompatible version."""

    slug = "corrupt-index"


class StorageUnavailable(BoundaryMorphError):
    """The disk, or the lock of another process, does not let an index be read or written now."""

    slug = "storage-unavailable"


class StorageFull(StorageUnavailable):
    """There is no room left on the disk."""

    slug = "storage-full"


class ModelUnavailable(BoundaryMorphError):
    """A model's files are missing or are not the ones that were expected."""

    slug = "model-unavailable"


class Overloaded(BoundaryMorphError):
    """There is more work in hand than may wait.

    retry_after: seconds until it is worth another try.
    """

    slug = "overloaded"

    def __init__(self, message: str, *, retry_after: float = 1.0, public: str | None = None) -> None:
        super().__init__(message, public=public)
        self.retry_after = retry_after


class CostCeiling(Overloaded):
    """A ceiling on what a language model may cost would be passed; what would have passed it was not sent.

    retry_after: until the day of the ceiling is over; infinite for that of one request.
    """

    slug = "cost-ceiling"


class DeadlineExceeded(BoundaryMorphError, TimeoutError):
    """The request's time was over before its work was."""

    slug = "deadline-exceeded"


class TextTooLong(InvalidInput):
    """A text does not fit the model, and the request asked not to cut any."""

    slug = "text-too-long"


class ScorerUnavailable(BoundaryMorphError):
    """No scorer can be reached, or none is able to work now; another try may succeed."""

    slug = "scorer-unavailable"
    summary = "no scorer is able to work now; try again later"


class ScorerFailed(BoundaryMorphError):
    """The scorer refuses its caller or gives answers that cannot be used; another try will not help."""

    slug = "scorer-failed"
    summary = "the scorer refuses the request, or gives answers that cannot be used"


class RetrieverUnavailable(BoundaryMorphError):
    """The retriever cannot be reached, or is not able to work now; another try may succeed."""

    slug = "retriever-unavailable"
    summary = "no retriever is able to work now; try again later"


class RetrieverFailed(BoundaryMorphError):
    """The retriever gives answers that cannot be used; another try will not help."""

    slug = "retriever-failed"
    summary = "the retriever refuses the request, or gives answers that cannot be used"


class MalformedFrame(RetrieverFailed):
    """What should be a pool or embeddings in their binary form is not."""

    slug = "malformed-frame"


class EncoderUnavailable(BoundaryMorphError):
    """No encoder can be reached, or none is able to work now; another try may succeed."""

    slug = "encoder-unavailable"
    summary = "no encoder is able to work now; try again later"


class EncoderFailed(BoundaryMorphError):
    """The encoder refuses its caller or gives vectors that cannot be used; another try will not help."""

    slug = "encoder-failed"
    summary = "the encoder refuses the request, or gives answers that cannot be used"


class InvalidConfiguration(BoundaryMorphError):
    """A setting is missing, malformed or contradicts another."""

    slug = "invalid-configuration"


class NotInstalled(BoundaryMorphError):
    """What is asked for needs an extra that is not installed."""

    slug = "not-installed"


class BodyTooLarge(LimitExceeded):
    """The request's body is over the limit."""

    slug = "body-too-large"


class BodyTooSlow(BoundaryMorphError):
    """The request's body has not arrived in time."""

    slug = "body-too-slow"


class NotReady(BoundaryMorphError):
    """The models are still loading, or broke."""

    slug = "not-ready"
