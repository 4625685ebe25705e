"""The examples that find nearly all and that ask several questions, as programs of their own, over a socket."""

import json
import pkgutil
import re
from inspect import getdoc
from pathlib import Path

from boundarymorph_client import AsyncClient
from tests.clients.examples import NAMES, QUESTION, printed_by

TOPICS = ("harbour cranes lift cargo", "bees make honey in a hive", "walls guard the old town")
SOUGHT = "walls of old towns"


async def test_it_stops_when_nearly_all_is_found(url: str, tmp_path: Path) -> None:
    records = [
        {
            "id": f"{topic}-{number}",
            "title": f"record {number}",
            "text": f"{words} {number % 5}",
            "label": int(topic == 2),
        }
        for number in range(60)
        for topic, words in enumerate(TOPICS)
    ]
    file = tmp_path / "records.jsonl"
    file.write_text("\n".join(map(json.dumps, records)))
    printed = await printed_by("find_all.py", str(file), SOUGHT, url=url)
    lines = re.findall(
        r"^(\d+) of 180 read, (\d+) relevant, believed to be \d+% \(\d+% to \d+%\) of all$", printed, re.MULTILINE
    )
    assert [int(read) for read, _ in lines] == [25 * turn for turn in range(1, len(lines) + 1)]
    read, relevant = map(int, lines[-1])
    assert read < 180 and relevant >= 0.95 * 60
    assert printed.endswith("stopped: found\n")


async def test_it_asks_for_what_has_no_label(url: str, tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    texts = ["walls of the old town", "honey", "town walls"]
    file.write_text("\n".join(json.dumps({"id": f"{place}", "text": text}) for place, text in enumerate(texts)))
    printed = await printed_by("find_all.py", str(file), SOUGHT, url=url, typed="y\ny\nn\n")
    assert printed.count("relevant? y or n: ") == 3
    assert "3 of 3 read, 2 relevant, believed to be 100% (100% to 100%) of all" in printed
    assert printed.endswith("stopped: pool_exhausted\n")


async def test_several_questions_take_two_turns(url: str) -> None:
    async with AsyncClient(url) as client:
        await client.create_index("python-docstrings")
        documents = [{"id": name, "text": f"{getdoc(pkgutil.resolve_name(name))}"} for name in NAMES]
        await client.upload("python-docstrings", documents)
    printed = await printed_by("several_questions.py", QUESTION, url=url)
    turns = re.findall(r"^turn (\d): (\d+) calls for 3 queries$", printed, re.MULTILINE)
    assert [turn for turn, _ in turns] == ["1", "2"]
    assert all(0 < int(calls) <= 20 for _, calls in turns)
    found = re.findall(r"^\d\.\d{3} (\S+) answers query ([012])$", printed, re.MULTILINE)
    assert len(found) == len({id for id, _ in found}) == 6 and {id for id, _ in found} <= {*NAMES}
