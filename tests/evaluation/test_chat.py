"""Language models: a stand-in server that speaks the chat protocol over a real socket."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from boundarymorph.evaluation.methods import agentic
from boundarymorph.evaluation.methods.agentic import Chat, ChatFailed
from boundarymorph.evaluation.problem import Question, QuestionTexts
from boundarymorph.evaluation.run import run_once
from boundarymorph.remote.chat import json_in
from tests.evaluation.tables import on_a_circle

Answer = Callable[[dict[str, Any]], tuple[int, str]]


@contextmanager
def endpoint(answer: Answer) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """URL of a server whose answers `answer` makes of the request bodies, and the requests it saw."""
    seen: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append(body | {"path": self.path, "key": self.headers.get("Authorization")})
            status, content = answer(body)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def said(text: str) -> tuple[int, str]:
    return 200, json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]})


@contextmanager
def chatting(answer: Answer, **options: Any) -> Iterator[tuple[Chat, list[dict[str, Any]]]]:
    with endpoint(answer) as (url, seen):
        chat = Chat(url, "stand-in", pause=0.0, **options)
        try:
            yield chat, seen
        finally:
            chat.close()


def test_a_prompt_is_sent_as_a_chat_completion() -> None:
    with chatting(lambda _: said("yes"), api_key="secret") as (chat, seen):
        assert chat("Is it?") == "yes"
    (request,) = seen
    assert request["path"] == "/v1/chat/completions" and request["key"] == "Bearer secret"
    assert request["messages"] == [{"role": "user", "content": "Is it?"}]
    assert (request["model"], request["temperature"], request["max_tokens"]) == ("stand-in", 0, agentic.TOKENS)


def test_a_busy_endpoint_is_asked_again() -> None:
    answers = iter([(503, ""), (429, ""), said("at last")])
    with chatting(lambda _: next(answers)) as (chat, seen):
        assert chat("?") == "at last" and len(seen) == 3


@pytest.mark.parametrize(
    ("answer", "attempts"), [((500, ""), 4), ((401, "no key"), 1), ((200, "<html>"), 1), ((200, '{"choices": []}'), 1)]
)
def test_failures(answer: tuple[int, str], attempts: int) -> None:
    with chatting(lambda _: answer) as (chat, seen):
        with pytest.raises(ChatFailed):
            chat("?")
        assert len(seen) == attempts


def test_an_endpoint_that_is_not_there() -> None:
    chat = Chat("http://127.0.0.1:9", "none", pause=0.0)
    with pytest.raises(ChatFailed, match="no answer in 4 attempts"):
        chat("?")
    chat.close()


def test_json_among_words() -> None:
    assert json_in('Sure!\n```json\n{"a": {"b": 1}}\n```') == {"a": {"b": 1}}
    assert json_in("none") is None and json_in("{not json}") is None and json_in("[1]") is None


def with_texts(question: Question) -> Question:
    texts = [f"text of {name}" for name in question.pool.ids]
    return Question(question.id, question.pool, question.scores, None, None, QuestionTexts("the need", texts))


def grades_by_number(body: dict[str, Any]) -> tuple[int, str]:
    """Writes a search, or grades each document shown with the last digit of its id."""
    prompt = body["messages"][0]["content"]
    shown = re.findall(r"\[(\d+)\] text of d(\d+)", prompt)
    if not shown:
        return said("search further")
    grades = {number: int(document) % 10 for number, document in shown}
    return said("Here: " + json.dumps({"grades": grades, "notes": [f"saw {len(shown)}"]}))


def test_the_agentic_loop_reads_b_documents_in_its_hops() -> None:
    question = with_texts(on_a_circle([0, 10, 20, 30, 40, 50, 60, 70], [0.5] * 8))
    searches: list[str] = []

    def embed(text: str) -> np.ndarray:
        searches.append(text)
        angle = np.deg2rad(0 if len(searches) == 1 else 70)
        return np.array([np.cos(angle), np.sin(angle)])

    with chatting(grades_by_number) as (chat, seen):
        (contestant,) = agentic.contestants(chat, embed, hops=(2,))
        run, ranking = run_once(contestant.settings[0], question, 5, 3)
    assert searches == ["search further"] * 2 and len(seen) == 4
    # First hop, 2 documents near 0 degrees: 0, 1. Second, 3 near 70: 7, 6, 5. Then the rest in retrieval order.
    assert ranking.tolist() == [7, 6, 5, 1, 0, 2, 3, 4]
    assert (run.calls, run.prompts) == ([], 4), "no cross-encoder is called"
    assert "(nothing yet)" in seen[0]["messages"][0]["content"]
    assert "- saw 2" in seen[2]["messages"][0]["content"]


def test_an_agent_that_answers_nonsense_ranks_by_similarity() -> None:
    question = with_texts(on_a_circle([0, 10, 20, 30], [0.5] * 4))
    method = agentic.Agentic(1, lambda prompt: "nonsense", lambda text: np.array([0.0, 1.0]))
    assert run_once(method, question, 2, 2)[1].tolist() == [2, 3, 0, 1]
