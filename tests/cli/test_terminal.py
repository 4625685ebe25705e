"""How an upload is told on a terminal and in a log; the clock is the test's."""

from collections.abc import Iterator
from io import StringIO

import pytest
from rich.table import Table

from boundarymorph.cli import terminal
from boundarymorph.cli.common import new_console
from boundarymorph.retrieval.uploads import WINDOW_SECONDS, BadLine, IngestReport, UploadSpeed
from tests.clocks import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def screen() -> Iterator[StringIO]:
    with StringIO() as screen:
        yield screen


def test_a_log_gets_a_line_every_ten_seconds(screen: StringIO, clock: Clock) -> None:
    console = new_console(file=screen, width=40)
    with terminal.ingestion(console, "few", 40_000, clock) as tell:
        for seconds in range(1, 36):
            clock.now = 100.0 + seconds
            tell(IngestReport(added=100 * seconds, unchanged=20, position=1_000 * seconds))
    assert screen.getvalue().splitlines() == [
        "indexing few: 25%, 1,020 documents (20 were there), 102/s, 0:00:30 left",
        "indexing few: 50%, 2,020 documents (20 were there), 101/s, 0:00:20 left",
        "indexing few: 75%, 3,020 documents (20 were there), 101/s, 0:00:10 left",
    ]


def test_a_terminal_gets_a_bar(screen: StringIO, clock: Clock) -> None:
    console = new_console(file=screen, force_terminal=True, width=120)
    with terminal.ingestion(console, "few", 2_000, clock) as tell:
        clock.now += 2
        tell(IngestReport(added=10, position=1_000))
    assert "10 documents, 5/s, 0:00:02 left" in screen.getvalue()
    assert "100%" in screen.getvalue()


def test_an_empty_upload(screen: StringIO, clock: Clock) -> None:
    console = new_console(file=screen)
    with terminal.ingestion(console, "none", 0, clock) as tell:
        clock.now += terminal.LINE_SECONDS
        tell(IngestReport())
    assert screen.getvalue() == "indexing none: 0%, 0 documents, 0/s\n"


def test_an_upload_of_unknown_length(screen: StringIO, clock: Clock) -> None:
    console = new_console(file=screen)
    with terminal.ingestion(console, "piped", None, clock) as tell:
        clock.now += terminal.LINE_SECONDS
        tell(IngestReport(added=20, position=1_000))
    assert screen.getvalue() == "indexing piped: 20 documents, 2/s\n"
    with terminal.ingestion(new_console(file=screen, force_terminal=True, width=120), "piped", None, clock) as tell:
        tell(IngestReport(added=20, position=1_000))
    assert "100%" in screen.getvalue()


@pytest.mark.parametrize("terminal_", [False, True])
def test_a_whole_table_is_never_cut(screen: StringIO, terminal_: bool) -> None:
    table = Table(*(f"B={number}\nk=100" for number in range(40)))
    table.add_row(*(f"{number}.5" for number in range(40)))
    terminal.print_whole(new_console(file=screen, width=30, force_terminal=terminal_, no_color=True), table)
    shown = screen.getvalue()
    assert "…" not in shown
    assert all(f"B={number}" in shown and f"{number}.5" in shown for number in range(40))
    assert len({len(line) for line in shown.splitlines() if "│" in line}) == 1


def test_the_end_names_rate_and_bad_lines(screen: StringIO) -> None:
    report = IngestReport(added=1_000, unchanged=500, skipped=102, problems=[BadLine(n, "bad") for n in range(1, 101)])
    terminal.print_ingestion(new_console(file=screen), "few", report, 4.0)
    lines = screen.getvalue().splitlines()
    assert lines[1] == "1,602 documents in 4.0 s, 400 a second; 500 were there already and cost nothing"
    assert (len(lines), lines[2], lines[-1]) == (103, "  line 1 skipped: bad", "  and 2 more")


class TestPace:
    def test_of_late(self, clock: Clock) -> None:
        pace = UploadSpeed(10_000, clock)
        assert (pace.documents_per_second, pace.seconds_left) == (0.0, None)
        clock.now += 1
        pace.observe(5_000, 5_000)
        assert pace.documents_per_second == 5_000
        for second in range(1, 61):
            clock.now += 1
            pace.observe(5_000 + 10 * second, 5_000 + 10 * second)
        assert pace.documents_per_second == 10
        assert pace.seconds_left == 440

    def test_the_window_has_its_length(self, clock: Clock) -> None:
        pace = UploadSpeed(None, clock)
        clock.now += WINDOW_SECONDS
        pace.observe(60, 0)
        assert pace.documents_per_second == 2
        clock.now += WINDOW_SECONDS
        pace.observe(90, 0)
        assert pace.documents_per_second == 1

    def test_no_time_is_left_once_all_is_read(self, clock: Clock) -> None:
        pace = UploadSpeed(100, clock)
        clock.now += 1
        pace.observe(1, 150)
        assert pace.seconds_left == 0


@pytest.mark.strangers
def test_a_count_in_a_log_and_on_a_terminal(screen: StringIO, clock: Clock) -> None:
    with terminal.steps(new_console(file=screen), "embedding", 3_500, clock) as advance:
        for _ in range(35):
            clock.now += 1
            advance(100)
    assert screen.getvalue().splitlines() == [
        "embedding: 3,500",
        *(f"embedding: {n},000 of 3,500" for n in (1, 2, 3)),
    ]
    with terminal.steps(new_console(file=screen, force_terminal=True, width=120), "embedding", 10, clock) as advance:
        advance(10)
    assert "10/10" in screen.getvalue()
