"""Connect to Milvus on demand, with timeouts and with our own errors."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from pymilvus import MilvusClient
from pymilvus.client.types import Status
from pymilvus.exceptions import ErrorCode, MilvusException

from boundarymorph.errors import InvalidConfiguration, RetrieverFailed, RetrieverUnavailable, UnknownIndex

NOT_LOADED = 101  # Milvus's code for a collection that is not loaded; pymilvus has no name for it
CONNECT_TIMEOUT = 2.0  # seconds; less if a call has less
REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_URL = re.compile(r"(https?|tcp)://[^\s@]+|.+\.db")


@dataclass(frozen=True, slots=True)
class Server:
    """A release of Milvus, as major and minor number.

    `lite` is Milvus Lite, which has its own version numbers.
    """

    version: tuple[int, int]
    lite: bool = False

    @classmethod
    def parse(cls, name: str) -> Server:
        """Parse `v2.5.4`, `v2.3.5-lite` (a server that pip installs) or `milvus_lite-3.2.2`."""
        found = re.search(r"(\d+)\.(\d+)", name)
        numbers = (int(found[1]), int(found[2])) if found else (0, 0)
        return cls(numbers, lite=name.startswith("milvus_lite"))

    @property
    def half_precision(self) -> bool:
        """Whether vectors can be float16. Milvus 2.3 accepts them but ranks them wrongly."""
        return not self.lite and self.version >= (2, 4)

    @property
    def full_text(self) -> bool:
        """Whether it computes BM25.

        The scores of Milvus Lite are negative and change with the filter.
        """
        return not self.lite and self.version >= (2, 5)


class CollectionNotLoaded(RetrieverUnavailable):
    """A collection is on Milvus's disks but not loaded into its memory."""

    slug = "retriever-unavailable"


class MilvusConnection:
    """Calls methods of a `MilvusClient`, each for up to `timeout` seconds. Thread-safe.

    Connecting may take as long again. After a connection broke, one call at a time tries Milvus and the others fail at
    once, until a call succeeds. Raises RetrieverUnavailable, RetrieverFailed if the token is rejected, and UnknownIndex
    if the collection does not exist.
    """

    def __init__(self, url: str, *, token: str | None = None, database: str = "", timeout: float = 10.0) -> None:
        """Prepare a client; it does not connect yet.

        Args:
            url: http://HOST:PORT, https://..., or PATH.db for Milvus Lite in this process.
            token: The credentials, if any.
            database: The name of the database.
            timeout: Seconds for a call.

        Raises:
            InvalidConfiguration: If the URL is malformed.
        """
        if not _URL.fullmatch(url):
            raise InvalidConfiguration("the URL of Milvus must be milvus://HOST:PORT, milvuss:// or milvus:///PATH.db")
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # `call` raises what pymilvus would log
        self.url = url
        self.timeout = timeout
        self._token = token or ""
        self._database = database
        self._connecting = threading.Lock()
        self._outage: str | None = None  # why Milvus cannot be reached; None if it can
        self._trial = threading.Lock()  # held by the one call that tries it during an outage
        self._client: MilvusClient | None = None

    def call(self, method: str, /, *args: Any, **options: Any) -> Any:
        """Call the method of this name of `MilvusClient` and return its result."""
        with self._turn(), self._errors():
            return getattr(self._connected(), method)(*args, timeout=self.timeout, **options)

    def pages(self, method: str, /, *args: Any, **options: Any) -> Iterator[Any]:
        """Yield the pages of the iterator that a method of `MilvusClient` returns.

        `timeout` applies to each page.
        """
        iterator = self.call(method, *args, **options)
        try:
            while True:
                with self._turn(), self._errors():
                    page = iterator.next()
                if not len(page):
                    return
                yield page
        finally:
            iterator.close()

    def server(self) -> Server:
        """Return the release of the server."""
        return Server.parse(self.call("get_server_version"))

    def close(self) -> None:
        """Close the connection. Later calls connect again."""
        with self._connecting:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Let a single call through during an outage.

        The client reconnects for failed calls one after the other.
        """
        outage = self._outage
        if outage is None:
            yield
            return
        if not self._trial.acquire(blocking=False):
            raise self._unavailable(outage)
        try:
            yield
        finally:
            self._trial.release()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
            self._outage = None
        except MilvusException as error:
            self._outage = error.message if error.code == Status.CONNECT_FAILED else None
            if error.code == ErrorCode.COLLECTION_NOT_FOUND:
                raise UnknownIndex(f"the index is gone: {error.message}") from error
            if error.code == NOT_LOADED:
                raise CollectionNotLoaded(error.message) from error
            raise self._unavailable(error.message or str(error)) from error
        except grpc.RpcError as error:
            code = error.code() if isinstance(error, grpc.Call) else None
            if code == grpc.StatusCode.UNAVAILABLE:
                self._outage = error.details()
            if code in REFUSED:
                raise RetrieverFailed(f"Milvus at {self.url} rejects its api_key: {error.details()}") from error
            raise self._unavailable(error.details() if isinstance(error, grpc.Call) else str(error)) from error

    def _connected(self) -> MilvusClient:
        if self._client is not None:
            return self._client
        known = self._outage
        if not self._connecting.acquire(timeout=self.timeout):
            raise self._unavailable("it does not accept a connection in time")
        try:
            if self._client is None and self._outage is not known:
                raise self._unavailable(self._outage)  # found by the call that held the lock
            if self._client is None:
                self._client = MilvusClient(
                    self.url,
                    token=self._token,
                    db_name=self._database,
                    timeout=min(self.timeout, CONNECT_TIMEOUT),
                    dedicated=True,
                )
            return self._client
        finally:
            self._connecting.release()

    def _unavailable(self, reason: str | None) -> RetrieverUnavailable:
        return RetrieverUnavailable(f"Milvus at {self.url} does not work now: {reason}")
