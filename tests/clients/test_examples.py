"""The programs of clients/examples and the examples of the READMEs do what is said of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.clients.conftest import Recorder
from tests.clients.examples import EXAMPLES, check_example, printed_by

ROOT = Path(__file__).parents[2]
README = ROOT / "clients" / "python" / "README.md"
TOPICS = ("harbour cranes lift cargo", "bees make honey in a hive", "walls guard the old town")
KEY = "bm_a-secret-that-nobody-prints"


def examples(page: Path) -> list[tuple[str, str]]:
    """The blocks of Python of a page, each with the block after it."""
    blocks = re.findall(r"```(\w*)\n(.*?)```\n", page.read_text(), re.DOTALL)
    return [(code, after) for (kind, code), (_, after) in pairwise(blocks) if kind == "python"]


def to_a_tenth(text: str) -> str:
    """A text without the second decimals, which depend on the processor."""
    return re.sub(r"(\d\.\d)\d", r"\1", text)


@pytest.mark.parametrize(
    "name",
    ["plain.py", *(pytest.param(f"with_{each}.py", marks=pytest.mark.slow)
                   for each in ("langchain", "llamaindex", "haystack"))],
)  # fmt: skip
def test_a_program_answers_from_what_it_finds(name: str, url: str) -> None:
    check_example([sys.executable, str(EXAMPLES / name)], url)


@pytest.mark.parametrize("labelled", [True, False])
def test_find_all_stops_when_nearly_all_is_found(labelled: bool, url: str, tmp_path: Path) -> None:
    records = [
        {"id": f"{topic}-{n}", "title": f"record {n}", "text": f"{words} {n % 5}", "label": int(topic == 2)}
        for n in range(60 if labelled else 1)
        for topic, words in enumerate(TOPICS)
    ]
    if not labelled:
        records = [{name: each[name] for name in ("id", "text")} for each in records]
    file = tmp_path / "records.jsonl"
    file.write_text("\n".join(map(json.dumps, records)))
    command = [sys.executable, str(EXAMPLES / "find_all.py"), str(file), "walls of old towns"]
    printed = printed_by(*command, BOUNDARYMORPH_URL=url, typed="y\ny\nn\n")
    if not labelled:
        assert printed.count("relevant? y or n: ") == 3
        assert "3 of 3 read, 2 relevant, believed to be 100% (100% to 100%) of all" in printed
        assert printed.endswith("stopped: pool_exhausted\n")
        return
    lines = re.findall(
        r"^(\d+) of 180 read, (\d+) relevant, believed to be \d+% \(\d+% to \d+%\) of all$", printed, re.M
    )
    assert [int(read) for read, _ in lines] == [25 * turn for turn in range(1, len(lines) + 1)]
    read, relevant = map(int, lines[-1])
    assert read < 180 and relevant >= 0.95 * 60
    assert printed.endswith("stopped: found\n")


def test_readmes_print_what_the_embedded_models_answer(
    embedded_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BOUNDARYMORPH_URL", embedded_url)
    whole = (ROOT / "README.md").read_text()
    hotels = re.findall(r"(?ms)^hotels = .*?^\]", whole)[0]
    (cohere,) = (each for each in examples(ROOT / "README.md") if "import cohere" in each[0])
    for code, printed in (examples(README)[0], (f"{hotels}\n{cohere[0]}", cohere[1])):
        exec(code.replace("http://localhost:8080", embedded_url), {})
        assert to_a_tenth(capsys.readouterr().out) == to_a_tenth(printed)


def test_library_page_extends_scores_that_were_bought(
    url: str, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the first 25 of 100 candidates, half of which are relevant."""
    blocks = re.findall(r"```python\n(.*?)```\n", (ROOT / "docs" / "library.md").read_text(), re.DOTALL)
    (example,) = (code for code in blocks if "client.extend" in code)
    even = np.arange(100) % 2 == 0
    given: dict[str, Any] = {
        "query": "what is asked",
        "texts": [f"text {number}" for number in range(100)],
        "scores": np.where(even, 0.9, 0.1)[:25].tolist(),
        "vectors": np.random.default_rng(1).standard_normal((100, 8)) / 4 + np.eye(8)[np.arange(100) % 2],
        "vector": np.eye(8)[2],
    }
    monkeypatch.setenv("BOUNDARYMORPH_URL", url)
    exec(example, given)
    assert len(given["chosen"]) == 50
    assert sum(even[given["texts"].index(text)] for text in given["chosen"]) >= 45
    assert [body["budget"] for body in recorder.bodies] == [0]


@pytest.mark.strangers
@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "plain.py", "several_questions.py", "with_langchain.py", "with_llamaindex.py", "with_haystack.py",
        "other_reranker.py", "functions.py",
        "deep_research/deep_research.py question --chat http://127.0.0.1:9/v1 --model m",
        "own_stores/langchain_stores.py ask question articles", "own_stores/llamaindex_stores.py ask question nodes",
    ],
)  # fmt: skip
def test_a_program_without_a_service_ends_with_one_line_that_names_the_address(command: str) -> None:
    name, *arguments = command.split()
    variables = {
        "BOUNDARYMORPH_URL": "http://127.0.0.1:9/\n",
        "BOUNDARYMORPH_API_KEY": f"{KEY}\n",
        "OPENAI_API_KEY": "k",
    }
    ended = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments], env=os.environ | variables, capture_output=True, text=True
    )
    assert ended.returncode == 1
    error = ended.stderr.strip().splitlines()[-1]
    assert error.startswith("error: ") and "http://127.0.0.1:9" in error
    assert "Traceback" not in ended.stderr and KEY not in ended.stderr + ended.stdout
