"""Many selections: the lines that are sent, the answers that come, and the file in which these are kept."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from boundarymorph_client import bodies
from boundarymorph_client.calls import parsed
from boundarymorph_client.encoding import encoded
from boundarymorph_client.errors import ConnectionFailed, InvalidArgument, of_problem
from boundarymorph_client.models import Answer, Problem, Selection

AHEAD = 64  # lines that the service takes of who reads nothing before all is sent, as httpx does
BEGINNING = b'{"id":'  # of an answer
AGAIN = 429  # this status, and those from 500, say nothing of a request itself


class BatchProblem(Answer):
    """Why a batch ended early."""

    problem: Problem


class BatchAnswer(Answer):
    """What became of one request: an `answer`, or a `problem` with the status that `select` would have had."""

    id: str | int
    status: int
    answer: Selection | None = None
    problem: Problem | None = None

    @property
    def is_final(self) -> bool:
        """Whether the same request would have the same answer later."""
        return self.status != AGAIN and self.status < 500


class Batch:
    """Requests on their way, as a context manager. kept: the file of answers, where what is there is not asked for
    again; None to keep none."""

    def __init__(self, requests: Iterable[Mapping[str, Any]], kept: str | Path | None) -> None:
        bodies.check_items(requests, "requests", 'df.to_dict("records")')
        self._requests, self._path = requests, None if kept is None else Path(kept)

    def __enter__(self) -> Self:
        """Raises ValueError for a file of something else, or one that another batch writes."""
        self._answered, self._asked, self._file = set[str | int](), set[str | int](), None
        if self._path is not None:
            with ExitStack() as at_error:
                self._file = at_error.enter_context(self._path.open("ab", buffering=0))
                _lock(self._file)
                self._answered, whole = _read(self._path)
                self._file.truncate(whole)
                at_error.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def bodies(self) -> Iterator[bytes]:
        """Yield the lines of the requests that have no answer, AHEAD at a time. Raises InvalidArgument."""
        lines = []
        for number, request in enumerate(self._requests, 1):
            options = dict(request)
            id = options.pop("id", number)
            if type(id) not in (str, int):
                raise InvalidArgument(f"request {number} has the id {id!r}, which is neither a string nor an int")
            if id in self._asked:
                raise InvalidArgument(f"request {number} has the id {id!r} of an earlier one")
            self._asked.add(id)
            if id in self._answered:
                continue
            query = options.pop("queries", None) or options.pop("query", None)
            if not query:
                raise InvalidArgument(f"request {number} has no query")
            lines.append(encoded({"id": id, **bodies.selection(query, options)}) + b"\n")  # type: ignore[arg-type]
            if len(lines) == AHEAD:
                yield b"".join(lines)
                lines.clear()
        if lines:
            yield b"".join(lines)

    def keep(self, answer: BatchAnswer, line: bytes) -> None:
        """Write an answer, if it is final."""
        if self._file is not None and answer.is_final:
            self._file.write(line + b"\n")


class Answers:
    """Takes the bytes of a response as they come, and gives the answers in it once they are kept."""

    def __init__(self, response: httpx.Response, batch: Batch) -> None:
        self._response, self._batch = response, batch
        self._begun: list[bytes] = []  # of the line that is not complete
        self._ended = False

    def feed(self, received: bytes) -> Iterator[BatchAnswer]:
        """Raises ProblemError where the batch ended early, and UnexpectedAnswer."""
        self._begun.append(received)
        if b"\n" not in received:
            return
        *lines, rest = b"".join(self._begun).split(b"\n")
        self._begun = [rest]
        for line in lines:
            if line.startswith(BEGINNING):
                answer = parsed(BatchAnswer, line)
                self._batch.keep(answer, line)
                yield answer
            elif line.startswith(b'{"problem":'):
                raise of_problem(parsed(BatchProblem, line).problem, self._response)
            self._ended = self._ended or line.startswith(b'{"done":')

    def end(self) -> None:
        """All bytes have come. Raises ConnectionFailed if some are missing."""
        if not self._ended:
            raise ConnectionFailed("the answer ended before the batch was done")


def answered(path: Path) -> set[str | int]:
    """Return the ids in a file of answers, which need not exist. Raises ValueError for a file of something else."""
    return _read(path)[0] if path.exists() else set()


def _read(path: Path) -> tuple[set[str | int], int]:
    """Return the ids, and the bytes before a line that was being written when its process ended."""
    ids, whole = set[str | int](), 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            is_whole = line.endswith(b"\n")
            try:
                answer = json.loads(line)
                id, _ = answer["id"], answer["status"]
            except (ValueError, TypeError, KeyError) as error:
                if isinstance(error, ValueError) and not is_whole and BEGINNING.startswith(line[: len(BEGINNING)]):
                    break
                raise ValueError(f"{path}, line {number} is no answer: {error!r}") from error
            if not is_whole:
                break
            ids.add(id)
            whole += len(line)
    return ids, whole


def _lock(file: FileIO) -> None:
    """Lock a file until it is closed, where that can be done. Raises ValueError if another has locked it."""
    try:
        import fcntl
    except ModuleNotFoundError:  # on Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"{file.name} is being written by another batch") from None
    except OSError:  # of a file system without locks
        pass
