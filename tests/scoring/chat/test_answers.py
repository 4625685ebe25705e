"""What a language model's answer says once its thinking is removed, and when it is cut off or rounded."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from boundarymorph.errors import ScorerFailed
from boundarymorph.scoring.chat import expected_grade
from boundarymorph.settings import JudgeSettings
from tests.scoring.chat.scripted import logprobs
from tests.scoring.chat.test_chat import grading, relevance_of, says

pytestmark = pytest.mark.strangers

OPENED = "<think>\nOkay, the user asks me to grade 1 passage. Let me read it. "


def tokens(*pieces: str, last: float = -0.1) -> dict[str, Any]:
    """Return log-probabilities of an answer in these pieces, each a token of its own."""
    return {"content": [{"token": piece, "logprob": last, "top_logprobs": []} for piece in pieces]}


@pytest.mark.parametrize(
    "spellings",
    [pytest.param(("3",), id="3"), pytest.param(("3", " 3"), id="3 and a blank 3"), pytest.param(("0",), id="0")],
)
def test_expected_grade_stays_within_the_grades(spellings: tuple[str, ...]) -> None:
    random = np.random.default_rng(0)
    for _ in range(5_000):
        likeliest = [(spelling, math.exp(-random.exponential())) for spelling in spellings]
        grade = expected_grade(logprobs(*likeliest)["content"][0])
        assert grade is not None and 0 <= grade <= 3


async def test_a_sure_grade_3_is_exactly_1() -> None:
    assert await relevance_of(says("3", logprobs=tokens("3"))) == 1.0


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(OPENED, id="thinking that is not closed"),
        pytest.param("Okay, the user asks me to grade 1 passage. Let me", id="thinking without a tag"),
        pytest.param("[THINK]The grade might be 2. Let me", id="Mistral's tag"),
        pytest.param("<thinking>It is a 2", id="another tag"),
        pytest.param(f"{OPENED}</think>\n\nThe grade of the passage, 2", id="a sentence after the thinking"),
        pytest.param("", id="nothing"),
        pytest.param(None, id="null"),
    ],
)
async def test_an_answer_that_was_cut_off_gives_no_grade(content: str | None, caplog: pytest.LogCaptureFixture) -> None:
    assert math.isnan(await relevance_of(says(content, finish_reason="length")))
    assert "cut off at 32 tokens" in caplog.text and "raise scorer.judge.answer_tokens" in caplog.text


@pytest.mark.parametrize(
    "content",
    [pytest.param("2", id="a digit"), pytest.param(f"{OPENED}\n</think>\n\n2\n", id="a digit after the thinking")],
)
async def test_a_bare_grade_counts_at_the_limit_of_the_length(content: str) -> None:
    assert await relevance_of(says(content, finish_reason="length")) == pytest.approx(2 / 3)


THOUGHT = "<think>\nThe answer must be a digit such as 0. Is it 1 or 2?\n</think>\n\n"
PARTS = [{"type": "thinking", "thinking": [{"type": "text", "text": "Is it 0 or 1?"}]}, {"type": "text", "text": "3"}]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(f"{THOUGHT}3", id="a digit after the thinking"),
        pytest.param(f'{THOUGHT}{{"grade": 3}}', id="an object where a digit was asked for"),
        pytest.param("It is a 1.\n</think>\n3", id="an opening tag that the template wrote"),
        pytest.param("<think>I close with </think> later. 1?</think>3", id="a tag within the thinking"),
        pytest.param("<seed:think>0 or 1?</seed:think>3", id="a tag with a name of its own"),
        pytest.param("[THINK]0 or 1?[/THINK]3", id="Mistral's tags"),
        pytest.param("<think></think>3", id="no thought"),
        pytest.param(PARTS, id="parts"),
        pytest.param([{"type": "text", "text": "Grade"}, {"type": "text", "text": ": 3"}], id="two parts"),
    ],
)
async def test_only_what_follows_the_thinking_is_read(content: Any) -> None:
    assert await relevance_of(says(content)) == 1.0


@pytest.mark.parametrize(
    ("content", "pieces"),
    [
        pytest.param("<think>1?</think>3", ("<think>", "1", "?", "</think>", "3"), id="thinking in the content"),
        pytest.param("3", ("<think>", "1", "?", "</think>", "3"), id="thinking in the tokens alone"),
        pytest.param("<think>1?</think>3", ("<think>", "1", "?</th", "ink>3"), id="a tag in several tokens"),
        pytest.param("3", ("maybe", " 1", "?", "3"), id="tokens that do not spell the answer"),
    ],
)
async def test_log_probabilities_are_those_of_the_answer(content: str, pieces: tuple[str, ...]) -> None:
    assert await relevance_of(says(content, logprobs=tokens(*pieces))) == 1.0


@pytest.mark.parametrize(
    "content", [pytest.param([{"type": "text", "text": 3}], id="a number"), pytest.param(["3"], id="no object")]
)
async def test_parts_of_another_form_are_unusable(content: Any) -> None:
    async with grading() as (scorer, (server,)):
        server.behaviour = says(content)
        with pytest.raises(ScorerFailed):
            await scorer.score("q", ["text"])


async def test_of_lines_that_were_cut_off_the_complete_ones_count() -> None:
    async with grading(settings=JudgeSettings(documents_per_request=20)) as (scorer, (server,)):
        server.script = [says("Let me see.\n1: 3\n2: 0 would be", finish_reason="length")]
        values = (await scorer.score("q", ["a", "b", "c"])).values
        np.testing.assert_array_equal(values, [1.0, np.nan, np.nan])
