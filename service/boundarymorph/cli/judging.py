"""Pairs that are worth judging, and their grades by a language model, which are kept as they come."""

from __future__ import annotations

import asyncio
import fcntl
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple

import orjson

from boundarymorph.calibration.judgments import PAIRS, Judgments
from boundarymorph.cli.common import console, new_console, parts
from boundarymorph.database import storage_errors
from boundarymorph.errors import InvalidInput, ScorerFailed, StorageFull
from boundarymorph.settings import Settings

if TYPE_CHECKING:
    from boundarymorph.scoring.scorer import Scorer

GRADES = 3  # the best grade that a language model gives
TOGETHER = 8  # requests to it at a time
REFUSED_IN_A_ROW = 5  # pairs without a grade after which it is assumed to give none


@dataclass(frozen=True)
class Plan:
    """What a command is to do. name: of the calibration; index: whose, or None for pools; requests: of `/select` by
    query; budget: calls to find the best of a query; gain: what is learned."""

    name: str
    index: str | None
    requests: Mapping[str, Mapping[str, Any]]
    budget: int
    gain: Literal["relevant", "grade"]


class Pair(NamedTuple):
    """A document as it was shown to a language model."""

    query: str
    document: str
    content: str

    @property
    def digest(self) -> str:
        """Of the content, as a document may change."""
        return blake2b(self.content.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


class Grades:
    """The file of the grades that a language model gave, one a line, with its name: what was paid for is never asked
    again, and anybody can read it. Grades of people in the same file count, too.

    One process at a time appends lines. A line that a crash has cut is cut off.
    """

    def __init__(self, path: Path, model: str) -> None:
        """model: which is to be asked; grades of others do not count. Raises InvalidInput if it is another's file, and
        leaves it as it is."""
        self.path, self._model = path, model
        self.by_query: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self._asked = set[tuple[str, str, str | None]]()
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = path.open("a+b", buffering=0)
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise

    def has(self, pair: Pair) -> bool:
        """Whether this content was graded, or a person graded the document."""
        return not self._asked.isdisjoint((pair.query, pair.document, content) for content in (pair.digest, None))

    def keep(self, pair: Pair, grade: float | None, answered: str) -> None:
        """Append a grade, None if the model gave none. answered: which model, by its own words. Raises
        StorageFull and StorageUnavailable."""
        record = {"query": pair.query, "document": pair.document, "grade": grade, "model": self._model}
        record |= {"answered": answered, "content": pair.digest}
        line = orjson.dumps(record) + b"\n"
        with self._writing():
            whole = self._file.write(line) == len(line)
        if not whole:
            raise StorageFull(f"the grades cannot be written to {self.path}: the disk is full")
        self._take(record)

    def close(self) -> None:
        self._file.close()

    def _writing(self) -> AbstractContextManager[None]:
        return storage_errors(f"the grades cannot be written to {self.path}")

    def _read(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInput(f"{self.path} is being written by another process") from None
        end = self._file.seek(0)
        for line in self._file:
            if line.endswith(b"\n"):
                try:
                    self._take(orjson.loads(line))
                except (orjson.JSONDecodeError, TypeError, KeyError):
                    raise InvalidInput(f"{self.path} has lines that are no grades; choose another file") from None
                end += len(line)
        self._file.truncate(end)

    def _take(self, line: Any) -> None:
        query, document, grade, model = line["query"], str(line["document"]), line["grade"], line.get("model")
        if model not in (None, self._model) or (model is None and grade is None):
            return
        self._asked.add((query, document, line.get("content")))
        if grade is not None:
            self.by_query[query][document] = float(grade)


async def pairs(plan: Plan, settings: Settings, count: int) -> list[dict[str, str | None]]:
    """Pairs worth judging, at most `count` a query, with title and text."""
    from boundarymorph.api.select_schemas import SelectRequest
    from boundarymorph.api.translate import task_of
    from boundarymorph.cli import terminal
    from boundarymorph.selector.judging import Judging

    found: list[dict[str, str | None]] = []
    doing = f"finding pairs to judge, at most {plan.budget:,} calls a query; queries"
    async with parts(settings) as built:
        judging = Judging(built.selector, built.retriever, built.scorer)
        with terminal.steps(new_console(stderr=True), doing, len(plan.requests)) as advance:
            for number, (query, request) in enumerate(plan.requests.items()):
                wanted = SelectRequest.model_validate({**request, "budget": plan.budget})
                task = task_of(wanted, settings, time.monotonic())
                for document in await judging.suggest(task, count, seed=number):
                    pair = {"query": query, "document": document.id, "title": document.title, "text": document.text}
                    found.append(pair)
                advance(1)
    return found


async def judge(plan: Plan, settings: Settings, url: str, kept: Path) -> Judgments:
    """Have a language model grade what is worth it and has no grade in the file `kept`; returns all grades of it."""
    from boundarymorph.scoring.build import build_scorer

    if not url.startswith(("openai://", "openai+")):
        raise InvalidInput("--judge takes a URL of openai://, as scorer.url does")
    chosen = settings.scorer.judge
    model = build_scorer(settings.model_copy(update={"scorer": type(settings.scorer)(url=(url,), judge=chosen)}))
    try:
        with closing(Grades(kept, model.name)) as grades:
            wanted = [_shown(pair) for pair in await pairs(plan, settings, PAIRS)]
            missing = [pair for pair in wanted if not grades.has(pair)]
            if known := len(wanted) - len(missing):
                console.print(f"{known:,} of {len(wanted):,} pairs have been graded before: {kept}", markup=False)
            await _graded(model, missing, grades)
    finally:
        await model.close()
    return {query: found for query, found in grades.by_query.items() if query in plan.requests}


def _shown(pair: Mapping[str, str | None]) -> Pair:
    content = "\n".join(filter(None, (pair["title"], pair["text"])))
    return Pair(str(pair["query"]), str(pair["document"]), content)


async def _graded(model: Scorer, missing: Sequence[Pair], grades: Grades) -> None:
    """Ask for all grades, several at a time, and keep each when it comes. After an error no further one is asked for,
    those that are under way are awaited, and the error is raised."""
    from boundarymorph.cli import terminal
    from boundarymorph.scoring.scorer import of_content

    waiting, done, refused = iter(missing), 0, 0
    errors = list[BaseException]()

    async def several(advance: Callable[[int], None]) -> None:
        nonlocal done, refused
        while not errors and (pair := next(waiting, None)) is not None:
            try:
                scores = await of_content([pair.content], partial(model.score, pair.query))
                if scores.failure is not None:
                    raise scores.failure
                value = float(scores.values[0])
                grade = None if math.isnan(value) else float(round(GRADES * value))
                grades.keep(pair, grade, scores.model or model.name)
                refused, done = 0, done + 1
                advance(1)
            except ScorerFailed as failure:  # of this pair alone, as by a content filter
                refused += 1
                if refused >= REFUSED_IN_A_ROW:
                    errors.append(failure)
            except Exception as error:
                errors.append(error)

    try:
        with terminal.steps(new_console(stderr=True), "grading pairs", len(missing)) as advance:
            await asyncio.gather(*(several(advance) for _ in range(TOGETHER)))
    finally:
        if missing:
            again = "" if done == len(missing) else "; the same command asks for the rest only"
            console.print(f"{done:,} of {len(missing):,} pairs were graded, kept in {grades.path}{again}", markup=False)
    if errors:
        raise errors[0]
