import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from boundarymorph.cli import common
from boundarymorph.cli import main as cli


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the command line in this process.

    The folder is empty, and the terminal is wide and without colours.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(common.console, "width", 300)  # the console reads its width only once
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["boundarymorph", *arguments])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


def error_line(outcome: Outcome) -> str:
    """Check for exit code 1 and one line on `stderr`, and return that line."""
    assert outcome.code == 1
    assert outcome.out == ""
    assert outcome.err.startswith("error: ") and outcome.err.count("\n") == 1
    return outcome.err
