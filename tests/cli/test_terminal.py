"""Test how uploads and selections are shown on a terminal and in a log.

The tests set the clock.
"""

from io import StringIO
from typing import Any

import pytest

from boundarymorph.cli import terminal
from boundarymorph.cli.common import new_console
from boundarymorph.cli.terminal import print_selection
from boundarymorph.retrieval.uploads import BadLine, IngestReport
from tests.clocks import Clock


@pytest.fixture
def screen() -> StringIO:
    return StringIO()


@pytest.mark.strangers
def test_log_has_a_line_per_stage_and_every_ten_seconds(screen: StringIO) -> None:
    clock = Clock()
    with terminal.Stages(new_console(file=screen, width=40), clock) as stages:
        for stage in ("mine: encoding documents", "mine: scoring pairs"):
            for seconds in range(26):
                clock.now += 1.0
                stages.show(stage, 100 * seconds, 2_500)
        stages.show("drawing and writing")
        stages.show("drawing and writing", 1, 1)
    assert screen.getvalue().splitlines() == [
        *(f"mine: encoding documents: {count} of 2,500" for count in ("0", "1,000", "2,000")),
        *(f"mine: scoring pairs: {count} of 2,500" for count in ("0", "1,000", "2,000")),
        "drawing and writing",
    ]


def test_ingestion_summary_shows_rate_and_skipped_lines(screen: StringIO) -> None:
    problems = [BadLine(n, "bad" if n != 3 else "worse") for n in range(1, 101)]
    report = IngestReport(added=1_000, unchanged=500, skipped=102, truncated=1, problems=problems)
    terminal.print_ingestion(new_console(file=screen), "few", report, 4.0)
    assert screen.getvalue().splitlines() == [
        "few: 1,602 documents: 1,000 added, 500 unchanged, 102 skipped; 4.0 s, 400 a second",
        "  1 text is longer than the encoder reads; it read the beginning",
        "  lines 1, 2, 4 and 96 more skipped: bad",
        "  line 3 skipped: worse",
        "  and 2 more",
    ]


def document(rank: int, source: str, retrieval_rank: int, text: str | None) -> dict[str, Any]:
    return {
        "id": f"doc[{rank}]",
        "rank": rank,
        "relevance": 1 - rank / 10,
        "std": 0.0 if source == "cross_encoder" else 0.25,
        "value": None,
        "source": source,
        "retrieval_rank": retrieval_rank,
        "text": text,
    }


def shown(answer: dict[str, Any], query: str = "what [is] asked", terminal: bool = False, width: int = 110) -> str:
    screen = StringIO()
    print_selection(new_console(file=screen, width=width, force_terminal=terminal, no_color=True), query, answer)
    return screen.getvalue()


ANSWER: dict[str, Any] = {
    "documents": [
        document(1, "cross_encoder", 4_321, "  First line [bold].\nSecond line."),
        document(2, "posterior", 1, None),
        document(3, "cross_encoder", 2, ""),
    ],
    "pool_size": 10_000,
    "usage": {"budget": 5, "cross_encoder_calls": 4, "rounds": 2},
    "stop_reason": "budget",
    "timings_ms": {"retrieve": 10.4, "select": 2.0, "score": 87.6, "total": 101.2},
    "warnings": [{"slug": "scoring-truncated", "message": "2 documents were [cut]"}],
}


def test_selection_is_printed_as_a_table() -> None:
    screen = shown(ANSWER)
    lines = screen.splitlines()
    assert "what [is] asked" in lines[0]
    assert all(part in lines[1] for part in ("N 10,000", "B 5", "k 3"))
    first, second, third = (next(line for line in lines if f"doc[{rank}]" in line) for rank in (1, 2, 3))
    assert first.split()[:4] == ["1", "0.900", "scored", "4,321"]
    assert "First line [bold]." in first and "Second" not in screen
    assert second.split()[:6] == ["2", "0.800", "inferred", "±", "0.25", "1"]
    assert third.split()[:4] == ["3", "0.700", "scored", "2"]
    assert "3 documents: 2 scored, 1 inferred; 1 from below rank 3 (deepest 4,321)" in screen
    assert "4 of 5 cross-encoder calls in 2 rounds; stopped: budget" in screen
    assert "time: 101 ms = retrieve 10 + select 2 + score 88" in screen
    assert "note: 2 documents were [cut]" in screen
    assert max(map(len, lines)) <= 110


def test_boosted_selection_is_printed_with_values() -> None:
    documents = [{**document, "value": 0.25} for document in ANSWER["documents"]]
    first = next(line for line in shown({**ANSWER, "documents": documents}).splitlines() if "doc[1]" in line)
    assert first.split()[:6] == ["1", "0.900", "scored", "4,321", "0.250", "doc[1]"]
    assert "value" not in shown(ANSWER)
