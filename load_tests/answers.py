"""Record the answers to many requests, and compare the recordings of two versions.

    python -m load_tests.answers record after.json
    python -m load_tests.answers record --command ../before/.venv/bin/boundarymorph before.json
    python -m load_tests.answers compare before.json after.json

The processes serve a copy of the folder that `make demo` leaves, and everything goes over HTTP, so that this tool can
record a version that is older than itself. The requests are in `recorded_selections.py` and `recorded_routes.py`.

When a version has lost a field or a feature, record both versions and compare them with the same options. `--ignore
FIELD` leaves a field out of requests, answers, and settings, or a variable out of the environment. `usage.cost` is a
field `cost` directly within a field `usage`, and `.cost` is one that is within no other. `--leave-out NAME` leaves
requests out; the name may have wildcards, as in 'mcp/*'.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from itertools import zip_longest
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
from numpy.typing import NDArray
from safetensors.numpy import load

from load_tests import processes
from load_tests.recorded_routes import Kill, Scene, scenes
from load_tests.recorded_selections import EVENTS, NDJSON, Request, lines
from tests.ports import free_port

IGNORED: tuple[str, ...] = (
    "learned_from",
    "promise",
    "priority",
    "pool.map",
    "pool.first_relevance",
    "pool.first_std",
    "rounds.ids",
)  # fields that --ignore need not name
LEFT_OUT: tuple[str, ...] = (
    "batch/*",
    "*priority*",
    "stream/explain=pool",
    "stream/queries",
)  # requests that --leave-out need not name
VOLATILE = ("created", "timings_ms", "bytes", "since")  # fields that differ from run to run
HEADERS = ("allow", "content-type", "location", "ratelimit-policy", "www-authenticate")
OWN_HEADERS = "x-boundarymorph-"
_ID = re.compile(r"\b[0-9a-f]{32}\b")  # the id of an answer
_WAIT = re.compile(r"\bWait \d+ seconds")  # until the next day or year
SHOWN, LONGEST = 4, 200  # differences of a request, and characters of a value
MISSING = object()
Recording = dict[str, dict[str, Any]]


def record(
    data: Path, command: Path | None = None, ignored: Sequence[str] = (), left_out: Sequence[str] = ()
) -> Recording:
    """Return the answers of a service over copies of `data` by the names of the requests.

    `command` is an installed `boundarymorph` to run instead of this checkout's.
    """
    recording: Recording = {}
    for scene in scenes().values():
        events = [event for event in scene.events if isinstance(event, Kill) or not matches(event.name, left_out)]
        if not any(isinstance(event, Request) for event in events):
            continue
        with running(scene, data, command, ignored) as servers, ExitStack() as stack:
            urls = {server.url: f"http://{role}" for role, server in servers.items()}
            clients = {role: stack.enter_context(client(server.url)) for role, server in servers.items()}
            for event in events:
                if isinstance(event, Kill):
                    servers[event.role].process.kill()
                    servers[event.role].process.wait()
                else:
                    recording[event.name] = answer(clients[event.role], event, urls, ignored)
    return recording


@contextmanager
def running(
    scene: Scene, data: Path, command: Path | None = None, ignored: Sequence[str] = ()
) -> Iterator[dict[str, processes.Server]]:
    """Start the processes of a scene over a copy of `data`, and yield them when they are ready.

    They are by role.
    """
    variables = {
        name: value if isinstance(value, str) else orjson.dumps(without(value, ignored)).decode()
        for name, value in scene.variables.items()
        if name not in ignored
    }
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        places = {"data": f"{folder}/data", "empty": f"{folder}/empty"}
        shutil.copytree(data, places["data"])
        servers: dict[str, processes.Server] = {}
        for role, arguments in scene.processes.items():
            port = free_port()
            started = start(
                command, [*arguments.split(), "--port", str(port), "--log-level", "critical"], places, variables
            )
            servers[role] = stack.enter_context(processes.ready(started, port, "readyz"))
            places[role] = servers[role].url
        yield servers


def start(
    command: Path | None, arguments: Sequence[str], places: Mapping[str, str], variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start `boundarymorph ARGUMENTS`.

    Its environment has only these variables for the service's settings.
    """
    filled = [argument.format(**places) for argument in arguments]
    inherited = {name: value for name, value in processes.source(None).items() if not name.startswith("BOUNDARYMORPH_")}
    if command is None:
        return processes.start(filled, {**inherited, **variables})
    del inherited["PYTHONPATH"]  # it leads to this checkout
    return subprocess.Popen([str(command), *filled], env={**inherited, **variables})


def client(url: str) -> httpx.Client:
    """Return a client of a process."""
    return httpx.Client(base_url=url, timeout=300, trust_env=False)


def answer(
    client: httpx.Client, request: Request, urls: Mapping[str, str] | None = None, ignored: Sequence[str] = ()
) -> dict[str, Any]:
    """Send a request, and return it and its answer without values that differ from run to run.

    `urls` has the text that replaces the URL of each process.
    """
    body = without(request.body, ignored)
    headers = {} if body is None else {"Content-Type": "application/json"}
    headers |= request.headers
    content = body if body is None or isinstance(body, bytes) else orjson.dumps(body)
    if isinstance(body, list) and headers["Content-Type"] in NDJSON.values():
        content = lines(*body)
    response = client.request(request.method, request.path, content=content, headers=headers)
    return {
        "request": f"{request.method} {request.path} {shown(dict(request.headers))}",
        "body": body.decode("latin-1") if isinstance(body, bytes) else body,
        "status": response.status_code,
        "headers": {
            name: value for name, value in response.headers.items() if name in HEADERS or name.startswith(OWN_HEADERS)
        },
        "answer": without(content_of(response, urls or {}), VOLATILE),
    }


def content_of(response: httpx.Response, urls: Mapping[str, str]) -> Any:
    """Return the content of an answer as JSON, None for a page or metrics."""
    kind = response.headers.get("content-type", "").partition(";")[0]
    if kind.startswith("application/vnd.boundarymorph."):
        return {name: summary(tensor) for name, tensor in sorted(load(response.content).items())}
    if not response.content or (kind.startswith("text/") and kind != EVENTS["Accept"]):
        return None
    text = _WAIT.sub("Wait", _ID.sub("ID", response.text))
    for url, name in urls.items():
        text = text.replace(url, name)
    if kind == EVENTS["Accept"]:
        events = [line.partition(": ") for line in text.splitlines() if line]
        return [{name: orjson.loads(value) if name == "data" else value} for name, _, value in events]
    if kind in NDJSON.values():  # in the order in which they are ready, and with the progress made after some time
        return [line for text in sorted(text.splitlines()) if "progress" not in (line := orjson.loads(text))]
    return orjson.loads(text)


def summary(tensor: NDArray[Any]) -> Any:
    """Return a tensor's JSON, if it has JSON as bytes.

    Otherwise, return its type, its shape, and a hash of its numbers.
    """
    if tensor.dtype == np.uint8 and tensor.ndim == 1:
        return orjson.loads(tensor.tobytes())
    return [str(tensor.dtype), *tensor.shape, hashlib.sha256(tensor.tobytes()).hexdigest()]


def without(value: Any, fields: Sequence[str], path: tuple[str, ...] = ("",)) -> Any:
    """Return a JSON value without some fields.

    `path` is the path of the value, with an empty name first.
    """
    if isinstance(value, list):
        return [without(inner, fields, path) for inner in value]
    if not isinstance(value, dict):
        return value
    kept = {name: inner for name, inner in value.items() if not is_among((*path, name), fields)}
    return {name: without(inner, fields, (*path, name)) for name, inner in kept.items()}


def is_among(path: Sequence[str], fields: Sequence[str]) -> bool:
    """Return whether the names of a field, or the last of them, belong to one of these fields."""
    return any(f".{'.'.join(path)}".endswith(f".{field}") for field in fields)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a name is one of these, which may have wildcards."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def compare(before: Path, after: Path, ignored: Sequence[str] = (), left_out: Sequence[str] = ()) -> int:
    """Print every request that is answered differently, and return their number."""
    old, new = (
        {
            name: {part: without(value, ignored) for part, value in entry.items()}
            for name, entry in orjson.loads(path.read_bytes()).items()
            if not matches(name, left_out)
        }
        for path in (before, after)
    )
    names = list(dict.fromkeys([*old, *new]))
    different = [name for name in names if old.get(name) != new.get(name)]
    for name in different:
        print(name)
        found = list(differences(old.get(name), new.get(name)))
        for path, one, other in found[:SHOWN]:
            print(f"  {path}: {shown(one)} -> {shown(other)}")
        if len(found) > SHOWN:
            print(f"  and {len(found) - SHOWN} more")
    print(f"{len(names)} requests, {len(different)} answered differently")
    return len(different)


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield path, old, and new value of everything that differs between two JSON values."""
    if isinstance(old, dict) and isinstance(new, dict):
        pairs: Iterator[tuple[Any, Any, Any]] = (
            (name, old.get(name, MISSING), new.get(name, MISSING)) for name in old | new
        )
    elif isinstance(old, list) and isinstance(new, list):
        pairs = ((number, *pair) for number, pair in enumerate(zip_longest(old, new, fillvalue=MISSING)))
    else:
        if old != new:
            yield path.removeprefix("."), old, new
        return
    for name, one, other in pairs:
        yield from differences(one, other, f"{path}.{name}")


def shown(value: Any) -> str:
    """Return a value as short JSON."""
    text = "nothing" if value is MISSING else orjson.dumps(value).decode()
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="action", required=True)
    recording, comparing = commands.add_parser("record"), commands.add_parser("compare")
    recording.add_argument("file", type=Path, help="to write")
    recording.add_argument("--command", type=Path, help="the `boundarymorph` to run, by default this checkout's")
    recording.add_argument("--data", type=Path, default=Path("data"), help="the folder that `make demo` leaves")
    comparing.add_argument(
        "files", type=Path, nargs=2, metavar="FILE", help="of the version before, and of the one after"
    )
    for one in (recording, comparing):
        one.add_argument("--ignore", action="append", default=[*IGNORED], metavar="FIELD", help="repeatable; see above")
        one.add_argument("--leave-out", action="append", default=[*LEFT_OUT], metavar="NAME", help="the same")
    given = parser.parse_args()
    if given.action == "compare":
        before, after = given.files
        sys.exit(bool(compare(before, after, given.ignore, given.leave_out)))
    begin = time.monotonic()
    answers = record(given.data, given.command, given.ignore, given.leave_out)
    given.file.parent.mkdir(parents=True, exist_ok=True)
    given.file.write_bytes(orjson.dumps(answers, option=orjson.OPT_INDENT_2))
    print(f"{len(answers)} answers in {time.monotonic() - begin:.0f} s: {given.file}")


if __name__ == "__main__":
    main()
