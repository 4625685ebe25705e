"""Tokens are estimated rather too high than too low, and an answer never has more than it may."""

from __future__ import annotations

import argparse
import asyncio
import collections
import datetime
import decimal
import inspect
import logging
import subprocess
import unittest
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from boundarymorph.agents import answers
from boundarymorph.agents.answers import (
    Costs,
    Extended,
    FetchedDocument,
    ListedField,
    ListedIndex,
    ListedIndexes,
    SelectedText,
    SelectedTexts,
    fitted,
    fitted_document,
    fitted_list,
    fitting,
    size,
)
from boundarymorph.inference.models import embedded_encoder
from tests.stateful.profile import times

DRAWS = settings(max_examples=times(40, 1_000), deadline=None)
TEXT = st.text(st.sampled_from('aB1 .\n"\\é漢😀{') | st.characters(codec="utf-8"), max_size=400)
DOCUMENT = st.builds(
    SelectedText,
    id=st.text(st.characters(codec="utf-8"), min_size=1, max_size=60),
    title=st.none() | TEXT,
    text=TEXT | TEXT.map(lambda text: 20 * text),
    relevance=st.floats(0, 1),
    metadata=st.none() | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), TEXT, max_size=3),
)

INDEX = st.builds(
    ListedIndex,
    name=st.text(st.characters(codec="utf-8"), min_size=1, max_size=60),
    description=st.none() | TEXT,
    documents=st.integers(0, 10**7),
    fields=st.none()
    | st.dictionaries(TEXT, st.builds(ListedField, type=st.just("string"), examples=st.lists(TEXT, max_size=3))),
)


class TestCount:
    def test_is_not_below_a_tokenizers_of_real_texts(self) -> None:
        tokenizer = Tokenizer.from_file(str(embedded_encoder().tokenizer))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        modules = (argparse, asyncio, collections, datetime, decimal, logging, subprocess, unittest)
        members = [member for module in modules for member in vars(module).values() if inspect.isclass(member)]
        texts = [text for member in members for part in vars(member).values() if (text := inspect.getdoc(part))]
        real = [len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]
        estimated = [answers.count(text) for text in texts]
        assert len(texts) > 300
        assert sum(real) <= sum(estimated) <= 1.5 * sum(real)
        assert sum(one < other for one, other in zip(estimated, real, strict=True)) < 0.05 * len(texts)

    @pytest.mark.parametrize(
        ("text", "count"), [("", 0), ("word", 1), ("words", 2), ("two words", 3), ("1234", 2), ("a, b", 3), ("漢字", 4)]
    )
    def test_the_tokens_of_a_text_are_estimated(self, text: str, count: int) -> None:
        assert answers.count(text) == count


class TestCut:
    @DRAWS
    @given(TEXT, st.integers(0, 60))
    def test_keeps_the_beginning(self, text: str, most: int) -> None:
        cut = answers.cut(text, most)
        if answers.count(text) <= most:
            assert cut == text
        else:
            assert text.startswith(cut.removesuffix(answers.MARK))
            assert answers.count(cut.removesuffix(answers.MARK)) <= most

    def test_ends_with_a_word(self) -> None:
        assert answers.cut("one two three, four and more", 3) == "one two …"


class TestFitting:
    def test_the_more_relevant_text_keeps_more(self) -> None:
        documents = [
            SelectedText(id=f"i/{place}", text=text, relevance=relevance, judged=True)
            for place, (text, relevance) in enumerate([("word " * 999, 0.8), ("word " * 999, 0.4), ("short", 0.1)])
        ]
        shorter = fitted(SelectedTexts(documents=documents, notes=[]), 1_000)
        first, second, third = (document.text for document in shorter.documents)
        assert answers.count(first) == pytest.approx(2 * answers.count(second), abs=4)
        assert third == "short" and 950 < size(shorter) <= 1_000
        assert shorter.notes == [answers.CUT.format(count=2)]

    def test_long_metadata_and_long_notes_leave_room_for_texts(self) -> None:
        small, large = {"m": "word " * 80}, {"m": "word " * 110}  # an eighth of 800 tokens is between them
        documents = [
            SelectedText(id=f"i/{place}", text="word " * 999, relevance=0.5, judged=True, metadata=metadata)
            for place, metadata in enumerate([small, large, None])
        ]
        shorter = fitted(SelectedTexts(documents=documents, notes=["note " * 99, "note " * 99]), 800)
        assert [document.metadata for document in shorter.documents] == [small, None, None]
        assert [answers.count(note.removesuffix(answers.MARK)) for note in shorter.notes[:2]] == [40, 40]
        assert 750 < size(shorter) <= 800

    def test_a_whole_answer_is_as_it_was(self) -> None:
        document = SelectedText(id="i/d", title="T", text="text", relevance=1, judged=True, metadata={"a": 1})
        answer = SelectedTexts(documents=[document], notes=["n"])
        assert fitted(answer, 200) == answer

    @DRAWS
    @given(st.lists(DOCUMENT, max_size=12), st.lists(TEXT, max_size=3), st.integers(200, 2_000), st.booleans())
    def test_never_more_than_it_may(
        self, documents: list[SelectedText], notes: list[str], most: int, detailed: bool
    ) -> None:
        costs = Costs(budget=50, judgements=50, reused=0, expected_loss=0.125) if detailed else None
        answer = SelectedTexts(documents=documents, notes=notes, costs=costs)
        shorter = fitted(answer, most)
        assert size(shorter) <= most
        assert [document.id for document in shorter.documents] == [d.id for d in documents[: len(shorter.documents)]]
        if len(shorter.documents) < len(documents):
            assert any("fit" in note for note in shorter.notes)
        for document, whole in zip(shorter.documents, documents, strict=False):
            assert document.text == whole.text or (document.cut and document.text != whole.text)

    @DRAWS
    @given(st.lists(INDEX, max_size=40), st.lists(TEXT, max_size=1), st.integers(100, 1_000))
    def test_a_list_of_indexes_keeps_names_longest(
        self, indexes: list[ListedIndex], notes: list[str], most: int
    ) -> None:
        notes = [answers.cut(note, 20) for note in notes]
        listed = ListedIndexes(indexes=indexes, notes=notes)
        shorter = fitted_list(listed, most)
        assert size(shorter) <= most
        if size(listed) + 1 <= most:
            assert shorter == listed
        assert [index.name for index in shorter.indexes] == [index.name for index in indexes[: len(shorter.indexes)]]
        if left_out := len(indexes) - len(shorter.indexes):
            assert shorter.notes == [*notes, answers.NOT_LISTED.format(count=left_out)]
            assert all(index.fields is None and index.description is None for index in shorter.indexes)
        for lost in ("fields", "description"):  # the first indexes keep what the last ones lose
            kept = [getattr(one, lost) == getattr(whole, lost) for one, whole in zip(shorter.indexes, indexes)]  # noqa: B905
            assert kept == sorted(kept, reverse=True) or left_out or not all(getattr(i, lost) for i in indexes)

    @DRAWS
    @given(
        TEXT.map(lambda text: 9 * text),
        st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), TEXT, max_size=3),
        st.integers(300, 999),
    )
    def test_a_document_goes_on_where_it_was_cut(self, text: str, metadata: dict[str, str], most: int) -> None:
        document = FetchedDocument(id="i/d", title="T", text=text, url="http://h/i/d", metadata=metadata)
        shorter = fitted_document(document, most)
        assert size(shorter) <= most
        if shorter.next_offset is None:
            assert shorter.text == text and (shorter == document or not shorter.metadata)
        else:
            assert shorter.next_offset < len(text)
            assert shorter.text.removesuffix(answers.MARK).rstrip() == text[: shorter.next_offset].rstrip()

    @pytest.mark.parametrize("text", ["", "short", f"it ends so{answers.MARK}"])
    def test_a_text_that_fits_without_its_metadata_is_whole(self, text: str) -> None:
        metadata = {"long": "word " * 999}
        document = FetchedDocument(id="i/d", title="T", text=text, url="http://h/i/d", metadata=metadata)
        assert fitted_document(document, 300) == document.model_copy(update={"metadata": {}})

    def test_blank_lines_are_gone_through(self) -> None:
        text = 999 * "\n" + "end"
        document = FetchedDocument(id="i/d", title="T", text=text, url="http://h/i/d", metadata={})
        offset: int | None = 0
        while offset is not None:
            part = fitted_document(document.model_copy(update={"text": text[offset:]}), 300)
            assert part.next_offset is None or part.next_offset > 0
            offset = None if part.next_offset is None else offset + part.next_offset
        assert part.text.endswith("end")


def listed(count: int) -> object:
    indexes = [ListedIndex(name=f"acme-{n}", description="word " * 100, documents=n) for n in range(count)]
    return fitted_list(ListedIndexes(indexes=indexes, notes=[]), 10_000)


def described_by_large_fields(count: int) -> object:
    fields = {f"field {n} " + "f" * 100 * count: ListedField(type="string", examples=["v"]) for n in range(50)}
    return fitted_list(ListedIndexes(indexes=[ListedIndex(name="i", documents=1, fields=fields)], notes=[]), 10_000)


def selected(count: int) -> object:
    documents = [
        SelectedText(id=f"i/{n}", text="word " * 2_000, relevance=1 / (1 + n), judged=True) for n in range(count)
    ]
    return fitted(SelectedTexts(documents=documents, notes=["note"]), 10_000)


def extended(count: int) -> object:
    return fitting([Extended(id=str(n), relevance=0.123, judged=False) for n in range(count)], 10_000)


def fetched(count: int) -> object:
    document = FetchedDocument(
        id="i/d", title="T" * count, text="w " * 100 * count, url="u", metadata={"m": "w" * count}
    )
    return fitted_document(document, 10_000)


@pytest.mark.strangers
@pytest.mark.parametrize("answered", [listed, described_by_large_fields, selected, extended, fetched])
def test_fitting_looks_at_each_token_a_bounded_number_of_times(
    answered: Callable[[int], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = 0

    def counting(token: str, weight: Callable[[str], int] = answers._weight) -> int:
        nonlocal seen
        seen += 1
        return weight(token)

    monkeypatch.setattr(answers, "_weight", counting)
    work = []
    for count in (300, 600, 1_200):
        seen = 0
        answered(count)
        work.append(seen)
    assert work[1] <= 2.2 * work[0] + 1_000 and work[2] <= 2.2 * work[1] + 1_000, work
    assert work[2] < 1_000_000, work
