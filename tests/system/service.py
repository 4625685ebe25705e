"""Run the service, the scorer, and the retriever as processes, with a client for each."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import Any

import httpx
import orjson

from tests import weights
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.system.forked import Forked, start

NDJSON = {"content-type": "application/x-ndjson"}
REPOSITORY = Path(__file__).parents[2]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("BOUNDARYMORPH_")} | {
    "BOUNDARYMORPH_METRICS_SECONDS": "0",  # tests read metrics without a delay
    "BOUNDARYMORPH_SCORER__SELF_TEST": "false",  # most models have random weights, which fail it
}


def repeatable_part(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the part of an answer that a repeated request has too, cached or not."""
    usage = dict(answer["usage"])
    usage["asked"] = usage.pop("cross_encoder_calls") + usage.pop("cached_scores")
    del usage["scorer_requests"], usage["trips"]  # a cached round makes no request
    return {name: value for name, value in answer.items() if name not in {"id", "timings_ms"}} | {"usage": usage}


def boundarymorph(
    *arguments: str, data: Path, embedded: bool = False, environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own until it ends.

    `environment` and `embedded` are as in `service`.
    """
    command = [*arguments, "--data-directory", str(data)]
    with TemporaryFile() as output, TemporaryFile() as errors:
        process = start(
            command,
            output=output.fileno(),
            errors=errors.fileno(),
            environment={**environment_with(embedded), **environment},
            directory=Path.cwd(),
        )
        with process:
            code = process.wait(timeout=PATIENCE)
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, code, output.read().decode(), errors.read().decode())


def environment_with(embedded: bool) -> dict[str, str]:
    """Return the environment of a process with the embedded weights, or with tiny ones."""
    return ENVIRONMENT if embedded else {**ENVIRONMENT, weights.VARIABLE: str(weights.written())}


@dataclass(frozen=True, slots=True)
class Service:
    """A running service whose log is on disk."""

    process: subprocess.Popen[bytes] | Forked
    client: httpx.Client
    port: int
    log_file: Path

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Return the log lines that are JSON."""
        return [orjson.loads(line) for line in self.log.splitlines() if line.startswith("{")]

    def await_answer(self, path: str = "/readyz") -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            try:
                if self.client.get(path).is_success:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=PATIENCE)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def select(self, **request: Any) -> dict[str, Any]:
        """Return the answer of POST /select, which must succeed."""
        response = self.client.post("/select", json=request)
        assert response.is_success, response.text
        body: dict[str, Any] = response.json()
        return body

    def fill(self, name: str, documents: Iterable[Mapping[str, Any]], **configuration: Any) -> None:
        """Make an index of documents."""
        assert self.client.put(f"/indexes/{name}", json=configuration).status_code == 201
        self.upload(name, documents)

    def upload(self, name: str, documents: Iterable[Mapping[str, Any]]) -> None:
        lines = b"\n".join(map(orjson.dumps, documents))
        uploaded = self.client.post(f"/indexes/{name}/documents", content=lines, headers=NDJSON)
        assert uploaded.is_success and uploaded.json()["skipped"] == 0, uploaded.text

    def metric(self, sample: str) -> float:
        """Return the value of a sample, or 0; its labels are in alphabetical order."""
        lines = self.client.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(sample))


def service(
    data: Path,
    *options: str,
    port: int | None = None,
    ready: bool = True,
    environment: Mapping[str, str] = MappingProxyType({}),
    embedded: bool = False,
    wrapper: Sequence[str] = (),
) -> AbstractContextManager[Service]:
    """Run a service over a data directory, and kill it at the end.

    Args:
        data: The data directory.
        options: Further options of the command.
        port: The port, by default a free one.
        ready: Whether to wait until it is ready.
        environment: Further environment variables.
        embedded: Whether it uses the embedded weights, not the tiny ones.
        wrapper: A command that runs the service's command.
    """
    log_file, variables = data.parent / f"{data.name}.log", {**environment_with(embedded), **environment}
    return _process("serve", log_file, [*options, "--data-directory", str(data)], port, ready, variables, wrapper)


def scorer(
    log_file: Path, *options: str, port: int | None = None, ready: bool = True, embedded: bool = False
) -> AbstractContextManager[Service]:
    """Run a scorer with the options of `service`."""
    return _process("scorer", log_file, options, port, ready, environment_with(embedded))


def retriever(
    data: Path, *options: str, port: int | None = None, ready: bool = True, wrapper: Sequence[str] = ()
) -> AbstractContextManager[Service]:
    """Run a retriever over a data directory with the options of `service`."""
    log_file, arguments = data.parent / f"{data.name}-retriever.log", [*options, "--data-directory", str(data)]
    return _process("retriever", log_file, arguments, port, ready, environment_with(embedded=False), wrapper)


@contextmanager
def _process(
    role: str,
    log_file: Path,
    options: Sequence[str],
    port: int | None,
    ready: bool,
    environment: Mapping[str, str],
    wrapper: Sequence[str] = (),
) -> Iterator[Service]:
    port = free_port() if port is None else port
    arguments = [role, "--port", str(port), *options]
    with (
        log_file.open("ab") as log,
        _start(arguments, log.fileno(), environment, log_file.parent, wrapper) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client,
    ):
        running = Service(process, client, port, log_file)
        try:
            if ready:
                running.await_answer()
            yield running
        finally:
            process.kill()


def _start(
    arguments: Sequence[str], output: int, environment: Mapping[str, str], directory: Path, wrapper: Sequence[str]
) -> subprocess.Popen[bytes] | Forked:
    """Start a process, by forking unless something must come before its imports."""
    if not (wrapper or "LD_PRELOAD" in environment):
        return start(arguments, output=output, environment=environment, directory=directory)
    command = [*wrapper, sys.executable, "-m", "tests.weights", *arguments]
    variables = {**environment, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(command, stdout=output, stderr=output, env=variables, cwd=directory)
