"""Test the exit code of a process that is stopped during requests."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.patience import PATIENCE
from tests.ports import free_port
from tests.system.forked import Forked, start
from tests.system.service import ENVIRONMENT


@contextmanager
def running_a_request(directory: Path, seconds: float, path: str = "slow", **settings: object) -> Iterator[Forked]:
    """Yield a process in the middle of a request that takes some seconds."""
    port = free_port()
    variables = {f"BOUNDARYMORPH_{name.upper()}": str(value) for name, value in {"port": port, **settings}.items()}

    def ask() -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            with suppress(httpx.TransportError):
                httpx.get(f"http://127.0.0.1:{port}/{path}/{seconds}", timeout=120)
                return
            if process.poll() is not None:
                return
            time.sleep(0.05)

    reading, writing = os.pipe()
    with (
        (directory / "log").open("wb") as log,
        os.fdopen(reading, "rb") as printed,
        start(
            [],
            output=writing,
            errors=log.fileno(),
            environment={**ENVIRONMENT, **variables},
            directory=directory,
            program="tests.system.slow_app",
        ) as process,
    ):
        os.close(writing)
        asking = threading.Thread(target=ask)
        asking.start()
        try:
            assert printed.readline() == b"begun\n"
            yield process
        finally:
            process.kill()
            asking.join()


@pytest.mark.parametrize(("seconds", "code"), [(0.5, 0), (100, 1)])
def test_process_waits_for_requests_until_the_grace_time_ends(tmp_path: Path, seconds: float, code: int) -> None:
    grace = PATIENCE if code == 0 else 1
    with running_a_request(tmp_path, seconds, grace_seconds=grace) as process:
        process.terminate()
        assert process.wait(timeout=PATIENCE) == code


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_process_ends_at_once_on_a_second_signal(tmp_path: Path, second: signal.Signals) -> None:
    with running_a_request(tmp_path, 100) as process:
        process.terminate()
        time.sleep(0.5)  # equal signals at the same time arrive as one
        process.send_signal(second)
        assert process.wait(timeout=PATIENCE) == 128 + second


def test_log_ends_with_the_cause_of_a_failed_start(tmp_path: Path) -> None:
    """No line says that the service runs."""
    missing = str(tmp_path / "missing")
    variables = {"BOUNDARYMORPH_SCORER__MODEL": missing, "BOUNDARYMORPH_DATA_DIRECTORY": str(tmp_path)}
    with (tmp_path / "log").open("wb") as log:
        arguments = ["serve", "--port", str(free_port())]
        environment = {**ENVIRONMENT, **variables}
        with start(
            arguments, output=log.fileno(), errors=log.fileno(), environment=environment, directory=tmp_path
        ) as process:
            assert process.wait(timeout=PATIENCE) == 1
    lines = (tmp_path / "log").read_text().splitlines()
    (cause,) = (number for number, line in enumerate(lines) if "the service cannot start: " in line)
    assert not [line for line in lines[cause:] if "INFO" in line and "Finished server process" not in line]
    assert "ERROR" in lines[-1] and missing in lines[-1]
