"""Making and sending large answers: off the event loop, within their limits, and no faster than they are read."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Message, Send

from boundarymorph.access.access import Access
from boundarymorph.selector.documents import Room

LARGE = 2**17  # bytes from which an answer is counted, and sent in pieces


async def made(access: Access, make: Callable[[], bytes], *, large: bool = True) -> bytes:
    """Return what `make` makes, within limits.answer_bytes. large: whether to make it in a thread.

    Raises LimitExceeded, and Overloaded.
    """
    content = await access.work.parsing.run(make) if large else make()
    Room(answer=access.settings.limits.answer_bytes).check_answer(len(content))
    return content


async def sent(message: Message, send: Send) -> None:
    """Send a message of an answer: its body in pieces, each when the one before it has left for the client."""
    body = message.get("body", b"")
    for begin in range(0, len(body), LARGE) or (0,):
        piece = body[begin : begin + LARGE]
        more = message.get("more_body", False) or begin + LARGE < len(body)
        await send({**message, "body": piece, "more_body": more})
