"""The table of faults with a row per test, and the row of Redis killed under load."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.system.load import Answer, Load

REPOSITORY = Path(__file__).parents[2]
MONITORING = REPOSITORY / "docs" / "monitoring.md"
RESULT = REPOSITORY / "build" / "faults.md"
SHOWN_HEAD = "| fault | what the caller saw |\n|---|---|\n"
HEAD = "| fault | what the caller saw | time to recover |\n|---|---|---|\n"
LOAD_HEAD = (
    "| killed under load | command | what callers saw | slowest | after the kill | after the restart |\n"
    "|---|---|---|---|---|---|\n"
)


@dataclass
class Table:
    """Rows in the order of measurement."""

    rows: list[str] = field(default_factory=list)
    under_load: str = ""

    def add(self, fault: str, saw: str, seconds: float | None) -> None:
        """Add a fault that lost no data, and check it against docs/monitoring.md.

        Args:
            fault: The name of the fault.
            saw: What callers saw.
            seconds: The time from the end of the cause to the first normal answer, or None if there was nothing to
                recover from. docs/monitoring.md does not show it.
        """
        self.rows.append(f"| {fault} | {saw} | {'-' if seconds is None else f'{seconds:.1f} s'} |")
        assert is_documented(fault, saw), f"docs/monitoring.md does not show this row:\n| {fault} | {saw} |"

    def finish(self) -> None:
        """Write the table, and check that a test has measured each row of docs/monitoring.md."""
        untested = documented() - {(name, saw) for fault, saw in _faults(self.rows) for name in _names(fault)}
        assert not untested, f"no test measures these rows of docs/monitoring.md: {untested}"
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(HEAD + "\n".join(self.rows) + "\n\n" + LOAD_HEAD + self.under_load + "\n")


def is_documented(fault: str, saw: str) -> bool:
    """Return whether docs/monitoring.md has this fault, or its kind, with this outcome."""
    return any((name, saw) in documented() for name in _names(fault))


def documented() -> set[tuple[str, str]]:
    """Return the faults of docs/monitoring.md and their outcomes for callers."""
    return set(_faults(MONITORING.read_text().partition(SHOWN_HEAD)[2].partition("\n\n")[0].splitlines()))


def load_row(load: Load, killed: float, restarted: float, is_normal: Callable[[Answer], bool]) -> str:
    """Return the row of Redis in the table of servers killed under load.

    `killed` and `restarted` are times of time.monotonic().
    """
    counts = "; ".join(f"{count} times {outcome}" for outcome, count in load.outcomes().most_common())
    slowest = max(answer.ended - answer.began for answer in load.since(killed))
    times = (slowest, load.recovery(killed, is_normal), load.recovery(restarted, is_normal))
    slow, after_kill, after_restart = (f"{seconds:.1f} s" for seconds in times)
    return f"| Redis | `make test-faults` | {counts} | {slow} | {after_kill} | {after_restart} |"


def _names(fault: str) -> set[str]:
    """Return the names that the page may have for a fault `KIND: ONE`: all of it, or its kind."""
    return {fault, fault.partition(": ")[0]}


def _faults(rows: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the fault and the outcome of each row.

    A row may have several faults with one outcome: `ONE; OTHER; WHAT: THIS; THAT`.
    """
    for row in rows:
        faults, saw, *_ = row.strip("| ").split(" | ")
        what = ""
        for fault in faults.split("; "):
            start, colon, one = fault.rpartition(": ")
            what = f"{start}{colon}" or what
            yield f"{what}{one}", saw
