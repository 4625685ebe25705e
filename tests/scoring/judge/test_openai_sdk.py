"""Whether the judge, and the stand-in that it is tested against, speak the protocol as OpenAI's own SDK has it."""

from __future__ import annotations

import re
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import TypeAdapter

from boundarymorph.remote.wire import Context
from boundarymorph.scoring.judge import WAYS, OpenAI, Way
from tests.scoring.judge.scripted import MODEL, Chat
from tests.scoring.remote.servers import running

KEY = "sk-secret"


def asked(way: Way, *, at_home: bool = False) -> dict[str, Any]:
    return OpenAI(None, way, at_home=at_home).request(MODEL, Context("q"), ["a text"], 1.0).body


@pytest.mark.parametrize("at_home", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_requests_are_those_of_the_api(way: Way, at_home: bool) -> None:
    """Every field is one that the SDK has, of its type."""
    body = asked(way, at_home=at_home)
    known = TypeAdapter(CompletionCreateParamsNonStreaming).validate_python(body)
    assert known.keys() == body.keys()


@pytest.mark.parametrize("way", WAYS)
async def test_the_sdk_reads_the_stand_in(way: Way) -> None:
    async with running(Chat(), key=KEY) as (server,):
        client = openai.AsyncOpenAI(base_url=server.endpoint(model=MODEL).base, api_key=KEY, max_retries=0)
        async with client:
            read: ChatCompletion = await client.chat.completions.create(**asked(way))
    ChatCompletion.model_validate(read.model_dump())  # which the SDK itself does not check
    (choice,) = read.choices
    grade = choice.message.content
    assert grade is not None and re.fullmatch(r"[0-3]|\{\"grade\": [0-3]\}", grade)
    assert (choice.logprobs is not None) == (way == "logprobs")
    assert read.usage is not None and read.usage.total_tokens == read.usage.prompt_tokens + read.usage.completion_tokens
