"""`boundarymorph select INDEX --queries FILE`: a selection for each query of a file."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from boundarymorph.access.calibrations import Calibrations
from boundarymorph.access.calibrations import Wanted as Calibration
from boundarymorph.access.keys import Caller
from boundarymorph.api.select_schemas import SelectRequest
from boundarymorph.api.translate import response_of, task_of
from boundarymorph.calibration.judgments import asked_in
from boundarymorph.cli import source as sources
from boundarymorph.cli.appended import AppendedFile
from boundarymorph.errors import PROBLEM_TYPE, BoundaryMorphError, InvalidInput
from boundarymorph.retrieval.learned import CalibrationSource
from boundarymorph.selector.selector import Selector
from boundarymorph.settings import Settings, mistakes

CONCURRENT = 4  # selections at a time, so that a model always has a batch while others think
Asked = tuple[str, Mapping[str, Any]]


def queries(path: Path) -> Sequence[Asked]:
    """Return id and fields of each query of a file; the id of one that has none is the number of its line.

    Raises InvalidInput for what is no query, and for one with another's id.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for number, id, fields in asked_in(sources.records(path)):
        name = str(number) if id is None else id
        if name in found:
            raise InvalidInput(f"{sources.named(path)}: two queries have the id {name!r}")
        fields.pop("metadata", None)  # of BEIR's
        found[name] = fields
    return list(found.items())


class Answers:
    """The file of the answers. done: the ids of those that it has.

    An answer belongs to its options: a file of other options is refused.
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        """Raises InvalidInput if the file is another's."""
        self._digest = blake2b(orjson.dumps(options, option=orjson.OPT_SORT_KEYS), digest_size=4).hexdigest()
        self._path = path
        self.done = set[str]()
        self._file = AppendedFile(path, "answers", self._take)

    def _take(self, answer: Any) -> None:
        if answer["options"] != self._digest:
            raise InvalidInput(f"{self._path} has answers to other options; choose another file, or delete it")
        if "documents" in answer:
            self.done.add(answer["query_id"])

    def write(self, id: str, content: Mapping[str, Any]) -> None:
        """Append a line, whole."""
        self._file.write({"query_id": id, "options": self._digest, **content})

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
