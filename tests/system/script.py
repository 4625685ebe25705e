"""A program that runs until its test has seen enough, forked, so that it does not import the service again."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tests.system.forked import Forked, start


@contextmanager
def running(code: str, *arguments: str) -> Iterator[tuple[Forked, IO[bytes]]]:
    """A process that runs this code with sys.argv[1:] as given, killed at the end, and what it prints."""
    told, end = os.pipe()
    with (
        open(told, "rb") as printed,
        start(
            [code, *arguments],
            output=end,
            errors=2,
            environment=os.environ,
            directory=Path.cwd(),
            program="tests.system.script",
        ) as process,
    ):
        os.close(end)
        try:
            yield process, printed
        finally:
            with suppress(ProcessLookupError):  # where its end is not told yet
                process.kill()


def main() -> None:
    exec(sys.argv.pop(1), {"__name__": "__main__"})
