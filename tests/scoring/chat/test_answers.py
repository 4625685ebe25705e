"""Test the relevance in a language model's answer: grades, thinking, and answers cut short."""

import math
from typing import Any

import numpy as np
import orjson
import pytest

from boundarymorph.remote.wire import MalformedAnswer
from boundarymorph.scoring.chat import Chat, expected_grade
from boundarymorph.settings import JudgeSettings
from tests.metrics import counted
from tests.scoring.chat.scripted import completion, logprobs, many_graded

pytestmark = pytest.mark.strangers
NAN = math.nan
OPENED = "<think>\nOkay, the user asks me to grade 1 passage. Let me read it. "
THOUGHT = "<think>\nThe answer must be a digit such as 0. Is it 1 or 2?\n</think>\n\n"
PARTS = [{"type": "thinking", "thinking": [{"type": "text", "text": "Is it 0 or 1?"}]}, {"type": "text", "text": "3"}]


def tokens(*pieces: str) -> dict[str, Any]:
    """Return the log-probabilities of an answer with these tokens."""
    return {"content": [{"token": piece, "logprob": -0.1, "top_logprobs": []} for piece in pieces]}


def logprobs_after(words: str) -> dict[str, Any]:
    """Return the log-probabilities of an answer of words and a grade.

    The grade 1 was written, and the grade 2 has a probability of 1/4.
    """
    plain = [{"token": piece, "logprob": -0.1} for piece in words]
    return {"content": [*plain, *logprobs(("1", 0.75), ("2", 0.25))["content"], {"token": "}", "logprob": -0.1}]}


CUT = {"finish_reason": "length"}
ANSWERS: list[tuple[Any, dict[str, Any], float]] = [
    # The expected grade, where some probabilities may be missing.
    ("2", {"logprobs": logprobs(("2", 0.6), ("3", 0.2), ("The", 0.1))}, (2 * 0.6 + 3 * 0.2) / 0.8 / 3),
    (" 1", {"logprobs": logprobs((" 1", 0.5), ("1", 0.25), ("0", 0.25))}, 0.75 / 3),
    ("2", {"logprobs": logprobs(("2", 0.5), ("1", None))}, 2 / 3),
    ("3", {"logprobs": logprobs(("3", 1.0), ("9", 0.1))}, 1.0),
    ("3", {"logprobs": tokens("3")}, 1.0),
    # The digit, if there are no usable probabilities.
    ("2", {"logprobs": None}, 2 / 3),
    ("2", {"logprobs": {"content": None}}, 2 / 3),
    ("2", {"logprobs": {"content": ["2"]}}, 2 / 3),
    ("2", {"logprobs": {"content": [{"token": "2", "logprob": None}]}}, 2 / 3),
    # Other words before the grade.
    ("Grade: 1", {"logprobs": logprobs_after("Grade: ")}, 1.25 / 3),
    ("Grade:1", {"logprobs": logprobs_after("Grade:")}, 1.25 / 3),
    ('{"grade": 1}', {"logprobs": logprobs_after('{"grade": ')}, 1.25 / 3),
    # The text after the thinking.
    (f"{THOUGHT}3", {}, 1.0),
    (f'{THOUGHT}{{"grade": 3}}', {}, 1.0),
    ("It is a 1.\n</think>\n3", {}, 1.0),
    ("<think>I close with </think> later. 1?</think>3", {}, 1.0),
    ("<seed:think>0 or 1?</seed:think>3", {}, 1.0),
    ("[THINK]0 or 1?[/THINK]3", {}, 1.0),
    (PARTS, {}, 1.0),
    ([{"type": "text", "text": "Grade"}, {"type": "text", "text": ": 3"}], {}, 1.0),
    ("<think>1?</think>3", {"logprobs": tokens("<think>", "1", "?", "</think>", "3")}, 1.0),
    ("3", {"logprobs": tokens("<think>", "1", "?", "</think>", "3")}, 1.0),
    ("<think>1?</think>3", {"logprobs": tokens("<think>", "1", "?</th", "ink>3")}, 1.0),
    ("3", {"logprobs": tokens("maybe", " 1", "?", "3")}, 1.0),
    # A bare grade counts although the answer was cut off.
    ("2", CUT, 2 / 3),
    (f"{OPENED}\n</think>\n\n2\n", CUT, 2 / 3),
    # No grade.
    ("7", {}, NAN),
    ("10", {"logprobs": logprobs(("1", 1.0))}, NAN),
    ("2.5", {}, NAN),
    ("between 1 and 2", {}, NAN),
    ("relevant", {}, NAN),
    (None, {}, NAN),
    (None, {"refusal": "I cannot help with that."}, NAN),
    ("2", {"finish_reason": "content_filter"}, NAN),
]


@pytest.mark.parametrize(("content", "more", "relevance"), ANSWERS)
def test_chat_reads_the_relevance_of_an_answer(content: Any, more: dict[str, Any], relevance: float) -> None:
    (read,) = Chat().read(orjson.dumps(completion(content, **more)), 1).values
    assert read == pytest.approx(relevance, nan_ok=True)
    assert relevance != 1.0 or read == 1.0


def test_chat_counts_answers_by_outcome() -> None:
    said = [("graded", "2", {}), ("malformed", "relevant", {}), ("refused", None, {"refusal": "I cannot."})]
    for outcome, content, more in said:
        before = counted("boundarymorph_judge_answers_total", outcome=outcome)
        Chat().read(orjson.dumps(completion(content, **more)), 1)
        assert counted("boundarymorph_judge_answers_total", outcome=outcome) == before + 1


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
def test_chat_reads_no_grade_from_a_truncated_answer(content: str | None, caplog: pytest.LogCaptureFixture) -> None:
    (read,) = Chat().read(orjson.dumps(completion(content, **CUT)), 1).values
    assert math.isnan(read)
    assert "cut off at 32 tokens" in caplog.text and "raise scorer.judge.answer_tokens" in caplog.text


@pytest.mark.parametrize(
    ("answered", "grades"),
    [
        ("1: 3\n2: 0\n3: 1", [3, 0, 1]),
        ("Here they are:\n\n**1**: 3\n- 2: 0\n[3]: 1.\nThat is all.", [3, 0, 1]),
        ("Passage 3: 1\nPassage 2: 0\nPassage 1: 3", [3, 0, 1]),
        ("1: 3\n2: 0\n3: 1\n4: 2\n0: 2", [3, 0, 1]),  # numbers without a passage
        ("1: 3\n3: 1", [3, NAN, 1]),
        ("1: 3\n2: 7\n3: 1", [3, NAN, 1]),
        ("1: 3\n2: 1.5\n3: 1", [3, NAN, 1]),
        ("1: 3\n2: 0\n2: 2\n3: 1", [3, NAN, 1]),  # a passage with two grades
        ("1: 3\n2:\n3: 1", [3, NAN, 1]),
        ("Let me see.\n1: 3\n2: 0 would be", [3, NAN, NAN]),  # cut off
        ("3\n0\n1", [NAN] * 3),
        ("", [NAN] * 3),
    ],
)
def test_chat_reads_the_grade_of_each_passage_from_its_line(answered: str, grades: list[float]) -> None:
    chat = Chat(JudgeSettings(documents_per_request=20))
    read = chat.read(orjson.dumps(completion(answered, finish_reason="length")), 3).values
    np.testing.assert_allclose(read, np.array(grades) / 3, atol=1e-9)


def test_chat_reads_the_log_probabilities_of_each_line() -> None:
    chat = Chat(JudgeSettings(documents_per_request=20))
    np.testing.assert_allclose(chat.read(orjson.dumps(many_graded([0.9, 0.1, 0.5])), 3).values, [0.9, 0.1, 0.5])


@pytest.mark.parametrize("content", [[{"type": "text", "text": 3}], ["3"], 2])
def test_chat_refuses_content_of_another_form(content: Any) -> None:
    with pytest.raises(MalformedAnswer):
        Chat().read(orjson.dumps(completion(content)), 1)


@pytest.mark.parametrize("spellings", [("3",), ("3", " 3"), ("0",)])
def test_expected_grade_stays_within_0_and_3(spellings: tuple[str, ...]) -> None:
    random = np.random.default_rng(0)
    for _ in range(5_000):
        likeliest = [(spelling, math.exp(-random.exponential())) for spelling in spellings]
        grade = expected_grade(logprobs(*likeliest)["content"][0])
        assert grade is not None and 0 <= grade <= 3
