"""Test that the scorer's requests equal those of OpenAI's own SDK."""

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import TypeAdapter

from boundarymorph.remote.wire import TextContext
from boundarymorph.scoring.chat import Chat


@pytest.mark.parametrize(("at_home", "field"), [(False, "max_tokens"), (True, "max_completion_tokens")])
def test_chat_requests_validate_against_the_openai_sdk(at_home: bool, field: str) -> None:
    body = Chat(at_home=at_home).request("model", TextContext("q"), ["a text"], 1.0).body
    known = TypeAdapter(CompletionCreateParamsNonStreaming).validate_python(body)
    assert known.keys() == body.keys() and body[field] == 32
