"""What a language model's answer says once its thinking is removed, and when it is cut off or rounded."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from boundarymorph.errors import ScorerFailed
from boundarymorph.scoring.judge import expected_grade
from boundarymorph.settings import JudgeSettings
from tests.scoring.judge.scripted import logprobs
from tests.scoring.judge.test_judge import judging, relevance_of, says

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
        grade = expected_grade(logprobs(*likeliest)["content"])
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
        pytest.param('{"grade": 2', id="half of an object"),
        pytest.param("", id="nothing"),
        pytest.param(None, id="null"),
    ],
)
@pytest.mark.parametrize("way", ["digit", "json"])
async def test_an_answer_that_was_cut_off_gives_no_grade(
    content: str | None, way: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert math.isnan(await relevance_of(says(content, finish_reason="length"), settings=JudgeSettings(grades=way)))
    assert "raise scorer.judge.answer_tokens" in caplog.text


@pytest.mark.parametrize(
    ("content", "way"),
    [
        pytest.param("2", "digit", id="a digit"),
        pytest.param(f"{OPENED}\n</think>\n\n2", "digit", id="a digit after the thinking"),
        pytest.param('{"grade": 2}\n\n\n\n', "json", id="an object and blank lines"),
    ],
)
async def test_a_bare_grade_counts_at_the_limit_of_the_length(content: str, way: Any) -> None:
    found = await relevance_of(says(content, finish_reason="length"), settings=JudgeSettings(grades=way))
    assert found == pytest.approx(2 / 3)


THOUGHT = '<think>\nThe answer must be a JSON object such as {"grade": 0}. Is it 1 or 2?\n</think>\n\n'
PARTS = [{"type": "thinking", "thinking": [{"type": "text", "text": "Is it 0 or 1?"}]}, {"type": "text", "text": "3"}]


@pytest.mark.parametrize(
    ("content", "way"),
    [
        pytest.param(f"{THOUGHT}3", "digit", id="a digit after an example object"),
        pytest.param(f'{THOUGHT}{{"grade": 3}}', "json", id="an object after an example object"),
        pytest.param(f'{THOUGHT}{{"grade": 3}}', "digit", id="an object where a digit was asked for"),
        pytest.param("It is a 1.\n</think>\n3", "digit", id="an opening tag that the template wrote"),
        pytest.param("<think>I close with </think> later. 1?</think>3", "digit", id="a tag within the thinking"),
        pytest.param("<seed:think>0 or 1?</seed:think>3", "digit", id="a tag with a name of its own"),
        pytest.param("[THINK]0 or 1?[/THINK]3", "digit", id="Mistral's tags"),
        pytest.param("<think></think>3", "digit", id="no thought"),
        pytest.param(PARTS, "digit", id="parts"),
        pytest.param([{"type": "text", "text": '{"grade"'}, {"type": "text", "text": ": 3}"}], "json", id="two parts"),
    ],
)
async def test_only_what_follows_the_thinking_is_read(content: Any, way: Any) -> None:
    assert await relevance_of(says(content), settings=JudgeSettings(grades=way)) == 1.0


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
    async with judging() as (judge, (server,)):
        server.behaviour = says(content)
        with pytest.raises(ScorerFailed):
            await judge.score("q", ["text"])


async def test_a_model_that_is_cut_off_at_the_start_says_what_to_raise() -> None:
    async with judging(ready=False) as (judge, (server,)):
        server.behaviour = says("", finish_reason="length")
        with pytest.raises(ScorerFailed, match=r"cut off at 32 tokens; raise scorer\.judge\.answer_tokens"):
            await judge.check()


async def test_a_cut_off_answer_for_many_documents_is_asked_for_again() -> None:
    settings = JudgeSettings(documents_per_request=3, grades="digit")
    async with judging(settings=settings) as (judge, (server,)):
        server.script = [says("Let me see.\n1: 3\n2: 0 would be", finish_reason="length")]
        values = (await judge.score("q", ["a", "b", "c"])).values
        assert not np.isnan(values).any() and server.batches == [3, 1, 1, 1]
