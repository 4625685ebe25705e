"""Test that the programs of clients/examples and of the READMEs work as described."""

import json
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.clients.examples import EXAMPLES, check_example, printed_by

ROOT = Path(__file__).parents[2]
README = ROOT / "clients" / "python" / "README.md"
TOPICS = ("harbour cranes lift cargo", "bees make honey in a hive", "walls guard the old town")
KEY = "bm_a-secret-that-nobody-prints"


def examples(page: Path) -> list[tuple[str, str]]:
    """Return the Python blocks of a page, each with the block after it."""
    blocks = re.findall(r"```(\w*)\n(.*?)```\n", page.read_text(), re.DOTALL)
    return [(code, after) for (kind, code), (_, after) in pairwise(blocks) if kind == "python"]


def to_a_tenth(text: str) -> str:
    """Remove second decimals, which depend on the processor."""
    return re.sub(r"(\d\.\d)\d", r"\1", text)


@pytest.mark.parametrize(
    "name",
    ["plain.py", *(pytest.param(f"with_{each}.py", marks=pytest.mark.slow)
                   for each in ("langchain", "llamaindex", "haystack"))],
)  # fmt: skip
def test_example_program_answers_from_the_documents_found(name: str, url: str) -> None:
    check_example([sys.executable, str(EXAMPLES / name)], url)


def test_find_all_example_stops_when_nearly_all_is_found(url: str, tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    records = (
        {"id": f"{topic}-{n}", "title": f"record {n}", "text": f"{words} {n % 5}", "label": int(topic == 2)}
        for n in range(60)
        for topic, words in enumerate(TOPICS)
    )
    file.write_text("\n".join(map(json.dumps, records)))
    command = [sys.executable, str(EXAMPLES / "find_all.py"), str(file), "walls of old towns"]
    printed = printed_by(*command, BOUNDARYMORPH_URL=url)
    lines = re.findall(
        r"^(\d+) of 180 read, (\d+) relevant, believed to be \d+% \(\d+% to \d+%\) of all$", printed, re.M
    )
    assert [int(read) for read, _ in lines] == [25 * turn for turn in range(1, len(lines) + 1)]
    read, relevant = map(int, lines[-1])
    assert read < 180 and relevant >= 0.95 * 60
    assert printed.endswith("stopped: found\n")


def test_readme_examples_print_the_documented_output(
    embedded_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BOUNDARYMORPH_URL", embedded_url)
    whole = (ROOT / "README.md").read_text()
    hotels = re.findall(r"(?ms)^hotels = .*?^\]", whole)[0]
    (cohere,) = (each for each in examples(ROOT / "README.md") if "import cohere" in each[0])
    for code, printed in (examples(README)[0], (f"{hotels}\n{cohere[0]}", cohere[1])):
        exec(code.replace("http://localhost:8080", embedded_url), {})
        assert to_a_tenth(capsys.readouterr().out) == to_a_tenth(printed)
