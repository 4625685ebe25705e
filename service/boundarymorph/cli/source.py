"""Documents from a file or from standard input, gzipped or not."""

from __future__ import annotations

import gzip
import signal
import sys
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import cast

import typer

from boundarymorph.errors import InvalidInput

Stream = BufferedReader | gzip.GzipFile
GZIP = b"\x1f\x8b"  # what such a file begins with


def checked(path: Path) -> Path:
    """A file that is there, or - for standard input."""
    if str(path) != "-" and not path.is_file():
        raise typer.BadParameter(f"file {str(path)!r} does not exist, or is a directory")
    return path


def named(source: Path) -> str:
    """As messages have it."""
    return "standard input" if str(source) == "-" else str(source)


@contextmanager
def opened(source: Path) -> Iterator[tuple[Stream, int | None]]:
    """What a file holds, unpacked, and how many bytes that is, if it can be known beforehand."""
    if str(source) == "-":
        file, length = cast(BufferedReader, sys.stdin.buffer), None
    else:
        file, length = source.open("rb"), source.stat().st_size
    with file:
        if file.peek(len(GZIP)).startswith(GZIP):
            with gzip.open(file) as unpacked:
                yield unpacked, None
        else:
            yield file, length


@contextmanager
def interruptible() -> Iterator[None]:
    """Within, the first Ctrl-C raises KeyboardInterrupt. That of asyncio cancels a task, and a read of standard input
    goes on."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


async def chunks(stream: Stream, source: Path) -> AsyncIterator[bytes]:
    """What the stream holds, as it comes. Raises InvalidInput for a damaged gzip file."""
    try:
        while chunk := stream.read1(1 << 18):
            yield chunk
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InvalidInput(
            f"{named(source)} is a damaged gzip file: {error}; what came before the damage is written, unless --strict"
        ) from error
