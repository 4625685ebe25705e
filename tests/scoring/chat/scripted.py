"""A stand-in server for a chat model that gives scripted grades."""

import math
import re
from collections.abc import Callable
from typing import Any

from tests.fakes.scorer import score_of
from tests.fakes.upstream import Reply
from tests.fakes.wires import Wire

MODEL = "scripted"
READ, WRITTEN = 300, 1  # the reported tokens of each answer
PASSAGE = re.compile(r"^(=== [0-9a-f]{16} ===) passage \d+\n(.*?)\n\1$", re.DOTALL | re.MULTILINE)
Relevance = Callable[[str, str], float]  # the relevance in [0, 1] of a passage for a query


def passages_of(body: dict[str, Any]) -> list[str]:
    """Return the passages of a request."""
    return [text for _, text in PASSAGE.findall(body["messages"][1]["content"])]


def query_of(body: dict[str, Any]) -> str:
    content: str = body["messages"][1]["content"]
    return content.removeprefix("Query: ").partition("\n\n")[0]


def pair_of(body: dict[str, Any]) -> tuple[str, str]:
    """Return the query and the passage of a request."""
    (passage,) = passages_of(body)
    return query_of(body), passage


def completion(content: str | None, /, **more: Any) -> dict[str, Any]:
    """Return an answer with this content.

    `more` has fields of the choice, the message (`refusal`) and the answer (`model`, `usage`).
    """
    message = {"role": "assistant", "content": content, "refusal": more.pop("refusal", None)}
    usage = {"prompt_tokens": READ, "completion_tokens": WRITTEN, "total_tokens": READ + WRITTEN}
    answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": MODEL, "usage": usage}
    answer |= {key: more.pop(key) for key in ("model", "usage") if key in more}
    return {**answer, "choices": [{"index": 0, "message": message, "finish_reason": "stop", **more}]}


def logprobs(*likeliest: tuple[str, float | None]) -> dict[str, Any]:
    """Return the log-probabilities of an answer of one token.

    The arguments are the likeliest tokens and their probabilities, of which the first was written.
    """
    entries = [{"token": token, "logprob": None if p is None else math.log(p)} for token, p in likeliest]
    return {"content": [{**entries[0], "top_logprobs": entries}]}


def likeliest(relevance: float) -> list[tuple[str, float]]:
    """Return grades and their probabilities, the likeliest first.

    The expected grade is three times the relevance.
    """
    low = min(2, int(3 * relevance))
    share = 3 * relevance - low
    pairs = [(str(grade), p) for grade, p in ((low, 1 - share), (low + 1, share)) if p > 0]
    return sorted(pairs, key=lambda pair: -pair[1])


def graded(relevance: float) -> dict[str, Any]:
    """Return an answer with one grade."""
    pairs = likeliest(relevance)
    return completion(pairs[0][0], logprobs=logprobs(*pairs))


def many_graded(relevances: list[float]) -> dict[str, Any]:
    """Return an answer with a line for each passage."""
    tokens, text = list[dict[str, Any]](), ""
    for number, relevance in enumerate(relevances, 1):
        pairs = [(f" {grade}", p) for grade, p in likeliest(relevance)]
        plain = [{"token": token, "logprob": 0.0} for token in (str(number), ":")]
        tokens += [*plain, *logprobs(*pairs)["content"], {"token": "\n", "logprob": 0.0}]
        text += f"{number}:{pairs[0][0]}\n"
    return completion(text, logprobs={"content": tokens})


class Chat(Wire):
    """Chat completions under /v1.

    Args:
        relevance: The relevance of a query and a passage.
        refuses: Fields of a request that it refuses with 400.
        silent: Whether it leaves log-probabilities out.
        counting: Whether it counts tokens, at four characters each, instead of reporting READ and WRITTEN.
    """

    scheme, most, score_path, models = "openai+http", 1, "/v1/chat/completions", (MODEL,)

    def __init__(
        self,
        relevance: Relevance = score_of,
        *,
        refuses: tuple[str, ...] = (),
        silent: bool = False,
        counting: bool = False,
    ) -> None:
        self.relevance, self.refuses, self.silent, self.counting = relevance, refuses, silent, counting

    def texts(self, body: dict[str, Any]) -> list[str]:
        return passages_of(body)

    def reply(self, body: dict[str, Any]) -> Reply:
        for field in self.refuses:
            if field in body:
                message = f"Unsupported parameter: '{field}' is not supported with this model."
                return Reply({"error": {"message": message, "type": "invalid_request_error"}}, 400)
        relevances = [self.relevance(query_of(body), text) for text in passages_of(body)]
        answer = graded(relevances[0]) if len(relevances) == 1 else many_graded(relevances)
        choice = answer["choices"][0]
        if "logprobs" not in body or self.silent:
            choice["logprobs"] = None
        if self.counting:
            read = sum(len(message["content"]) for message in body["messages"]) // 4
            written = -(-len(choice["message"]["content"]) // 4)
            answer["usage"] = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
        return Reply(answer)
