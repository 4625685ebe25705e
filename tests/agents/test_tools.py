"""Test the answers of the tools, and their messages about wrong arguments."""

import sys
from pathlib import Path
from typing import Any

import pytest

import boundarymorph.agents.tools  # noqa: F401 - which a test takes away
from boundarymorph.agents import answers, tools
from boundarymorph.retrieval.artifacts import FILE
from boundarymorph.settings import AgentSettings
from tests.agents.conftest import LONG, Running, Serve, Transport, call_tool, tool_error
from tests.fakes.scorer import score_of
from tests.fakes.service import problem

QUERY = {"query": "music of the sea", "index": "papers"}
UNDERSTOOD: list[tuple[dict[str, Any], int]] = [  # arguments, and the number of documents found
    ({"k": "3"}, 3),
    ({"k": 3.0}, 3),
    ({"budget": "auto", "k": 3}, 3),
    ({"filter": {"year": {"gte": 2037}}}, 3),
    ({"filter": '{"year": {"gte": 2037}}', "budget": "20"}, 3),
    ({"filter": {"year": {"gte": 2037}}, "exclude_ids": '["papers/p39", "p38"]'}, 1),
    ({"distinct": "true", "filter": {"year": {"gte": 2037}}}, 3),
    ({"distinct": "false", "filter": {"year": {"gte": 2037}}}, 3),
    ({"distinct": "url"}, 10),
    ({"filter": {"year": {"gte": 2037}}, "exclude_ids": [f"p{number}" for number in range(20_000)], "budget": 0}, 0),
]
MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("select_documents", {"querry": "q"}, "there is no argument 'querry', only query, index, k"),
    ("list_indexes", {"index": "papers"}, "there is no argument 'index', only none"),
    ("select_documents", {"index": "papers"}, "query: is missing"),
    ("select_documents", {"query": "\u200b"}, "query: must have something to read"),
    ("search", {"query": ""}, "query: "),
    ("select_documents", {**QUERY, "filter": "{"}, "filter: Input should be an object"),
    ("select_documents", {**QUERY, "exclude_ids": "a"}, "exclude_ids: Input should be an array"),
    ("select_documents", {**QUERY, "k": "many"}, "k: Input should be a valid integer"),
    ("select_documents", {**QUERY, "k": 0}, "k: Input should be greater than or equal to 1"),
    ("select_documents", {**QUERY, "k": "x", "min_relevance": 2}, "min_relevance: Input should be less than"),
    ("select_documents", {**QUERY, "k": 1, "max_tokens": 500}, "not both"),
    ("select_documents", {**QUERY, "budget": 2_001}, "limit of 2,000"),
    ("select_documents", {"query": "q"}, "one of empty, papers"),
    ("search", {"query": "q"}, "one of empty, papers"),
    ("search", {"query": "q", "index": "a"}, "list_indexes"),
    ("search", {"query": "q", "index": "empty"}, "list_indexes"),
    ("select_documents", {"query": "q", "index": "empty"}, "list_indexes"),
    ("fetch", {"id": "papers/x"}, "search again"),
    ("fetch", {"id": "papers/" + "x" * 70_000}, "id: String should have at most 1024 characters. Correct that"),
    ("fetch", {"id": "nothing"}, "one of empty, papers"),
    ("fetch", {"id": "papers/p1", "offset": 99}, "ends at character 6"),
    ("fetch", {"id": "papers/.."}, "no document '..'"),
]


@pytest.mark.strangers
async def test_tool_arguments_may_be_strings_of_json(service: Running) -> None:
    async with service.connect() as client:
        for given, count in UNDERSTOOD:
            found = await call_tool(client, "select_documents", **QUERY, **given)
            assert len(found["documents"]) == count, given
        for query in ("3", "true", '["a"]', '{"a": 1}', '"quoted"'):
            assert (await call_tool(client, "search", query=query, index="papers"))["results"]


async def test_tool_refuses_wrong_arguments_and_says_what_to_do(service: Running) -> None:
    async with service.connect() as client:
        for tool, given, said in MISTAKES:
            message = await tool_error(client, tool, **given)
            assert said in message and "pydantic" not in message
            if ": Input" in said:
                assert message.endswith("Correct that argument and call again.")


class TestSelectDocuments:
    async def test_select_documents_counts_max_tokens_over_texts_only(self, service: Running) -> None:
        async with service.connect() as client:
            found = await call_tool(client, "select_documents", **QUERY, max_tokens=40, filter={"year": {"gt": 2010}})
        assert 8 < len(found["documents"]) < 29
        assert sum(answers.size(document["text"]) for document in found["documents"]) <= 2 * 40
        assert not any("next_offset" in document for document in found["documents"])

    async def test_select_documents_notes_that_the_answer_is_missing(self, service: Running) -> None:
        """The best score of the 40 papers is known, and the budget covers all of them."""
        best = max(score_of(QUERY["query"], f"Paper {n}\n{LONG if n == 7 else f'text {n}'}") for n in range(40))
        async with service.connect() as client:
            for least, probability in ((best - 0.01, 1.0), (best + (1 - best) / 2, 0.0)):
                found = await call_tool(client, "select_documents", **QUERY, budget=40, min_relevance=least)
                assert found["answerable"] == probability
                assert (tools.UNANSWERED in found["notes"]) == (probability == 0.0)
            assert "answerable" not in await call_tool(client, "search", query="q", index="papers")

    @pytest.mark.strangers
    async def test_select_documents_notes_why_nothing_was_found(self, service: Running) -> None:
        async with service.connect() as client:
            found = await call_tool(client, "select_documents", **QUERY, budget=40, min_relevance=1)
            assert found["documents"] == []
            assert [note for note in found["notes"] if note.startswith("no document reached 1, as the best was 0.")]
            for wrong in ({"filter": {"yaer": 2003}}, {"distinct": "uri"}):
                found = await call_tool(client, "select_documents", **QUERY, budget=0, **wrong)
                assert "the fields of this index are year (number), url (string)" in found["notes"]

    @pytest.mark.parametrize("transport", Transport)
    async def test_tool_note_about_an_index_is_shown_once_per_caller(
        self, serve: Serve, tmp_path: Path, transport: Transport
    ) -> None:
        with serve() as service:
            (tmp_path / "indexes" / "papers" / FILE).write_bytes(b"{")
            for name in ("narrow", "rare"):
                async with service.connect(transport, name) as client:
                    for shown in (1, 0, 0):
                        found = await call_tool(client, "select_documents", **QUERY, distinct="uri")
                        about_index = [note for note in found["notes"] if "the index cannot be read" in note]
                        assert len(about_index) == shown
                        assert [note for note in found["notes"] if "'uri'" in note], "notes about a query come again"

    async def test_fetch_continues_a_text_that_select_documents_cut(self, serve: Serve) -> None:
        call = {**QUERY, "k": 5, "budget": 0, "filter": {"year": {"gte": 2005, "lte": 2009}}}
        with serve(agents=AgentSettings(answer_tokens=2_000)) as service:
            async with service.connect() as client:
                found = await call_tool(client, "select_documents", **call)
                long = next(document for document in found["documents"] if document["id"] == "papers/p7")
                rest = await call_tool(client, "fetch", id="papers/p7", offset=long["next_offset"])
        assert len(found["documents"]) == 5, "the short texts have room beside the long one"
        assert LONG.startswith(long["text"] + rest["text"])
        assert tools.CUT.format(count=1) in found["notes"]


class TestIndexes:
    @pytest.mark.strangers
    async def test_tools_default_to_the_only_index_of_the_key(self, service: Running) -> None:
        async with service.connect(name="narrow") as client:
            assert len((await call_tool(client, "select_documents", query="q", k="2"))["documents"]) == 2
            assert (await call_tool(client, "fetch", id="p3"))["text"] == "text 3"

    @pytest.mark.strangers
    async def test_tools_default_to_the_configured_index_for_ids_with_slashes(self, serve: Serve) -> None:
        ids = ["man/lsof.8.txt#2", "man/8/lsof.8.txt#2", "a\u2028b"]
        text = "one\u2028two\u2029three\u0085four"
        with serve(agents=AgentSettings(index="papers")) as service, service.client() as writer:
            writer.upload("papers", [{"id": id, "text": text} for id in ids])
            async with service.connect() as client:
                assert len((await call_tool(client, "search", query="q"))["results"]) == 10
                for id in [*ids, *(f"papers/{id}" for id in ids)]:
                    found = await call_tool(client, "fetch", id=id)
                    assert (found["id"], found["text"]) == (id, text)


class TestLoading:
    async def test_mcp_without_its_extra_says_what_to_install(
        self, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "mcp_types", None)
        monkeypatch.delitem(sys.modules, "boundarymorph.agents.tools")
        with serve() as service:
            async with service.api() as api:
                for _ in range(2):
                    detail = problem(await api.post("/mcp", json={}), 501, "not-installed")
                    assert "pip install --find-links dist 'boundarymorph[mcp]'" in detail
                assert (await api.get("/indexes")).is_success
