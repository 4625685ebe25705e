"""Reading chat completions of OpenAI's API and of compatible servers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from boundarymorph.remote.wire import TokenCounts, Unusable, array, is_count, mapping, optional_word, parsed

PATH = "/chat/completions"  # appended to a base URL, which usually ends in /v1


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's answer.

    text: what the model wrote; refusal: why it wrote nothing, in its own or the server's words; tokens: of the text,
    with log-probabilities if given; model: that answered; usage: None if not given.
    """

    text: str
    refusal: str | None = None
    tokens: Sequence[dict[str, Any]] = ()
    model: str | None = None
    usage: TokenCounts | None = None


def completion(body: bytes) -> Completion:
    """Read an answer. Raises Unusable if it is not a chat completion."""
    answer = mapping(parsed(body))
    choices = array(answer, "choices")
    if not choices:
        raise Unusable("'choices' is empty")
    choice = mapping(choices[0])
    message = mapping(choice.get("message"))
    text = message.get("content")
    if text is not None and not isinstance(text, str):
        raise Unusable("the content of the message is not text")
    refusal = optional_word(message.get("refusal"))
    if refusal is None and choice.get("finish_reason") == "content_filter":
        refusal = "the server's filter withheld the answer"
    return Completion(
        text or "", refusal, _tokens(choice.get("logprobs")), optional_word(answer.get("model")), _usage(answer)
    )


def json_in(answer: str) -> dict[str, Any] | None:
    """Return the JSON object in a model's answer, possibly fenced or between sentences; None if there is none."""
    braces = re.search(r"\{.*\}", answer, re.DOTALL)
    try:
        found = orjson.loads(braces.group()) if braces else None
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _tokens(logprobs: object) -> list[dict[str, Any]]:
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return [token for token in content if isinstance(token, dict)] if isinstance(content, list) else []


def _usage(answer: dict[str, Any]) -> TokenCounts | None:
    counts = answer.get("usage")
    if not isinstance(counts, dict):
        return None
    read, written = counts.get("prompt_tokens"), counts.get("completion_tokens")
    return TokenCounts(read, written) if is_count(read) and is_count(written) else None
