"""The answer to bytes that are not HTTP, before there is a request for the application."""

from __future__ import annotations

from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from boundarymorph.api.problems import MEDIA_TYPE
from boundarymorph.api.schemas import Problem
from boundarymorph.errors import PROBLEM_TYPE


class ProblemProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 with problem details instead of plain text."""

    def send_400_response(self, msg: str) -> None:
        status = HTTPStatus.BAD_REQUEST
        problem = Problem(type=f"{PROBLEM_TYPE}malformed-http", title="Malformed http", status=status, detail=msg)
        body = problem.model_dump_json(exclude_none=True).encode()
        head = f"HTTP/1.1 {status} {status.phrase}\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()
