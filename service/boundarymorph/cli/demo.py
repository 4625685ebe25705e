"""Run the demo: index the standard library's docstrings and query a real service over HTTP."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import shlex
import socket
import subprocess
import sys
import sysconfig
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import orjson
from rich.console import Console

from boundarymorph.cli import terminal
from boundarymorph.errors import BoundaryMorphError
from boundarymorph.remote.urls import own_url
from boundarymorph.retrieval.document import Document
from boundarymorph.settings import Settings

INDEX = "python-docstrings"
UPLOAD = 128  # documents per request, so that there is progress to show and an interruption loses little
STARTUP_SECONDS = 60.0
QUERY = "work with dates, times and time zones"
OMITTED = {"__hello__", "__phello__", "ensurepip", "idlelib", "lib2to3", "site-packages", "test", "tests", "turtledemo"}


class DemoFailed(BoundaryMorphError):
    """The service did not start or did not answer correctly."""


def run(console: Console, settings: Settings, query: str, budget: int, k: int) -> None:
    console.print("[dim]starting the service, with an encoder and a cross-encoder on the CPU[/dim]")
    with service(settings.data_directory) as client:
        console.print(f"[dim]{_upload(console, client)}[/dim]")
        request = {"query": query, "index": INDEX, "budget": budget, "k": k, "return_documents": True}
        console.print(f"\n[bold]POST {client.base_url}/select[/bold] {orjson.dumps(request).decode()}\n")
        answer = _answered(client.post("/select", json=request)).json()
        terminal.print_selection(console, query, answer)
    console.print(f"\nto see how it came about: {_afterwards(settings)}")


def _afterwards(settings: Settings) -> str:
    """Return a sentence on how to run a service with this index, and the address of its page."""
    command = "`make serve`, or `boundarymorph serve`"
    if "data_directory" in settings.model_fields_set:
        command = f"`boundarymorph serve --data-directory {shlex.quote(str(settings.data_directory))}`"
    if not settings.playground or not settings.port:
        return command
    return f"{command}, and {own_url(settings.host, settings.port)}/playground"


def docstrings() -> Iterator[Document]:
    """Yield the documented public functions, classes, and methods of Python's standard library.

    Python sources are parsed, not imported, so their code does not run; modules without source are inspected.
    """
    seen: set[str] = set()
    for name, text, kind in [*_from_sources(), *_from_extensions()]:
        private = any(part.startswith("_") and not part.startswith("__") for part in name.split("."))
        if not private and name not in seen:
            seen.add(name)
            yield Document(name, text, name, {"kind": kind, "module": name.partition(".")[0]})


def _from_sources() -> Iterator[tuple[str, str, str]]:
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).with_suffix("").parts
        if OMITTED.isdisjoint(parts):
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield from _definitions(ast.parse(path.read_bytes()), module)


def _definitions(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, str, str]]:
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}.{child.name}"
            if text := ast.get_docstring(child):
                yield name, text, "class" if isinstance(child, ast.ClassDef) else "function"
            if isinstance(child, ast.ClassDef):
                yield from _definitions(child, name)


def _from_extensions() -> Iterator[tuple[str, str, str]]:
    for name in sorted(sys.stdlib_module_names):
        if name.startswith("_") or name in OMITTED:
            continue
        spec = importlib.util.find_spec(name)
        if spec is None or (spec.origin or "").endswith(".py"):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            module = importlib.import_module(name)
        yield from _members(module, name, depth=2)


def _members(owner: object, prefix: str, depth: int) -> Iterator[tuple[str, str, str]]:
    for member, thing in sorted(vars(owner).items()):
        is_class = inspect.isclass(thing)
        if member.startswith("_") or not (is_class or inspect.isroutine(thing)):
            continue
        name = f"{prefix}.{member}"
        if text := inspect.getdoc(thing):
            yield name, text, "class" if is_class else "function"
        if is_class and depth > 1:
            yield from _members(thing, name, depth - 1)


@contextmanager
def service(data_directory: Path) -> Iterator[httpx.Client]:
    """Start `boundarymorph serve` on a free port, await readiness, and stop it at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "boundarymorph.cli", "serve", "--port", str(port), "--log-level", "warning"]
    process = subprocess.Popen([*command, "--data-directory", str(data_directory)])  # noqa: S603 - our own command
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300) as client:
            _await_ready(client, process)
            yield client
    finally:
        process.terminate()
        process.wait(timeout=30)


def _await_ready(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + STARTUP_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise DemoFailed(f"the service stopped with exit code {process.returncode}; its log is above")
        try:
            if client.get("/readyz").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise DemoFailed(f"the service was not ready after {STARTUP_SECONDS:.0f} seconds")


def _upload(console: Console, client: httpx.Client) -> str:
    """Send every document; the service does not embed unchanged ones again."""
    start = time.monotonic()
    console.print("[dim]reading the docstrings of Python's standard library[/dim]")
    corpus = list(docstrings())
    console.print(f"[dim]indexing {len(corpus):,} documents; those that are new are embedded[/dim]")
    _answered(client.put(f"/indexes/{INDEX}"))
    counts = {"added": 0, "updated": 0, "unchanged": 0}
    with terminal.steps(console, f"indexing {INDEX}", len(corpus)) as advance:
        for first in range(0, len(corpus), UPLOAD):
            batch = corpus[first : first + UPLOAD]
            lines = b"\n".join(map(orjson.dumps, batch))
            headers = {"Content-Type": "application/x-ndjson"}
            report = _answered(client.post(f"/indexes/{INDEX}/documents", content=lines, headers=headers)).json()
            for outcome in counts:
                counts[outcome] += report[outcome]
            advance(len(batch))
    outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items() if count)
    return f"{len(corpus):,} documents: {outcomes} in {time.monotonic() - start:.1f} s"


def _answered(response: httpx.Response) -> httpx.Response:
    if not response.is_success:
        raise DemoFailed(f"{response.request.method} {response.request.url}: {response.status_code} {response.text}")
    return response
