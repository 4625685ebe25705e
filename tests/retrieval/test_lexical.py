"""Test words, and BM25 over a pool and over a store, against a literal reference."""

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.local import blocks
from boundarymorph.retrieval.local.catalog import LocalIndex
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.retrieval.local.vectors import TrainingPolicy
from boundarymorph.retrieval.words import (
    MOST_COUNTED,
    MOST_TERMS,
    WORDS_VERSION,
    ColumnWriter,
    PoolWords,
    RowWords,
    WordColumns,
    merge_columns,
    query_terms,
    read_columns,
    stem_numbers,
    words,
)
from tests.contract.vector_index import unit
from tests.retrieval.bm25 import literal_bm25, plain_words
from tests.retrieval.fakes import Words

WORDS = ["a", "b", "Bb", "the", "THE", "ü", "Ω", "жé", "-", "…", "x2", "\n", "them", "Theme", "themes"]
texts = st.lists(st.sampled_from([*WORDS, "жизнь", "жизненный"]), max_size=12).map(" ".join)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The quick, brown fox_1!", "the quick brown fox_1"),
        ("Crème BRÛLÉE cre\u0300me", "creme brulee creme"),
        ("Straße ΣΊΣΥΦΟΣ İstanbul", "strasse σισυφοσ istanbul"),
        ("“naïve”—don\u2019t\u00a0stop", "naive don t stop"),
        ("\uff46\uff55\uff4c\uff4c ﬁne x² ½", "full fine x2 1 2"),
        ("हिन्दी 한국어 책", "हिन्दी 한국 국어 한 국 어 책"),
        ("漢字かなA漢", "漢字 字か かな 漢 字 か な a 漢"),
        ("مُحَمَّد الرَّحْمٰن", "محمد الرحمن"),
        ("שָׁלוֹם־עוֹלָם", "שלום עולם"),
        ("ไทย", "ไท ทย"),
        ("が か\u3099", "が が"),
        ("a\x00b\ud800c 🙂", "a b c"),
        ("", ""),
    ],
)
def test_words_are_lowercase_without_accents(text: str, expected: str) -> None:
    assert [word.decode() for word in words(text)] == expected.split()


@pytest.mark.strangers
@pytest.mark.parametrize(
    ("text", "typed"),
    [
        *[(f"Wert{mark}papier{mark}index", "Wertpapierindex") for mark in "\u00ad\u200b\u2060\ufeff\u200e\u200f"],
        *[(f"na{mark}me", "name") for mark in "\u200c\u200d\u2064\u202a\u2066\ufe0f\U000e0041\u180e\u034f\u061c"],
        ("محـــمد", "محمد"),
        ("کتاب", "كتاب"),
        ("علی", "علي"),
        ("مصطفى", "مصطفي"),
        ("می\u200cخواهم", "ميخواهم"),  # noqa: RUF001 (Persian, with a joiner that is not drawn)
        ("أحمد إسلام آب", "احمد اسلام اب"),
        ("مدرسة", "مدرسه"),
    ],
)
def test_words_ignore_invisible_characters_and_arabic_letter_forms(text: str, typed: str) -> None:
    assert words(text) == words(typed) != []
    assert words(f"x {text} y", query=True) == words(f"x {typed} y", query=True)
    assert PoolWords.from_texts([text, "other"]).bm25(typed).tolist()[0] > 0


@pytest.mark.strangers
def test_query_words_have_single_characters_only_without_a_pair() -> None:
    asked = {query: b" ".join(words(query, query=True)).decode() for query in ("漢字かなA漢", "漢", "책을", "ไทย")}
    assert asked == {"漢字かなA漢": "漢字 字か かな a 漢", "漢": "漢", "책을": "책을", "ไทย": "ไท ทย"}
    pool = PoolWords.from_texts(["漢字かな", "字", "かな文字", "책을 읽다"])
    assert (pool.bm25("字") > 0).tolist() == [True, True, True, False]
    assert (pool.bm25("漢字") > 0).tolist() == [True, False, False, False]
    weather = PoolWords.from_texts(["今天天气很好，我们去公园散步", "東京都の天気は晴れです", "水"])  # noqa: RUF001
    assert (weather.bm25("天") > 0).tolist() == [True, True, False]
    assert (weather.bm25("東") > 0).tolist() == [False, True, False]
    assert (pool.bm25("책") > 0).tolist() == [False, False, False, True]
    assert pool.terms("字").tolist() == [[True, True, True, False]]


@given(st.text(st.characters(max_codepoint=0x24F, exclude_categories=["Cs"])))
def test_words_of_latin_letters_match_the_reference(text: str) -> None:
    assert [word.decode() for word in words(text)] == plain_words(text)


@settings(max_examples=50)
@given(st.text(), st.text())
def test_space_separates_words(first: str, second: str) -> None:
    assert words(f"{first} {second}") == words(first) + words(second)


@settings(max_examples=50)
@given(texts, st.lists(texts, max_size=8))
@example("word", [])
@example("word", ["", "-"])
def test_bm25_of_a_pool_equals_the_literal_formula(query: str, pool: list[str]) -> None:
    np.testing.assert_allclose(PoolWords.from_texts(pool).bm25(query), literal_bm25(query, pool), rtol=1e-12)


@given(
    st.lists(st.sampled_from(["an", "cat", "cats", "Catalogue", "catch", "Ümläute", "umlagert", "жизнь", "жизненный",
                              "漢字", "x2"]), max_size=8).map(" ".join),
    st.lists(texts | st.text("catlogue ü", max_size=12), max_size=6),
)  # fmt: skip
def test_terms_match_words_by_their_first_four_letters(query: str, pool: list[str]) -> None:
    asked = list(dict.fromkeys(word.decode()[:4] for word in words(query, query=True)))
    having = [{word.decode()[:4] for word in words(text)} for text in pool]
    expected = [[term in stems for stems in having] for term in asked]
    found = PoolWords.from_texts(pool).terms(query)
    assert found.dtype == np.bool_ and found.shape == (len(asked), len(pool))
    np.testing.assert_array_equal(found, np.array(expected).reshape(found.shape))


def test_terms_of_a_long_query_are_its_first_words() -> None:
    query = " ".join(f"{number}x" for number in range(MOST_TERMS + 5))
    assert query_terms(query) == [f"{number}x ".encode() for number in range(MOST_TERMS)]
    assert query_terms("Cats, catalogue and cat") == [b"cats", b"cata", b"and ", b"cat "]


@given(st.lists(st.text() | st.text("catlogüж漢字\U00010428é ", max_size=20), max_size=5))
def test_index_terms_number_words_by_their_stems(pool: list[str]) -> None:
    every = [word for text in pool for word in words(text)]
    stems = [word.decode()[:4].encode() if len(word.decode()) >= 4 else word + b" " for word in every]
    found = PoolWords.from_texts(pool)
    numbers = found.index_terms()
    np.testing.assert_array_equal(numbers >> np.uint64(32), stem_numbers(stems))
    np.testing.assert_array_equal(numbers & np.uint64(2**32 - 1), found.hashes)


def columns_of(texts: Sequence[str], first: int = 0) -> WordColumns:
    return WordColumns.from_words(PoolWords.from_texts(texts), first)


def same(one: WordColumns, other: WordColumns) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in WordColumns.__slots__)


@settings(max_examples=20)
@given(st.lists(st.lists(texts, min_size=1, max_size=5), min_size=1, max_size=4), st.sets(st.integers(0, 19)))
@example([["a " * 70_000], ["b a"]], set()).via("counts have a bound")
@example([["", "-"]], set())
def test_merged_columns_equal_columns_of_the_remaining_texts(batches: list[list[str]], dead: set[int]) -> None:
    every = [text for batch in batches for text in batch]
    firsts = np.cumsum([0, *map(len, batches)]).tolist()
    parts = [columns_of(batch, first) for batch, first in zip(batches, firsts, strict=False)]
    assert same(merge_columns(parts), columns_of(every))
    most = max((max(Counter(words(text)).values(), default=0) for text in every), default=0)
    assert merge_columns(parts).counts.max(initial=0) == min(most, MOST_COUNTED)
    with tempfile.TemporaryDirectory() as folder:
        writer = ColumnWriter(Path(folder))
        for batch in batches:
            writer.add(batch)
        writer.finish(lambda: None)
        found, lengths = read_columns(Path(folder))
        assert same(found, columns_of(every))
        assert lengths.tolist() == [len(words(text)) for text in every]
        assert {path.suffix for path in Path(folder).iterdir()} == {".bin"}
    living = [row for row in range(len(every)) if row not in dead]
    places = np.full(len(every), -1)
    places[living] = np.arange(len(living))
    moved = RowWords(
        (merge_columns(parts).moved(places),), np.zeros(len(living), np.uint32), np.ones(len(living), np.bool_)
    )
    for query in ("the themes", "жизнь b"):
        np.testing.assert_array_equal(
            moved.terms(query, np.arange(len(living))), PoolWords.from_texts(every[row] for row in living).terms(query)
        )


@pytest.mark.parametrize("change", ["words later", "earlier rules"])
def test_block_with_outdated_words_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    store = DocumentStore.create(tmp_path / "s", encoder=None, dimension=4, lexical=change != "words later")
    index = LocalIndex("a", store.path, policy=TrainingPolicy(least=4, pause=0))
    store.upsert([Document(f"d{number}", f"tram {number}") for number in range(9)], unit(9, 4), [b""] * 9)
    with monkeypatch.context() as patch:
        patch.setattr(blocks, "WORDS_VERSION", WORDS_VERSION - 1)
        index.await_training()
        assert index.refresh().sequence
        index.close()
    later = Words(store, TrainingPolicy(least=4, pause=0))
    if change == "words later":
        assert store.index_words()
    for made in (False, True):
        assert bool(later.index.refresh().sequence) == made
        assert later.best("tram 7", 1).ids == ["d7"]
        later.index.await_training()
