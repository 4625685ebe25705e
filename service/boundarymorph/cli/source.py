"""Read documents from a file or from standard input, gzipped or not."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

import typer

from boundarymorph import reading
from boundarymorph.errors import InvalidInput
from boundarymorph.reading import Record, Stream

WRITTEN = "; what came before the damage is written, unless --strict"


def existing(help: str, *names: str, folders: bool = False) -> Any:
    def check(path: Path | None) -> Path | None:
        if path is not None and str(path) != "-" and not (path.exists() and (folders or not path.is_dir())):
            raise typer.BadParameter(f"{str(path)!r} does not exist{'' if folders else ', or is a directory'}")
        return path

    return typer.Option(*names, callback=check, help=help)


def named(source: Path) -> str:
    return "standard input" if str(source) == "-" else str(source)


@contextmanager
def open_source(source: Path) -> Iterator[tuple[Stream, int | None]]:
    """Open a source, and yield its decompressed stream and its size in bytes, if that is known."""
    if str(source) == "-":
        file, length = cast(BufferedReader, sys.stdin.buffer), None
    else:
        file, length = source.open("rb"), source.stat().st_size or None
    with reading.open_stream(file) as stream:
        yield stream, length if stream is file else None


@contextmanager
def report_damage(source: Path, so_far: str = "") -> Iterator[None]:
    """Raise InvalidInput where a damaged gzip file is read.

    `so_far` is a sentence about the documents before the damage.
    """
    try:
        yield
    except reading.DAMAGED as error:
        raise InvalidInput(f"{named(source)} is a damaged gzip file: {error}{so_far}") from error


def records(source: Path) -> Iterator[Record]:
    """Yield the JSON objects and lines of text of a source.

    Raises:
        InvalidInput: As `reading.records` does, and for a file that its name calls comma-separated values.
    """
    if source.name.lower().endswith((".csv", ".csv.gz")):
        raise InvalidInput(f"{source}: {reading.AS_LINES}")
    with report_damage(source), open_source(source) as (stream, _):
        yield from reading.records(stream, named(source))


@contextmanager
def interruptible() -> Iterator[None]:
    """Let the first `Ctrl-C` within the block raise KeyboardInterrupt.

    Without this, asyncio would go on reading standard input.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


async def chunks(stream: Stream, source: Path) -> AsyncIterator[bytes]:
    """Yield the content of the stream as it arrives.

    Raises:
        InvalidInput: If a gzip file is damaged.
    """
    while True:
        with report_damage(source, WRITTEN):
            chunk = stream.read1(1 << 18)
        if not chunk:
            return
        yield chunk
