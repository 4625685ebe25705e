"""`evaluate --scorer openai://...`: a table by a language model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boundarymorph_evaluation import evaluate as command
from boundarymorph_evaluation import report, tables
from tests.evaluation.test_command import GRID, run, texts
from tests.fakes.scorer import score_of
from tests.fakes.upstream import answer, in_a_thread
from tests.fakes.wires import Server
from tests.retrieval.fakes import SeededEncoder
from tests.scoring.chat.scripted import Chat, completion, pair_of

PAIRS = 2 * 30


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_draw", lambda studies, folder: {})
    monkeypatch.setattr(command, "build_encoder", lambda settings: SeededEncoder())


def evaluated(tmp_path: Path, server: Server, *options: str) -> tuple[str, Path]:
    """What the terminal showed, and the table."""
    folder, table = tmp_path / "kitchen", tmp_path / "judged.npz"
    if not folder.exists():
        texts(folder)
    url = f"openai+http://127.0.0.1:{server.port}/v1?model=scripted"
    arguments: list[str | Path] = ["--data", folder, "--scorer", url, "--write-table", table, *GRID]
    return run(*arguments, "--methods", "mips,trend", "--out", tmp_path / "out", *options), table


def test_a_table_by_a_language_model(tmp_path: Path) -> None:
    with in_a_thread(Server(Chat())) as server:
        _, table = evaluated(tmp_path, server)
        assert len(server.asked) == PAIRS
        evaluated(tmp_path, server)
        assert len(server.asked) == PAIRS, "a finished table is not scored again"
    asked: dict[str, list[float]] = {}
    for query, text in map(pair_of, server.asked):
        asked.setdefault(query, []).append(score_of(query, text))
    found = {str(sorted(question.scores.round(6))) for question in tables.read(table).questions()}
    assert found == {str(sorted(np.round(scores, 6))) for scores in asked.values()}


async def _well(reply: Any) -> Any:
    return reply


def test_documents_without_a_grade_are_left_out(tmp_path: Path) -> None:
    with in_a_thread(Server(Chat())) as server:
        server.script = [_well, answer(completion("Hard to say.")), answer({"error": "filtered"}, 400)]
        _, table = evaluated(tmp_path, server)
    sizes = [len(question.scores) for question in tables.read(table).questions()]
    assert sum(sizes) == PAIRS - 2
