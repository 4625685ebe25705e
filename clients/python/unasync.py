"""Write client.py, the blocking client, from async_client.py: `make client`.

The library `httpcore` has such a script, too.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent / "src/boundarymorph_client"
SUBSTITUTIONS = (
    (
        r'"""Call a service from asyncio.*?"""',
        '"""Call a service from blocking code; `make client` writes this from async_client.py."""',
    ),
    (r"for event in events\.feed\(received\):\n +yield event", "yield from events.feed(received)"),
    (r" \| AsyncIterable\[[\w.]+\]|AsyncIterable, ", ""),
    (r"AsyncGenerator\[(.*?), None\]", r"Generator[\1, None, None]"),
    (r"Async(Client|Generator|Lines|Pools)", r"\1"),
    (r"\basync (def|for)", r"\1"),
    (r"\basync_(results)", r"\1"),
    (r"\bawait ", ""),
    (r"\basyncio\b", "time"),
    (r"\b(__)?a(enter__|exit__|iter_bytes|read|close)\b", r"\1\2"),
    (r"Several tasks", "Several threads"),
    (r"connections of its own, and so has each event loop", "connections of its own"),
    (r", so use `contextlib\.aclosing`\.", "."),
)


def written() -> str:
    """Return the source of client.py."""
    source = (PACKAGE / "async_client.py").read_text()
    for pattern, replacement in SUBSTITUTIONS:
        source, count = re.subn(pattern, replacement, source)
        assert count, f"{pattern} is no longer in async_client.py"
    command = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", str(PACKAGE / "client.py"), "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout  # noqa: S603


if __name__ == "__main__":
    (PACKAGE / "client.py").write_text(written())
