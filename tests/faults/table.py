"""The fault table: one row a test, measured as it ran."""

from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
OPERATIONS = REPOSITORY / "docs" / "operations.md"
RESULT = REPOSITORY / "build" / "faults.md"
HEAD = "| fault | what the caller saw | lost data | time to recover |\n|---|---|---|---|\n"


@dataclass
class Table:
    """Rows in the order in which they were measured."""

    rows: list[str] = field(default_factory=list)

    def add(self, fault: str, saw: str, seconds: float | None) -> None:
        """A fault that lost no data. seconds: from the end of its cause to the first answer as before; None where there
        was nothing to recover from. Fails where docs/operations.md says otherwise, but for the seconds."""
        row = f"| {fault} | {saw} | none |"
        self.rows.append(f"{row} {'-' if seconds is None else f'{seconds:.1f} s'} |")
        assert row in documented(), f"docs/operations.md does not show this row:\n{self.rows[-1]}"

    def finish(self) -> None:
        """Write the rows down. Fails where docs/operations.md has one that no test has measured."""
        untested = documented() - {_timeless(row) for row in self.rows}
        assert not untested, f"no test measures these rows of docs/operations.md: {untested}"
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(HEAD + "\n".join(self.rows) + "\n")


def documented() -> set[str]:
    """The rows of docs/operations.md without their last cell."""
    rows = OPERATIONS.read_text().partition(HEAD)[2].partition("\n\n")[0]
    return {_timeless(row) for row in rows.splitlines()}


def _timeless(row: str) -> str:
    return row.removesuffix(" |").rpartition("|")[0] + "|"
