"""What a selection looks like on a terminal."""

from io import StringIO
from typing import Any

from boundarymorph.cli.common import new_console
from boundarymorph.cli.terminal import print_selection


def document(rank: int, source: str, retrieval_rank: int, text: str | None) -> dict[str, Any]:
    return {
        "id": f"doc[{rank}]",
        "rank": rank,
        "relevance": 1 - rank / 10,
        "std": 0.0 if source == "cross_encoder" else 0.25,
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
    "warnings": ["2 documents were [cut]"],
}


def test_a_selection() -> None:
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


def test_a_heading_and_what_follows() -> None:
    documents = [document(1, "posterior", 1, "### Options\n\nWhat it does.\n"), document(2, "posterior", 2, "# Alone")]
    screen = shown(ANSWER | {"documents": documents})
    assert "doc[1]  Options  What it does." in screen and "doc[2]  Alone" in screen


def test_a_file_gets_whole_lines() -> None:
    text = "a long line " * 20
    answer = ANSWER | {"documents": [document(1, "posterior", 1, text), document(2, "posterior", 2, "short")]}
    written = shown(answer, width=80)
    assert text.strip() in written and " \n" not in written
    assert text.strip() not in shown(answer, terminal=True, width=80)


def test_nothing_selected() -> None:
    assert "0 documents: 0 scored, 0 inferred" in shown(ANSWER | {"documents": [], "warnings": []})
