"""Start processes without their imports, by forking a process that has loaded the service.

Starting Python and importing the service takes more CPU than most tests do. `start` avoids that and still gives real
processes, with their own memory, files, signals, and exit codes. The process that forks has no threads.
"""

import atexit
import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson

COMMANDS = "boundarymorph.cli.main"
PRELOADED = (
    COMMANDS,
    "boundarymorph.server.process",
    "boundarymorph.server.app",
    "boundarymorph.api.indexes",
    "tests.weights",
    "uvicorn.protocols.websockets.auto",
    "uvloop",
)
NUMBER = struct.Struct("!q")


class Forked:
    """A running process with the interface of `subprocess.Popen`."""

    def __init__(self, connection: socket.socket, arguments: Sequence[str]) -> None:
        self._connection = connection
        self._reading = threading.Lock()
        self.args = list(arguments)
        self.returncode: int | None = None
        self.pid = _number(connection)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        return self._await(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code, or raise subprocess.TimeoutExpired after seconds."""
        code = self._await(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended without a report yet
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wait()
        self._connection.close()

    def _await(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], timeout)[0]:
            with self._reading:  # one of several waiting threads reads the exit code
                if self.returncode is None:
                    self.returncode = _number(self._connection)
        return self.returncode


def start(
    arguments: Sequence[str],
    *,
    output: int,
    errors: int | None = None,
    environment: Mapping[str, str],
    directory: Path,
    program: str = COMMANDS,
) -> Forked:
    """Run `main()` of a module in a new process.

    The file descriptors `output` and `errors` are its `stdout` and `stderr`, by default both `output`.
    """
    client, theirs = socket.socketpair()
    request = orjson.dumps(
        {
            "arguments": list(arguments),
            "environment": dict(environment),
            "directory": str(directory),
            "program": program,
        }
    )
    with theirs:
        socket.send_fds(_forking(), [b"."], [theirs.fileno(), output, output if errors is None else errors])
    client.sendall(NUMBER.pack(len(request)) + request)
    return Forked(client, arguments)


@cache
def _forking() -> socket.socket:
    """Start the process that forks, and return the socket for requests to it.

    It ends with this process.
    """
    requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.system.forked", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
        )
    atexit.register(process.wait)
    atexit.register(requests.close)
    return requests


def _number(connection: socket.socket) -> int:
    number: int = NUMBER.unpack(_bytes(connection, NUMBER.size))[0]
    return number


def _bytes(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        part = connection.recv(count - len(received))
        assert part, "the process that forks others is gone"
        received += part
    return received


def _serve(requests: socket.socket) -> None:
    """Fork a watcher for each request.

    The watcher forks the process, and sends its id and at last its exit code.
    """
    for module in PRELOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # collections in the children do not copy these pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # watchers are not waited for
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 1, 3)
        if not message:
            return
        if os.fork() == 0:
            requests.close()
            _watch(*descriptors)
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


def _watch(channel: int, output: int, errors: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection = socket.socket(fileno=channel)
    request = orjson.loads(_bytes(connection, _number(connection)))
    child = os.fork()
    if child == 0:
        connection.close()
        os._exit(_run(**request, output=output, errors=errors))
    os.close(output)
    os.close(errors)
    connection.sendall(NUMBER.pack(child))
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))


def _run(
    arguments: list[str], environment: dict[str, str], directory: str, program: str, output: int, errors: int
) -> int:
    from tests import weights

    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.close(output)
    os.close(errors)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    weights.adopt()
    sys.argv = ["boundarymorph", *arguments]
    code: object = 0
    try:
        importlib.import_module(program).main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__mp_main__":  # a worker of such a process
    importlib.import_module("tests.weights")
if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
