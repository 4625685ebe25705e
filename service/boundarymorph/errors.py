"""Define the errors that a caller can act on.

They are raised where they are detected and become HTTP once, in `api.problems`.

`slug`, the name of the class with hyphens, ends up in a problem's `type`, so renaming a class changes the API.
Messages name the problem and its remedy. They are for operators and may name hosts; callers read `public`.
"""

import re
from typing import ClassVar

PROBLEM_TYPE = "urn:boundarymorph:problem:"  # prefix of a problem's type; the slug follows


class BoundaryMorphError(Exception):
    """The base of every error that is part of the interface.

    Attributes:
        public: The message for callers; by default `summary`, which replaces messages that name other servers or files.
        logged: Whether the log has this error already.
    """

    slug: ClassVar[str] = "internal-error"
    summary: ClassVar[str | None] = None
    logged = False

    def __init_subclass__(cls) -> None:
        if "slug" not in vars(cls):
            cls.slug = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()

    def __init__(self, message: str = "", *, public: str | None = None) -> None:
        super().__init__(message)
        self.public = public or self.summary or message

    def add(self, sentence: str) -> None:
        """Append to both messages a sentence about the work that the error ended."""
        self.args = (f"{self}; {sentence}",)
        self.public = f"{self.public}; {sentence}"


class InvalidInput(BoundaryMorphError, ValueError):
    """The caller's input cannot be used as it stands."""


class InvalidEmbeddings(InvalidInput):
    """Embeddings of the wrong shape, of zero length, or not finite."""


class DuplicateIds(InvalidInput):
    """Two documents of one pool share an id."""


class LimitExceeded(InvalidInput):
    """A size, count or length is over a configured bound."""


class InvalidIndexName(InvalidInput):
    """The name of an index is not safe both as a filename and in a URL."""


class UnknownIndex(BoundaryMorphError, LookupError):
    """No index has this name."""


class UnknownPolicy(BoundaryMorphError, LookupError):
    """No policy has this name."""


class IndexConflict(BoundaryMorphError):
    """An index of this name exists with another configuration."""


class EmptyIndex(BoundaryMorphError):
    """The index holds no documents."""


class CorruptIndex(BoundaryMorphError):
    """An index's files are damaged or were written by an incompatible version."""

    summary = "the index cannot be read; the service's log says what to restore"


class StorageUnavailable(BoundaryMorphError):
    """The disk, or a lock held by another process, prevents reading or writing an index."""

    summary = "the indexes' files cannot be read or written now; try again, or see the service's log"


class StorageFull(StorageUnavailable):
    """The disk is full."""

    summary = "the disk of the indexes is full; free some space and try again"


class ModelUnavailable(BoundaryMorphError):
    """A model's files are missing or are not the expected ones."""


class Overloaded(BoundaryMorphError):
    """Too much work is running or waiting already.

    Attributes:
        retry_after: Seconds until another try is worthwhile.
    """

    def __init__(self, message: str, *, retry_after: float = 1.0, public: str | None = None) -> None:
        super().__init__(message, public=public)
        self.retry_after = retry_after


class DeadlineExceeded(BoundaryMorphError, TimeoutError):
    """The request's deadline passed before its work was done."""


class TextTooLong(InvalidInput):
    """A text does not fit the model, and the request asked not to truncate."""


class ScorerUnavailable(BoundaryMorphError):
    """No scorer can be reached or can work now; another try may succeed."""

    summary = "no scorer is able to work now; try again later"


class ScorerFailed(BoundaryMorphError):
    """The scorer rejects the service's requests or gives unusable answers.

    Another try will not help.
    """

    summary = "the scorer refuses the request, or gives answers that cannot be used"


class RetrieverUnavailable(BoundaryMorphError):
    """The retriever cannot be reached or cannot work now; another try may succeed."""

    summary = "no retriever is able to work now; try again later"


class RetrieverFailed(BoundaryMorphError):
    """The retriever gives unusable answers; another try will not help."""

    summary = "the retriever refuses the request, or gives answers that cannot be used"


class MalformedFrame(RetrieverFailed):
    """Bytes that should be the binary form of a pool or of embeddings are not."""


class EncoderUnavailable(BoundaryMorphError):
    """No encoder can be reached or can work now; another try may succeed."""

    summary = "no encoder is able to work now; try again later"


class EncoderFailed(BoundaryMorphError):
    """The encoder rejects the service's requests or gives unusable vectors.

    Another try will not help.
    """

    summary = "the encoder refuses the request, or gives answers that cannot be used"


class InvalidConfiguration(BoundaryMorphError):
    """A setting is missing, is malformed or contradicts another."""


class NotInstalled(BoundaryMorphError):
    """The request needs an optional dependency that is not installed."""


class BodyTooLarge(LimitExceeded):
    """The request's body is over the limit."""


class BodyTooSlow(BoundaryMorphError):
    """The request's body did not arrive in time."""


class NotReady(BoundaryMorphError):
    """The models are warming up, another process has not answered, or the service has failed."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def missing_package(subject: str, package: str | None, extra: str) -> str:
    """Return a message that names a missing package and the command that installs it.

    Args:
        subject: The setting, command, or route that needs the package.
        package: The name of the module, if known.
        extra: The extra of boundarymorph that contains it. `make wheels` leaves the wheels of this project in dist.
    """
    return f"{subject} needs {package}: pip install --find-links dist 'boundarymorph[{extra}]'"
