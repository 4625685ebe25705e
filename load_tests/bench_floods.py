"""Measure a service while one caller floods it: `make bench NAME=floods`.

This measures its memory, and the longest pause of its `/livez`. There is one row per flood, each against a service of
its own, without keys and with one that the flood does not have. A flood is a single connection, opened again if the
service closes it, and ends early if the service grows by LARGEST.
"""

import argparse
import http.client
import itertools
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http import HTTPStatus
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from boundarymorph.access.callers import Scope, make_key
from load_tests import report
from load_tests.processes import Server, checkout, serving

LARGEST = 1_500  # MiB
PROBE = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /select HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
BODY = b'{"query":"sea","pool":["a"],"budget":0,"k":1}'
LAST = b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
FLOODS = {  # the first bytes of a connection, and the bytes that follow again and again
    "nothing": (b"", b""),
    "pipelined probes": (b"", (PROBE + b"\r\n") * 1_000),
    "pipelined selections": (b"", (POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY) * 500),
    "trailers": (POST + CHUNKED + LAST, b"a:b\r\n" * 13_000),
    "a trailer's value": (POST + CHUNKED + LAST + b"X-A: ", b"b" * 65_536),
    "a chunk's extension": (POST + CHUNKED + b"1;", b"a" * 65_536),
    "chunks of a byte": (POST + CHUNKED, b"1\r\n \r\n" * 10_000),
    "a head without an end": (PROBE, b"a:b\r\n" * 13_000),
    "heads of short lines": (b"", PROBE + b"a:b\r\n" * 12_000 + b"\r\n"),
    "blank lines": (b"", b"\r\n" * 30_000),
    "a body without an end": (POST + CHUNKED, b"10000\r\n" + b" " * 65_536 + b"\r\n"),
    "bytes after the last request": (PROBE + b"Connection: close\r\n\r\n", b"a" * 65_536),
}


class Flood:
    """The bytes that one caller sends for some seconds, even if it reads no answers."""

    def __init__(self, server: Server, first: bytes, then: bytes, *, reads: bool) -> None:
        self.bytes = self.connections = 0
        self._server, self._first, self._then, self._reads = server, first, then, reads

    def run(self, seconds: float) -> None:
        """Send until the time is over, or the service has grown too much."""
        begin, end = self._server.resident(), time.monotonic() + seconds
        going = iter(lambda: time.monotonic() < end and self._server.resident() - begin < LARGEST, False)
        if not self._then:
            time.sleep(seconds)
        while self._then and next(going, False):
            parts = urlsplit(self._server.url)
            with socket.create_connection((parts.hostname, parts.port)) as connection:
                self.connections += 1
                try:
                    self._send(connection, going)
                except OSError:
                    continue  # the service has closed it

    def _send(self, connection: socket.socket, going: Iterator[bool]) -> None:
        connection.sendall(self._first)
        rest = self._then
        connection.setblocking(False)
        for _ in going:
            readable, writable, _ = select.select([connection][: self._reads], [connection], [], 0.1)
            if readable and not connection.recv(2**20):
                return
            if writable:
                sent = connection.send(rest)
                self.bytes += sent
                rest = rest[sent:] or self._then


def measured(server: Server, flood: Flood, seconds: float) -> dict[str, float]:
    """Flood a service, and return its memory and the longest time of `/livez` meanwhile."""
    before = peak = server.resident()
    slowest, failed, parts = 0.0, 0, urlsplit(server.url)
    sender = threading.Thread(target=flood.run, args=(seconds,))
    sender.start()
    while sender.is_alive():
        begin = time.perf_counter()
        try:
            with closing(http.client.HTTPConnection(parts.netloc, timeout=60)) as probe:
                probe.request("GET", "/livez")
                failed += probe.getresponse().status != HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            failed += 1
        slowest = max(slowest, time.perf_counter() - begin)
        peak = max(peak, server.resident())
        time.sleep(0.01)
    sent = {"sent_MB": flood.bytes / 1e6, "connections": flood.connections}
    return {"MiB_before": before, "MiB_peak": peak, "livez_ms": slowest * 1e3, "livez_failed": failed} | sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5, help="of each flood")
    parser.add_argument("--flood", action="append", choices=FLOODS, help="repeatable; all by default")
    parser.add_argument("--commit", help="of another version, or a folder with its source")
    given = parser.parse_args()
    rows = report.Rows("floods")
    _, key = make_key("benchmark", [Scope.SELECT])
    with checkout(given.commit) as tree:
        names = [name for name in FLOODS if not given.flood or name in given.flood]
        for name, keys, reads in itertools.product(names, (False, True), (True, False)):
            if not reads and not name.startswith("pipelined"):
                continue  # there is nothing to read
            variables = {"BOUNDARYMORPH_KEYS": str(key)} if keys else {}
            with (
                TemporaryDirectory() as folder,
                serving(["serve", "--data-directory", folder], tree=tree, variables=variables) as server,
            ):
                flood = Flood(server, *FLOODS[name], reads=reads)
                what = {"flood": name if reads else f"{name}, unread", "keys": keys}
                rows.append({**what, **measured(server, flood, given.seconds)})
    rows.write()


if __name__ == "__main__":
    report.run(main)
