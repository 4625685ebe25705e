"""Count the files, functions, and calls of one warm request.

`python -m load_tests.path_of_a_request` also prints the functions from the route to the boundary rule of the paper.

The service runs in this process, with the embedded models. Each request is sent three times, with another query each
time, and the last one is counted.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from starlette.testclient import TestClient

import boundarymorph
from boundarymorph.api.select import select
from boundarymorph.selection import BoundaryGap
from boundarymorph.server.app import create_app
from boundarymorph.settings import Settings

OURS = str(Path(boundarymorph.__file__).parent)
TEXTS = [f"{verb} the {thing} {how}" for verb in ("sort", "read", "sum") for thing in ("list", "file", "words", "rows")
         for how in ("now", "slowly", "twice", "again", "at once")]  # fmt: skip
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "POST /v1/rerank, 3 documents": ("/v1/rerank", {"documents": TEXTS[:3]}),
    "POST /select, a pool of 24": ("/select", {"pool": TEXTS[:24], "budget": 8, "k": 6}),
    "POST /select, an index of 60": ("/select", {"index": "texts", "budget": 20, "k": 4}),
}
counted: Counter[CodeType] | None = None
chain: list[CodeType] = []  # from the route to the rule


def count(frame: FrameType, event: str, argument: object) -> None:
    """Count a call of one of our functions, in any thread, while `counted` is set."""
    if event != "call" or counted is None or not frame.f_code.co_filename.startswith(OURS):
        return
    counted[frame.f_code] += 1
    if frame.f_code is BoundaryGap.choose.__code__:
        chain[:] = reversed(list(dict.fromkeys(callers(frame))))


def callers(frame: FrameType | None) -> Iterator[CodeType]:
    """Yield our functions from a frame outwards, as far as the route."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(OURS):
            yield frame.f_code
            if frame.f_code is select.__code__:
                return
        frame = frame.f_back


def main() -> None:
    global counted
    threading.setprofile(count)
    with (
        tempfile.TemporaryDirectory() as folder,
        TestClient(create_app(Settings(data_directory=Path(folder)))) as client,
    ):
        while not client.get("/readyz").is_success:
            time.sleep(0.05)
        client.put("/indexes/texts").raise_for_status()
        documents = [{"id": str(number), "text": text} for number, text in enumerate(TEXTS)]
        client.post("/indexes/texts/documents", json=documents).raise_for_status()
        for name, (path, body) in REQUESTS.items():
            for query in ("sort numbers", "read a table", "sum of lines"):
                counted = Counter()
                client.post(path, json=body | {"query": query}).raise_for_status()
                seen, counted = counted, None
            files = {code.co_filename for code in seen}
            print(f"{name}: {len(files)} files, {len(seen)} functions, {seen.total():,} calls")
        files = {code.co_filename for code in chain}
        print(f"\nfrom the route to the rule: {len(chain)} functions in {len(files)} files")
        for code in chain:
            lines = max(line or 0 for *_, line in code.co_lines()) - code.co_firstlineno + 1
            print(f"  {code.co_qualname}, {lines} lines, {Path(code.co_filename).relative_to(OURS)}")


if __name__ == "__main__":
    main()
