"""A chat model whose grades are given: the wire of a stand-in server."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from tests.scoring.fakes import score_of
from tests.scoring.remote.servers import Reply, Wire

MODEL = "scripted"
READ, WRITTEN = 300, 1  # tokens that it says each answer took
ASKED = re.compile(
    r"Query: (.*)\n\nThe passage:\n(=== [0-9a-f]{16} ===)\n(.*)\n\2\n\nHow much does it help\? ", re.DOTALL
)
Relevance = Callable[[str, str], float]  # in [0, 1], of a query and a passage


def pair_of(body: dict[str, Any]) -> tuple[str, str]:
    """The query and the passage of a request."""
    found = ASKED.match(body["messages"][1]["content"])
    assert found is not None, body["messages"]
    return found[1], found[3]


def completion(content: str | None, /, **more: Any) -> dict[str, Any]:
    """An answer with this content. more: of the choice, the message (`refusal`) and the answer (`model`, `usage`)."""
    message = {"role": "assistant", "content": content, "refusal": more.pop("refusal", None)}
    usage = {"prompt_tokens": READ, "completion_tokens": WRITTEN, "total_tokens": READ + WRITTEN}
    answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": MODEL, "usage": usage}
    answer |= {key: more.pop(key) for key in ("model", "usage") if key in more}
    return {**answer, "choices": [{"index": 0, "message": message, "finish_reason": "stop", **more}]}


def logprobs(*likeliest: tuple[str, float | None]) -> dict[str, Any]:
    """Of an answer of one token: the likeliest ones with their probabilities, the first of which was written."""
    entries = [{"token": token, "logprob": None if p is None else math.log(p)} for token, p in likeliest]
    return {"content": [{**entries[0], "top_logprobs": entries}]}


def graded(relevance: float) -> dict[str, Any]:
    """An answer whose expected grade is three times the relevance: the two grades next to it share the probability."""
    low = min(2, int(3 * relevance))
    share = 3 * relevance - low
    pairs = [(str(grade), p) for grade, p in ((low, 1 - share), (low + 1, share)) if p > 0]
    pairs.sort(key=lambda pair: -pair[1])
    return completion(pairs[0][0], logprobs=logprobs(*pairs))


class Chat(Wire):
    """Chat completions under /v1, one pair each.

    refuses: fields of a request for which it answers 400; silent: whether it leaves log-probabilities out.
    """

    scheme, most, score_path = "openai+http", 1, "/v1/chat/completions"

    def __init__(self, relevance: Relevance = score_of, *, refuses: tuple[str, ...] = (), silent: bool = False) -> None:
        self.relevance, self.refuses, self.silent = relevance, refuses, silent

    def texts(self, body: dict[str, Any]) -> list[str]:
        return [pair_of(body)[1]]

    def reply(self, body: dict[str, Any]) -> Reply:
        for field in self.refuses:
            if field in body:
                message = f"Unsupported parameter: '{field}' is not supported with this model."
                return Reply({"error": {"message": message, "type": "invalid_request_error"}}, 400)
        answer = graded(self.relevance(*pair_of(body)))
        choice = answer["choices"][0]
        if "logprobs" not in body or self.silent:
            choice["logprobs"] = None
        if "response_format" in body:
            choice["message"]["content"] = f'{{"grade": {choice["message"]["content"]}}}'
        return Reply(answer)
