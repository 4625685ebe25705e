"""Test that answers stay within their token limit, and that a cut text can be continued."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boundarymorph.agents.answers import fit_documents, fit_indexes, size, truncate
from tests.stateful.profile import times

DRAWS = settings(max_examples=times(40, 1_000), deadline=None)
TEXT = st.text('aB1 .\n"\\é漢😀{\u2028\0', max_size=400)
DOCUMENT = st.fixed_dictionaries(
    {"id": TEXT, "relevance": st.floats(0, 1), "text": TEXT | TEXT.map(lambda text: 20 * text)}
)
INDEX = st.fixed_dictionaries(
    {"name": TEXT, "documents": st.integers(0, 10**7)},
    optional={"description": TEXT, "fields": st.dictionaries(TEXT, st.lists(TEXT, max_size=3))},
)


def documents(*texts: str) -> list[dict[str, Any]]:
    return [{"id": f"i/{place}", "text": text} for place, text in enumerate(texts)]


class TestBeginning:
    @DRAWS
    @given(TEXT, st.integers(1, 60))
    def test_beginning_is_the_longest_prefix_that_fits_the_tokens(self, text: str, tokens: int) -> None:
        part = truncate(text, tokens)
        assert text.startswith(part) and len(part.encode()) <= 4 * tokens
        assert (part == text) == (len(text.encode()) <= 4 * tokens)

    @pytest.mark.parametrize(
        ("text", "part"),
        [
            ("one two three four", "one two "),
            ("one\ntwo three four", "one\ntwo "),
            ("a " + "b" * 99, "a " + "b" * 10),
            ("漢" * 9, "漢" * 4),
        ],
    )
    def test_beginning_ends_after_a_nearby_blank(self, text: str, part: str) -> None:
        assert truncate(text, 3) == part


class TestFitted:
    @DRAWS
    @given(st.lists(DOCUMENT, max_size=12), st.integers(200, 2_000))
    def test_fitted_keeps_the_leading_documents(self, given: list[dict[str, Any]], tokens: int) -> None:
        kept = fit_documents(given, tokens)
        for document, whole in zip(kept, given, strict=False):
            assert document["id"] == whole["id"]
            if "next_offset" in document:
                assert document["text"] == whole["text"][: document["next_offset"]] != whole["text"]
            else:
                assert document == whole
        assert kept == given or len(kept) < len(given) or any("next_offset" in document for document in kept)

    def test_fitted_cuts_a_long_text_to_keep_short_ones(self) -> None:
        first, *others = fit_documents(documents("word " * 9_999, "short", "word " * 200), 1_000)
        assert 450 < size(first["text"]) <= 501 and first["text"] == ("word " * 9_999)[: first["next_offset"]]
        assert [document["text"] for document in others] == ["short", "word " * 200]


class TestListed:
    @DRAWS
    @given(st.lists(INDEX, max_size=40), st.integers(10, 1_000))
    def test_listed_drops_descriptions_before_index_names(self, indexes: list[dict[str, Any]], tokens: int) -> None:
        kept = fit_indexes(indexes, tokens)
        assert sum(map(size, kept)) <= tokens
        assert [index["name"] for index in kept] == [index["name"] for index in indexes[: len(kept)]]
        if sum(map(size, indexes)) <= tokens:
            assert kept == indexes
        whole = [index == full for index, full in zip(kept, indexes, strict=False) if len(full) > 2]
        assert whole == sorted(whole, reverse=True), "the first ones keep what the last ones lose"
