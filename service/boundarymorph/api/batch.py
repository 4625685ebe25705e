"""The route POST /select/batch: many selections, one a line, in the background of all others."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from hashlib import blake2b
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import APIRouter, Response
from starlette.requests import ClientDisconnect
from starlette.types import Send

from boundarymorph.access.callers import NDJSON, UnsupportedMediaType
from boundarymorph.access.limits import RateLimited
from boundarymorph.api import bodies, openapi, problems
from boundarymorph.api.dependencies import count, permitted, selected
from boundarymorph.api.select import Call, CallOf, content_of
from boundarymorph.errors import BodyTooLarge, BoundaryMorphError, InvalidInput, NotReady, Overloaded
from boundarymorph.inference.concurrency import CALLER, end
from boundarymorph.reading import bound, parse
from boundarymorph.retrieval.uploads import Piece, pieces
from boundarymorph.telemetry.tracing import Stopwatch

AHEAD = 64  # lines in hand of a batch, so many as a client may send that reads nothing before it has sent all
BACKGROUND = -19  # what is added to the priority of a line: then it is below that of every other request
PROGRESS_SECONDS = 10.0  # without an answer, after which a line says how far the batch is
LONGEST_ID, LARGEST_ID = 512, 2**63  # characters; a whole number is below
_FIRST_ID = re.compile(rb'\s*\{\s*"id"\s*:\s*("(?:[^"\\]|\\.){0,3072}"|-?[0-9]{1,19})\s*,')
ASKED = "a line for each request: a SelectRequest, and an `id` that is unique in the batch"
ANSWERED = (
    "lines in the order in which they are ready, with `id`, `status` and `answer` (SelectResponse) or `problem` "
    "(Problem); lines `progress` when there is no answer for long; the last one is `done`, after a line with nothing "
    "but `problem` if the batch ended early"
)
router = APIRouter(tags=["selection"])


@router.post("/p/{policy}/select/batch", include_in_schema=False)
@router.post(
    "/select/batch",
    summary="Make many selections, one a line",
    openapi_extra={"requestBody": {"required": True, **openapi.streamed(ASKED)}},
    response_class=Response,
    responses={200: openapi.streamed(ANSWERED), **openapi.problems(404, 415, 422, 429, 503)},
)
async def select_batch(call: CallOf) -> Response:
    """Takes NDJSON of any length, streamed: each line is a request of `POST /select`, with an `id`; without one it has
    the number of the line. Answers each as soon as it is ready; what is wrong with a line is the answer of this line
    alone. Other requests go first, and a line that finds no capacity is tried again until its deadline. Read answers
    while you send, or send at most 64 lines."""
    kind = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in NDJSON:
        raise UnsupportedMediaType(f"send the requests as {NDJSON[0]}, one a line")
    # An unknown one is the problem of all lines.
    call.access.policies.of(call.caller, call.request.path_params.get("policy"))
    return _Answers(_Batch(call))


class _Answers(bodies.Streamed):
    """Sends the answers of a batch while its body is read, and ends its work when the client leaves."""

    def __init__(self, batch: _Batch) -> None:
        super().__init__((), media_type=NDJSON[0])
        self._batch, self.received = batch, batch.received

    async def stream_response(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await self._batch.answer(lambda line: send({"type": "http.response.body", "body": line, "more_body": True}))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


Id = str | int
Content = dict[str, Any] | BoundaryMorphError  # of a line: its request, or what is wrong with it


class _Batch:
    """A batch in progress. received: set when its body has been read to the end.

    At most AHEAD of its lines are in memory, each until its answer has been sent. So nothing more is read of a client
    that does not read.
    """

    def __init__(self, call: Call) -> None:
        """Raises Overloaded."""
        self.received = asyncio.Event()
        self._call = call
        self._request, self._access = request, access = call.request, call.access
        self._limits = access.settings.limits
        self._chunks = bodies.streamed(request, access, self._limits.body_bytes, self.received)
        self._parse = request.state.until_end.enter_context(access.work.parsing.place())
        self._places, self._sending = asyncio.Semaphore(AHEAD), asyncio.Lock()
        self._running = set[asyncio.Task[None]]()
        self._ids = set[bytes]()
        self._counts = Counter(lines=0, answers=0, problems=0)

    async def answer(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Send the lines of the response. Raises ClientDisconnect when the client has left."""
        self._send = send
        telling = asyncio.create_task(self._tell())
        try:
            try:
                most = self._limits.body_bytes
                async for found in pieces(self._chunks, most, most, self._parse):
                    for piece in found:
                        await self._begin(piece)
            except BoundaryMorphError as error:
                broken = b'{"problem":%b}\n' % bytes((await problems.refused(self._request, error)).body)
            else:
                broken = b""
            while self._running:
                await asyncio.wait(self._running)
        finally:
            await end((telling, *self._running))
        await send(broken + orjson.dumps({"done": self._counts}, option=orjson.OPT_APPEND_NEWLINE))

    async def _tell(self) -> None:
        """Say how far the batch is whenever no line has been sent for long."""
        while True:
            before = self._counts.copy()
            await asyncio.sleep(PROGRESS_SECONDS)
            async with self._sending:
                if all(self._counts[kind] == before[kind] for kind in ("answers", "problems")):
                    await self._send(orjson.dumps({"progress": self._counts}, option=orjson.OPT_APPEND_NEWLINE))

    async def _begin(self, piece: Piece) -> None:
        """Begin with a line as soon as there is a place for it, memory, and room in the rate limits of the key.

        Raises ClientDisconnect, LimitExceeded, and RateLimited.
        """
        await self._places.acquire()
        if bodies.has_left(self._request.receive):
            raise ClientDisconnect
        bound("the batch", self._counts["lines"] + 1, self._limits.batch_lines, "lines; send the rest as another one")
        await self._count()
        self._counts["lines"] += 1
        memory, caller, size = self._access.bytes_in_hand, CALLER.get(), len(piece.text)
        while self._running and not memory.allows(caller, size):
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        held = ExitStack()
        if memory.allows(caller, size):  # else it is the only one, and counted with the body
            held.enter_context(memory.holding(caller))(size)

        def ended(task: asyncio.Task[None]) -> None:
            self._running.discard(task)
            held.close()
            self._places.release()

        task = asyncio.create_task(self._answer(*await self._line(piece), held))
        self._running.add(task)
        task.add_done_callback(ended)

    async def _count(self) -> None:
        """Count a line in the rate limits of the key, as soon as they allow it. The batch was counted as its first."""
        while self._counts["lines"]:
            try:
                return await count(self._request, self._access, permitted(self._request))
            except RateLimited as full:
                if full.retry_after > self._limits.deadline_seconds:
                    raise
                await asyncio.sleep(full.retry_after)

    async def _line(self, piece: Piece) -> tuple[Id, Content]:
        """Return the id and the content of a line; an error if it cannot be read or its id is not its own. Of a line
        that is too long the id is known if it comes first."""
        id: Id = piece.number

        def read() -> dict[str, Any]:
            nonlocal id
            if len(piece.text) > self._limits.body_bytes:
                if found := _FIRST_ID.match(piece.text):
                    id = _checked(parse(found[1]))
                raise BodyTooLarge(f"the line is over this service's limit of {self._limits.body_bytes:,} bytes")
            content = parse(piece.text)
            if not isinstance(content, dict):
                raise InvalidInput("a line must be an object: a request of /select, and its id")
            id = _checked(content.pop("id", piece.number))
            bodies.check_lists(content, self._limits)
            return content

        try:
            content = read() if len(piece.text) < bodies.LARGE else await self._parse(read)
        except BoundaryMorphError as error:
            return id, error
        digest = blake2b(orjson.dumps(id), digest_size=16).digest()
        if digest in self._ids:
            return piece.number, InvalidInput(f"id: an earlier line of the batch has {id!r}, too")
        self._ids.add(digest)
        return id, content

    async def _answer(self, id: Id, content: Content, held: ExitStack) -> None:
        """Send the answer of a line, or the problem with it. held: where its memory is counted."""
        try:
            found, status, kind = await self._patiently(content, held), HTTPStatus.OK.value, "answer"
        except Exception as error:
            problem = await problems.refused(self._request, error)
            found, status, kind = bytes(problem.body), problem.status_code, "problem"
        async with self._sending:
            await self._send(b'{"id":%b,"status":%d,"%b":%b}\n' % (orjson.dumps(id), status, kind.encode(), found))
            self._counts[f"{kind}s"] += 1

    async def _patiently(self, content: Content, held: ExitStack) -> bytes:
        """Return the answer of a line. Tries again where there is no capacity, until its `deadline_ms` has passed, or
        limits.deadline_seconds. Raises what is wrong with it."""
        if isinstance(content, BoundaryMorphError):
            raise content
        given = content.get("deadline_ms")
        patience = given / 1e3 if isinstance(given, int | float) else self._limits.deadline_seconds
        caller, last = CALLER.get(), time.monotonic() + patience
        while True:
            await self._access.background.take(caller)
            try:
                return await self._selected(content, held)
            except (Overloaded, NotReady) as busy:
                pause = busy.retry_after
                if time.monotonic() + pause > last:
                    raise
            finally:
                self._access.background.give_back(caller)
            await asyncio.sleep(pause)

    async def _selected(self, content: dict[str, Any], held: ExitStack) -> bytes:
        """Return the answer of `POST /select` to this content, counted in place of the line."""
        access, watch, arrival = self._access, Stopwatch(), time.monotonic()
        with ExitStack() as until_end:
            until_end.enter_context(access.admission.enter(CALLER.get()))
            asked = await self._call.understood(
                watch, content.copy, arrival=arrival, until_end=until_end, raised=BACKGROUND
            )
            result = await selected(self._call.parts.selector, asked.task, watch, asked.turn)
            answer = await content_of(access, asked, result)
        held.close()
        held.enter_context(access.bytes_in_hand.holding(CALLER.get()))(len(answer))
        return answer


def _checked(id: object) -> Id:
    """Return the id of a line. Raises InvalidInput."""
    good = len(id) <= LONGEST_ID if isinstance(id, str) else type(id) is int and abs(id) < LARGEST_ID
    if not good:
        raise InvalidInput(f"id: must be a string of at most {LONGEST_ID} characters, or a whole number of 64 bits")
    return id  # type: ignore[return-value]
