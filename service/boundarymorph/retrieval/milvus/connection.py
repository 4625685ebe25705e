"""A connection to Milvus: made when it is needed, bounded in time, and with errors of ours."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from pymilvus import MilvusClient
from pymilvus.client.types import Status
from pymilvus.exceptions import ErrorCode, MilvusException

from boundarymorph.errors import InvalidConfiguration, RetrieverFailed, RetrieverUnavailable, UnknownIndex
from boundarymorph.retrieval.milvus.server import Server

NOT_LOADED = 101  # which Milvus says of a collection, and pymilvus has no name for
CONNECT_TIMEOUT = 2.0  # seconds; less where a call has less
REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_URL = re.compile(r"(https?|tcp)://[^\s@]+|.+\.db")


class NotLoaded(RetrieverUnavailable):
    """A collection is on Milvus's disks and not in its memory."""


class Connection:
    """Calls of a `MilvusClient`. Safe to share between threads, which it blocks for up to `timeout` seconds, and before
    that for as long again and CONNECT_TIMEOUT where nobody is connected yet.

    Once a connection broke or could not be made, one call at a time tries Milvus, and the others fail at once, until
    one gets through.

    Every call raises RetrieverUnavailable when Milvus is not there, is too slow or cannot do it now, RetrieverFailed
    when it refuses the token, and UnknownIndex for a collection that is not there.
    """

    def __init__(self, url: str, *, token: str | None = None, database: str = "", timeout: float = 10.0) -> None:
        """url: http://HOST:PORT, https://..., or a file PATH.db for milvus-lite in this process. Connects later.

        Raises InvalidConfiguration.
        """
        if not _URL.fullmatch(url):
            raise InvalidConfiguration("milvus.url must be http://HOST:PORT, https://HOST:PORT or a file PATH.db")
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # what it would log is raised, in one line, by `call`
        self.url = url
        self.timeout = timeout
        self._token = token or ""
        self._database = database
        self._connecting = threading.Lock()
        self._outage: str | None = None  # why Milvus could not be reached, until it is again
        self._trial = threading.Lock()  # of the call that tries it meanwhile
        self._client: MilvusClient | None = None

    def call(self, method: str, /, *args: Any, **options: Any) -> Any:
        """What the method of this name of `MilvusClient` returns."""
        with self._turn(), self._errors():
            return getattr(self._connected(), method)(*args, timeout=self.timeout, **options)

    def pages(self, method: str, /, *args: Any, **options: Any) -> Iterator[Any]:
        """The pages of the iterator that the method of this name of `MilvusClient` returns; `timeout` is of each."""
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
        """What is at the other end."""
        return Server.of(self.call("get_server_version"))

    def close(self) -> None:
        """Hang up. Later calls connect anew."""
        with self._connecting:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """pymilvus reconnects for each call that fails, one after the other, so that many would wait for long."""
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
                raise NotLoaded(error.message) from error
            raise self._unavailable(error.message or str(error)) from error
        except grpc.RpcError as error:
            code = error.code() if isinstance(error, grpc.Call) else None
            if code == grpc.StatusCode.UNAVAILABLE:
                self._outage = error.details()
            if code in REFUSED:
                raise RetrieverFailed(f"Milvus at {self.url} refuses milvus.token: {error.details()}") from error
            raise self._unavailable(error.details() if isinstance(error, grpc.Call) else str(error)) from error

    def _connected(self) -> MilvusClient:
        if self._client is not None:
            return self._client
        known = self._outage
        if not self._connecting.acquire(timeout=self.timeout):
            raise self._unavailable("it does not let anyone in")
        try:
            if self._client is None and self._outage is not known:
                raise self._unavailable(self._outage)  # as the call found that this one has waited for
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
