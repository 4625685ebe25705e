"""Whether the scorer, and the stand-in that it is tested against, speak the protocol as OpenAI's own SDK has it."""

from __future__ import annotations

import re
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import TypeAdapter

from boundarymorph.remote.wire import Context
from boundarymorph.scoring.chat import Chat
from tests.fakes.wires import running
from tests.scoring.chat import scripted

KEY = "sk-secret"


def asked(*, at_home: bool = False) -> dict[str, Any]:
    return Chat(at_home=at_home).request(scripted.MODEL, Context("q"), ["a text"], 1.0).body


@pytest.mark.parametrize(("at_home", "field"), [(False, "max_tokens"), (True, "max_completion_tokens")])
def test_requests_are_those_of_the_api(at_home: bool, field: str) -> None:
    """Every field is one that the SDK has, of its type."""
    body = asked(at_home=at_home)
    known = TypeAdapter(CompletionCreateParamsNonStreaming).validate_python(body)
    assert known.keys() == body.keys() and body[field] == 32


async def test_the_sdk_reads_the_stand_in() -> None:
    async with running(scripted.Chat(), key=KEY) as (server,):
        base = server.endpoint(model=scripted.MODEL).base
        async with openai.AsyncOpenAI(base_url=base, api_key=KEY, max_retries=0) as client:
            read: ChatCompletion = await client.chat.completions.create(**asked())
    ChatCompletion.model_validate(read.model_dump())  # which the SDK itself does not check
    (choice,) = read.choices
    grade = choice.message.content
    assert grade is not None and re.fullmatch("[0-3]", grade)
    assert choice.logprobs is not None
    assert read.usage is not None and read.usage.total_tokens == read.usage.prompt_tokens + read.usage.completion_tokens
