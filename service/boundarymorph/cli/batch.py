"""`boundarymorph select INDEX --queries FILE`: a selection for each query of a file."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import orjson
from pydantic import ValidationError

from boundarymorph.access.calibrations import Calibrations
from boundarymorph.access.calibrations import Wanted as Calibration
from boundarymorph.access.keys import Caller
from boundarymorph.api.select_schemas import SelectRequest
from boundarymorph.api.translate import response_of, task_of
from boundarymorph.cli import source
from boundarymorph.errors import PROBLEM_TYPE, BoundaryMorphError, InvalidInput, StorageUnavailable
from boundarymorph.retrieval.learned import CalibrationSource
from boundarymorph.selector.selector import Selector
from boundarymorph.settings import Settings, mistakes
from boundarymorph.text import has_content, records_of

CONCURRENT = 4  # selections at a time, so that a model always has a batch while others think
ID_NAMES, QUERY_NAMES = ("id", "_id"), ("query", "text")  # as in BEIR
Asked = tuple[str, Mapping[str, Any]]


def count(path: Path) -> int:
    """Return the number of queries of a file. Raises InvalidInput for a line without a query, or with another's id."""
    ids = set[str]()
    for id, _ in queries(path):
        if id in ids:
            raise InvalidInput(f"{path}: two queries have the id {id!r}")
        ids.add(id)
    return len(ids)


def queries(path: Path) -> Iterator[Asked]:
    """Yield id and fields of each query of a file: lines of JSON or one array, or lines of plain text, whose ids are
    their numbers.

    Raises InvalidInput for a line without a query.
    """
    with source.opened(path) as (file, _):
        for place, number, record in records_of(file, source.named(path)):
            fields = dict(record) if isinstance(record, dict) else {"query": record}
            query = next((fields.pop(name) for name in QUERY_NAMES if name in fields), None)
            id = next((fields.pop(name) for name in ID_NAMES if name in fields), number)
            if query is None or (isinstance(query, str) and not has_content(query)):
                raise InvalidInput(f"{place}: there is no 'query' and no 'text' to read")
            fields.pop("metadata", None)  # of BEIR's
            yield str(id), {"query": query, **fields}


class Answers:
    """The file of the answers, which one process may write at a time. done: the ids of those that it has.

    An answer belongs to its options: a file of other options is refused. A line that a crash has cut is cut off.
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        """Raises InvalidInput if the file is another's."""
        self._digest = blake2b(orjson.dumps(options, option=orjson.OPT_SORT_KEYS), digest_size=4).hexdigest()
        self.done = set[str]()
        path.touch()
        self._file: BinaryIO = path.open("r+b", buffering=0)
        try:
            self._open(path)
        except BaseException:
            self._file.close()
            raise

    def _open(self, path: Path) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInput(f"{path} is being written by another process") from None
        end = 0
        for line in self._file:
            if line.endswith(b"\n"):
                self._take(path, line)
                end += len(line)
        self._file.truncate(end)
        self._file.seek(end)

    def _take(self, path: Path, line: bytes) -> None:
        try:
            answer = orjson.loads(line)
            options = answer["options"]
        except (orjson.JSONDecodeError, TypeError, KeyError):
            raise InvalidInput(f"{path} has lines that are no answers; choose another file") from None
        if options != self._digest:
            raise InvalidInput(f"{path} has answers to other options; choose another file, or delete it")
        if "documents" in answer:
            self.done.add(answer["query_id"])

    def write(self, id: str, content: Mapping[str, Any]) -> None:
        """Append a line, whole."""
        line = orjson.dumps({"query_id": id, "options": self._digest, **content}) + b"\n"
        try:
            whole = self._file.write(line) == len(line)
        except OSError as error:
            raise StorageUnavailable(f"the answers cannot be written: {error}") from error
        if not whole:
            raise StorageUnavailable("the answers cannot be written: the disk is full")

    def close(self) -> None:
        self._file.close()


async def select_all(
    selector: Selector,
    settings: Settings,
    asked: Iterator[Asked],
    options: Mapping[str, Any],
    calibration: Calibration,
    answers: Answers,
    source: CalibrationSource,
    advance: Callable[[], None],
) -> int:
    """Make the selections that are not done yet, several at a time. Returns how many of them failed."""
    calibrations, failed = Calibrations(settings.calibration.keys), 0

    async def one(id: str, fields: Mapping[str, Any]) -> bool:
        try:
            request = SelectRequest.model_validate({**options, **fields})
            chosen = await calibrations.of(calibration, Caller(""), source, request.index)
            task = replace(task_of(request, settings, time.monotonic()), calibration=chosen)
            response = response_of(await selector.select(task), task)
        except (BoundaryMorphError, ValidationError) as error:
            slug = error.slug if isinstance(error, BoundaryMorphError) else InvalidInput.slug
            detail = mistakes(error) if isinstance(error, ValidationError) else str(error)
            answers.write(id, {"problem": {"type": PROBLEM_TYPE + slug, "detail": detail}})
            return False
        answers.write(id, response.model_dump(mode="json"))
        return True

    async def several() -> None:
        nonlocal failed
        for id, fields in asked:  # which all of these share
            if id not in answers.done:
                answers.done.add(id)
                if not await one(id, fields):
                    failed += 1
            advance()

    await asyncio.gather(*(several() for _ in range(CONCURRENT)))
    return failed


def lowest_priority() -> None:
    """Leave the processor to others wherever they want it."""
    os.nice(19)
