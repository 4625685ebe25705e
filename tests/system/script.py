"""Run a program until its test ends it, forked so that it does not import the service again."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tests.system.forked import Forked, start


@contextmanager
def running(code: str, *arguments: str) -> Iterator[tuple[Forked, IO[bytes]]]:
    """Run code with these arguments, yield the process and its output, and kill it."""
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
            with suppress(ProcessLookupError):  # it may have ended without a report yet
                process.kill()


def main() -> None:
    exec(sys.argv.pop(1), {"__name__": "__main__"})
