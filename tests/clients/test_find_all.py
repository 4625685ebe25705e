"""The example that finds nearly all, as a program of its own, over a socket: with labels, and with answers typed in."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path

from tests.clients.examples import EXAMPLES

TOPICS = ("harbour cranes lift cargo", "bees make honey in a hive", "walls guard the old town")


async def printed_of(url: str, records: Path, typed: str) -> str:
    program = [sys.executable, str(EXAMPLES / "find_all.py"), str(records), "walls of old towns"]
    environment = {**os.environ, "BOUNDARYMORPH_URL": url}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*program, env=environment, stdin=pipe, stdout=pipe)
    printed = (await process.communicate(typed.encode()))[0].decode()
    assert process.returncode == 0
    return printed


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
    printed = await printed_of(url, file, "")
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
    printed = await printed_of(url, file, "y\ny\nn\n")
    assert printed.count("relevant? y or n: ") == 3
    assert "3 of 3 read, 2 relevant, believed to be 100% (100% to 100%) of all" in printed
    assert printed.endswith("stopped: pool_exhausted\n")
