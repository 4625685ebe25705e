"""The parser of requests, for which no request asks for another protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httptools

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class RequestParser:
    """httptools' parser, which reads on where that one would leave the connection to another protocol.

    At the end of a head with an `Upgrade` httptools stops and takes the body for something else. RFC 9110, 7.8: an
    upgrade that is not taken is ignored. So the head is parsed anew without that field, and then what came after it.
    The protocol's callbacks come for both heads; those of the first one while `asks_for_upgrade`.
    """

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._protocol = protocol
        self._parser = _fresh(protocol)

    def feed_data(self, data: bytes) -> None:
        """Parse what has arrived. Raises httptools.HttpParserError; then the connection must be closed."""
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                if self.get_method() == b"CONNECT":
                    raise httptools.HttpParserError("this is no proxy") from None
                data = self._head() + data[stopped.args[0] :]
                self._parser = _fresh(self._protocol)
            else:
                return

    def _head(self) -> bytes:
        """Return the head that has just ended, without what asks for an upgrade."""
        line = b"%s %s HTTP/%s" % (self.get_method(), self._protocol.url, self.get_http_version().encode())
        fields = [b"%s: %s" % (name, value) for name, value in self._protocol.headers if name != b"upgrade"]
        return b"\r\n".join([line, *fields, b"", b""])

    @property
    def asks_for_upgrade(self) -> bool:
        """Whether the head that is being parsed will be parsed anew, or refused."""
        return bool(self._parser.should_upgrade())

    def should_upgrade(self) -> bool:
        """Return False: to uvicorn a request is one like any other."""
        return False

    def should_keep_alive(self) -> bool:
        return bool(self._parser.should_keep_alive())

    def get_method(self) -> bytes:
        method: bytes = self._parser.get_method()
        return method

    def get_http_version(self) -> str:
        version: str = self._parser.get_http_version()
        return version


def _fresh(protocol: HttpToolsProtocol) -> Any:
    parser = httptools.HttpRequestParser(protocol)
    if hasattr(parser, "set_dangerous_leniencies"):
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
    return parser
