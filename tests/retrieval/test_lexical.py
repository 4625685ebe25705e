"""Words, and BM25 over a pool and over a store, against a literal reference."""

import itertools
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from boundarymorph.errors import CorruptIndex, InvalidInput
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.local.metadata import MatchingReader
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.retrieval.words.lexical import MOST_TERMS, WORDS_VERSION, PoolWords, query_terms, stem_numbers, words
from boundarymorph.retrieval.words.lexical_index import LexicalReader
from boundarymorph.retrieval.words.postings import (
    SEGMENT_DOCUMENTS,
    WordSegment,
    assemble,
    build,
    chunks,
    find,
    find_stem,
    merge,
    to_merge,
)
from tests.contract.vector_index import unit
from tests.retrieval.bm25 import literal_bm25, plain_words

texts = st.lists(
    st.sampled_from(
        [
            "a",
            "b",
            "Bb",
            "the",
            "THE",
            "ü",
            "Ω",
            "жé",
            "-",
            "…",
            "x2",
            "\n",
            "them",
            "Theme",
            "themes",
            "жизнь",
            "жизненный",
        ]
    ),
    max_size=12,
).map(" ".join)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The quick, brown fox_1!", "the quick brown fox_1"),
        ("Crème BRÛLÉE cre\u0300me", "creme brulee creme"),
        ("Straße ΣΊΣΥΦΟΣ İstanbul", "strasse σισυφοσ istanbul"),
        ("“naïve”—don\u2019t\u00a0stop", "naive don t stop"),
        ("\uff46\uff55\uff4c\uff4c ﬁne x² ½", "full fine x2 1 2"),
        ("हिन्दी 한국어", "हिन्दी 한국어"),
        ("漢字かなA漢", "漢字 字か かな a 漢"),
        ("ไทย", "ไท ทย"),
        ("が か\u3099", "が が"),
        ("a\x00b\ud800c 🙂", "a b c"),
        ("", ""),
    ],
)
def test_words(text: str, expected: str) -> None:
    assert [word.decode() for word in words(text)] == expected.split()


@given(st.text(st.characters(max_codepoint=0x24F, exclude_categories=["Cs"])))
def test_words_of_latin_letters_are_those_of_the_reference(text: str) -> None:
    assert [word.decode() for word in words(text)] == plain_words(text)


@given(st.text(), st.text())
def test_a_space_separates_words(first: str, second: str) -> None:
    assert words(f"{first} {second}") == words(first) + words(second)


@given(st.text(), st.text(st.characters(max_codepoint=127)))
def test_words_are_the_same_in_much_ascii(text: str, ascii_text: str) -> None:
    assert words(f"{text} {'x ' * 100}{ascii_text}") == words(text) + [b"x"] * 100 + words(ascii_text)


@given(texts, st.lists(texts, max_size=8))
def test_a_pool(query: str, pool: list[str]) -> None:
    np.testing.assert_allclose(PoolWords.of(pool).bm25(query), literal_bm25(query, pool), rtol=1e-12)


@given(
    st.lists(st.sampled_from(["an", "cat", "cats", "Catalogue", "catch", "Ümläute", "umlagert", "жизнь", "жизненный",
                              "漢字", "x2"]), max_size=8).map(" ".join),
    st.lists(texts | st.text("catlogue ü", max_size=12), max_size=6),
)  # fmt: skip
def test_terms_are_words_by_their_first_four_letters(query: str, pool: list[str]) -> None:
    asked = list(dict.fromkeys(word.decode()[:4] for word in words(query)))
    having = [{word.decode()[:4] for word in words(text)} for text in pool]
    expected = [[term in stems for stems in having] for term in asked]
    found = PoolWords.of(pool).terms(query)
    assert found.dtype == np.bool_ and found.shape == (len(asked), len(pool))
    np.testing.assert_array_equal(found, np.array(expected).reshape(found.shape))


def test_terms_of_many_are_the_first() -> None:
    query = " ".join(f"{number}x" for number in range(MOST_TERMS + 5))
    assert query_terms(query) == [f"{number}x ".encode() for number in range(MOST_TERMS)]
    assert query_terms("Cats, catalogue and cat") == [b"cats", b"cata", b"and ", b"cat "]


def test_a_pool_without_words() -> None:
    assert PoolWords.of([]).bm25("word").shape == (0,)
    np.testing.assert_array_equal(PoolWords.of(["", "-"]).bm25("word"), [0, 0])
    np.testing.assert_array_equal(PoolWords.of(["word"]).bm25(""), [0])
    assert PoolWords.of([]).terms("word").shape == (1, 0)
    assert PoolWords.of(["", "-"]).terms("word").tolist() == [[False, False]]
    assert PoolWords.of(["word"]).terms("").shape == (0, 1)


@given(st.lists(st.text() | st.text("catlogüж漢字\U00010428é ", max_size=20), max_size=5))
def test_words_are_numbered_by_their_stems(pool: list[str]) -> None:
    every = [word for text in pool for word in words(text)]
    stems = [word.decode()[:4].encode() if len(word.decode()) >= 4 else word + b" " for word in every]
    found = PoolWords.of(pool)
    numbers = found.index_terms(WORDS_VERSION)
    np.testing.assert_array_equal(numbers >> np.uint64(32), stem_numbers(stems))
    np.testing.assert_array_equal(numbers & np.uint64(2**32 - 1), found.hashes)
    np.testing.assert_array_equal(found.index_terms(1), found.hashes.astype(np.uint64) << np.uint64(32))


@pytest.mark.parametrize(
    "letters", ["abcdefghijklmnopqrstuvwxyz", "абвгдежзийклмнопрстуфхц", "一丁七万丈三上下不与丐丑专且丕"]
)
def test_few_stems_share_a_number(letters: str) -> None:
    stems = ["".join(four) for four in itertools.product(letters[:15], repeat=4)]
    shorter = ["".join(two) + " " for two in itertools.product(letters, repeat=2)]
    numbers = stem_numbers([stem.encode() for stem in stems + shorter])
    assert len(np.unique(numbers)) >= len(numbers) - 4
    assert numbers.max() < 2**32


def segment_of(documents: list[str], first: int) -> WordSegment:
    words = PoolWords.of(documents)
    return build(np.arange(first, first + len(documents)), words.lengths, words.index_terms())


def segment_of_numbers(first: int, documents: list[list[int]]) -> WordSegment:
    words = np.array([number for document in documents for number in document], dtype=np.uint64)
    return build(np.arange(first, first + len(documents)), np.array([len(each) for each in documents]), words)


def same(one: WordSegment, other: WordSegment) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in WordSegment.__slots__)


@given(st.lists(st.lists(texts, min_size=1, max_size=5), min_size=1, max_size=4), st.sets(st.integers(1, 20)))
def test_segments_merge_as_if_built_of_the_living(batches: list[list[str]], dead: set[int]) -> None:
    parts, numbered = [], [text for batch in batches for text in batch]
    start = 1
    for batch in batches:
        parts.append(segment_of(batch, start))
        start += len(batch)
    living = [number for number in range(1, start) if number not in dead]
    words = PoolWords.of(numbered[number - 1] for number in living)
    expected = build(np.array(living, dtype=np.int64), words.lengths, words.index_terms())
    assert same(merge(parts, np.array(sorted(dead), dtype=np.int64)), expected)


def test_a_full_segment() -> None:
    full = segment_of_numbers(0, [[7]] * SEGMENT_DOCUMENTS)
    ((_, piece),) = chunks(full)
    np.testing.assert_array_equal(find(piece, 7).rows, np.arange(SEGMENT_DOCUMENTS))
    other = segment_of_numbers(SEGMENT_DOCUMENTS, [[7]] * 2)
    assert same(merge([full, other], other.sequences), full)
    shifted = merge([full, other], np.array([0, 5]))
    np.testing.assert_array_equal(shifted.rows, np.arange(SEGMENT_DOCUMENTS))
    assert shifted.sequences[-1] == SEGMENT_DOCUMENTS + 1


@pytest.mark.parametrize("version", [1, WORDS_VERSION])
def test_segments_come_back_from_their_chunks(version: int) -> None:
    rng = np.random.default_rng(0)
    vocabulary = rng.integers(0, 2**32, 4_000, dtype=np.uint64) << np.uint64(32)
    vocabulary[:2] = 0, (2**32 - 1) << 32
    if version > 1:
        vocabulary[2:] = rng.choice(vocabulary[:1_000], 3_998)
        vocabulary |= rng.integers(0, 2**32, 4_000, dtype=np.uint64)
        vocabulary[1] = 2**64 - 1
    documents = [vocabulary[np.minimum(rng.zipf(1.3, 60) - 1, 3_999)] for _ in range(1_000)]
    documents.append(np.full(70_000, 7 << 32, dtype=np.uint64))
    documents.append(np.empty(0, dtype=np.uint64))
    segment = build(np.arange(len(documents)), np.array([len(words) for words in documents]), np.concatenate(documents))
    pieces = list(chunks(segment))
    assert len(pieces) > 3
    assert {int.from_bytes(piece[4:8], "little") for _, piece in pieces} <= ({1, 2} if version == 1 else {65537, 65538})
    assert same(assemble(segment.sequences, segment.lengths, [piece for _, piece in pieces]), segment)
    assert [first for first, _ in pieces] == sorted({first for first, _ in pieces})
    for term in [*vocabulary[:200].tolist(), 7 << 32]:
        piece = [piece for first, piece in pieces if first <= term >> 32][-1]
        with_stem = [row for row, words in enumerate(documents) if (words >> np.uint64(32) == term >> 32).any()]
        assert sorted(set(find_stem(piece, term >> 32).tolist())) == with_stem
        expected = [(row, min(int((words == term).sum()), 65_535)) for row, words in enumerate(documents)]
        found = find(piece, term)
        assert list(zip(found.rows, found.counts, strict=True)) == [pair for pair in expected if pair[1]]
    assert len(find(pieces[0][1], 12_345).rows) == len(find_stem(pieces[0][1], 12_345)) == 0


@given(st.lists(st.tuples(st.integers(1, 3_000), st.integers(0, 3)), min_size=1, max_size=200))
def test_segments_stay_few_and_mostly_alive(writes: list[tuple[int, int]]) -> None:
    sizes: list[tuple[int, int]] = []
    for documents, share in writes:
        sizes = [(living, min(dead + living * share // 4, living)) for living, dead in sizes] + [(documents, 0)]
        while (part := to_merge(sizes)) is not None:
            merged = sum(living - dead for living, dead in sizes[part])
            assert 0 <= merged <= SEGMENT_DOCUMENTS
            assert part.stop - part.start > 1 or sizes[part.start][1] * 2 > sizes[part.start][0]
            sizes[part] = [(merged, 0)] if merged else []
        assert all(2 * dead <= living for living, dead in sizes)
    small = sum(living < SEGMENT_DOCUMENTS // 2 for living, _ in sizes)
    assert small <= 6 * 8


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DocumentStore]:
    store = DocumentStore.create(tmp_path / "store", encoder=None, dimension=4)
    yield store
    store.close()


def write(store: DocumentStore, documents: dict[str, str]) -> None:
    store.upsert(
        [Document(id, text) for id, text in documents.items()], vectors(len(documents)), [b""] * len(documents)
    )


def vectors(number: int) -> NDArray[np.float32]:
    return unit(number, 4)


def agree(store: DocumentStore, expected: dict[str, str], query: str) -> None:
    scores = literal_bm25(query, list(expected.values()))
    np.testing.assert_allclose(store.bm25(query, store.sequences([*expected, "unknown"])), [*scores, 0], rtol=1e-12)
    changes = store.changes(0)
    by_sequence = store.bm25(query, changes.sequences)
    assert dict(zip(changes.ids, by_sequence, strict=True)) == pytest.approx(
        dict(zip(expected, scores, strict=True)), rel=1e-12
    )
    terms = PoolWords.of(expected[id] for id in changes.ids).terms(query)
    np.testing.assert_array_equal(store.terms(query, changes.sequences), terms)
    every = np.random.default_rng(0).permutation(store.last_sequence() + 2)  # the dead and the unborn, too
    padded = np.zeros((len(terms), len(every)), np.bool_)
    padded[:, changes.sequences] = terms
    np.testing.assert_array_equal(store.terms(query, every), padded[:, every])
    dead = ~np.isin(every, changes.sequences)
    assert not store.bm25(query, every)[dead].any()
    written = {id: number for number, id in enumerate(changes.ids)}
    found = store.best_by_words(query, 1_000)
    having = [id for id, score in zip(expected, scores, strict=True) if score > 0]
    exact = store.bm25(query, store.sequences(having))
    order = sorted(range(len(having)), key=lambda place: (-exact[place], written[having[place]]))
    assert found.ids == [having[place] for place in order]
    np.testing.assert_array_equal(found.scores, exact[order])
    for depth in (1, 2, 5):
        cut = store.best_by_words(query, depth)
        assert cut.ids == found.ids[:depth]
        np.testing.assert_array_equal(cut.scores, found.scores[:depth])


ids = st.sampled_from([f"d{number}" for number in range(12)])
steps = st.one_of(st.dictionaries(ids, texts, max_size=4), st.sets(ids, max_size=3))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(steps, texts), min_size=1, max_size=30), st.booleans())
def test_a_store_scores_as_if_built_of_what_it_holds(
    history: list[tuple[dict[str, str] | set[str], str]], late: bool
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = DocumentStore.create(Path(directory) / "s", encoder=None, dimension=4, lexical=not late)
        reader = DocumentStore(store.path)
        expected: dict[str, str] = {}
        for number, (step, query) in enumerate(history):
            if isinstance(step, dict):
                write(store, step)
                expected |= step
            else:
                store.delete(sorted(step))
                expected = {id: text for id, text in expected.items() if id not in step}
            if late and number == len(history) // 2:
                reader.index_words()
            if not late or number >= len(history) // 2:
                agree(reader if number % 2 else store, expected, query)
        store.close()
        reader.close()


def test_the_best_that_meet_a_filter(store: DocumentStore) -> None:
    rng = np.random.default_rng(1)
    documents = [
        Document(str(number), "tram " * int(rng.integers(0, 4)) + "x", metadata={"n": number % 7})
        for number in range(200)
    ]
    store.upsert(documents, vectors(200), [b""] * 200)
    store.delete([str(number) for number in range(50, 60)])
    everything = store.best_by_words("tram", 1_000)
    for filter, residues in (({"n": {"lt": 3}}, {0, 1, 2}), ({}, set(range(7))), ({"n": 99}, set())):
        expected = [
            (id, score) for id, score in zip(everything.ids, everything.scores, strict=True) if int(id) % 7 in residues
        ]
        for depth in (1, 10, 1_000):
            found = store.best_by_words("tram", depth, Filter(filter))
            assert list(zip(found.ids, found.scores, strict=True)) == expected[:depth]


def test_a_view_of_the_past_gets_its_own_answers(store: DocumentStore) -> None:
    words_reader, matching_reader, everything = LexicalReader(), MatchingReader(), Filter({})
    query = "tram x"

    def answers(connection: sqlite3.Connection) -> tuple[list[int], list[float], *tuple[list[Any], ...]]:
        sequences, scores = words_reader.best(connection, WORDS_VERSION, query, 99)
        by_number = words_reader.scores(connection, WORDS_VERSION, query, np.arange(10))
        terms = words_reader.terms(connection, query, np.arange(10))
        matching = matching_reader.sequences(connection, everything)
        return sequences.tolist(), scores.tolist(), by_number.tolist(), terms.tolist(), matching.tolist()

    write(store, {"a": "tram", "b": "tram x", "c": "x y"})
    with store.transaction() as past:
        before = answers(past)
        for change in ({"a": "x x"}, {"d": "tram"}, {"b": "y"}):
            write(store, change)
            with store.transaction() as present:
                now = answers(present)
                alone = LexicalReader().best(present, WORDS_VERSION, query, 99)
            assert now[:2] == (alone[0].tolist(), alone[1].tolist())
            assert now != before
            assert answers(past) == before
    with store.transaction() as present:
        assert answers(present) == now


def test_many_small_writes(store: DocumentStore) -> None:
    rng, expected = np.random.default_rng(0), dict[str, str]()
    vocabulary = ["alpha", "alphabet", "beta", "gamma", "delta", "the", "of"]
    for step in range(400):
        batch = {
            f"d{number}": " ".join(rng.choice(vocabulary, size=int(rng.integers(0, 9))))
            for number in rng.choice(300, size=3, replace=False)
        }
        write(store, batch)
        expected |= batch
        if step % 5 == 0:
            gone = [f"d{number}" for number in rng.choice(300, size=4)]
            store.delete(gone)
            expected = {id: text for id, text in expected.items() if id not in gone}
    agree(store, expected, "the alpha of unheard")
    with store.transaction() as connection:
        segments, documents = connection.execute("SELECT count(*), sum(documents) FROM segments").fetchone()
        assert segments < 30
        assert documents <= 2 * len(expected)
        (dead,) = connection.execute("SELECT count(*) FROM dead").fetchone()
        assert documents - dead == len(expected)


def test_titles_count_and_the_later_of_one_call_wins(store: DocumentStore) -> None:
    documents = [Document("a", "old"), Document("b", "text", title="Title"), Document("a", "new title")]
    store.upsert(documents, vectors(3), [b""] * 3)
    assert store.best_by_words("title", 9).ids == ["b", "a"]
    assert store.best_by_words("old", 9).ids == []


def test_a_store_without_words(tmp_path: Path) -> None:
    store = DocumentStore.create(tmp_path / "s", encoder=None, dimension=4, lexical=False)
    write(store, {"a": "one", "b": "two"})
    assert not store.info.lexical
    for ask in (
        lambda: store.bm25("one", store.sequences(["a"])),
        lambda: store.best_by_words("one", 1),
        lambda: store.terms("one", np.array([1])),
    ):
        with pytest.raises(InvalidInput, match="lexical"):
            ask()
    other = DocumentStore(store.path)
    other.index_words()
    other.index_words()
    assert store.best_by_words("one", 5).ids == ["a"]
    write(store, {"c": "one"})
    assert other.best_by_words("one", 5).ids == ["a", "c"]
    assert DocumentStore(store.path).info.lexical


def test_words_of_other_rules_are_refused(store: DocumentStore) -> None:
    with store.transaction("IMMEDIATE") as connection:
        connection.execute("UPDATE meta SET value = 99 WHERE key = 'words'")
    for ask in (
        lambda: write(store, {"a": "b"}),
        lambda: store.bm25("a", store.sequences(["a"])),
        lambda: DocumentStore(store.path),
    ):
        with pytest.raises(CorruptIndex, match="99"):
            ask()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE postings SET chunk = x'01'",
        "UPDATE postings SET chunk = substr(chunk, 1, 40)",
        "DELETE FROM segment_documents",
        "UPDATE segment_documents SET lengths = x'0102'",
        "DROP TABLE postings",
    ],
)
def test_damaged_words_are_named(store: DocumentStore, damage: str) -> None:
    write(store, {f"d{number}": f"word number {number}" for number in range(20)})
    with store.transaction("IMMEDIATE") as connection:
        connection.execute(damage)
    with pytest.raises(CorruptIndex, match="damaged"):
        DocumentStore(store.path).best_by_words("word", 5)
    with pytest.raises(CorruptIndex, match="damaged"):
        DocumentStore(store.path).terms("word", np.arange(20))


def test_a_depth_of_nothing(store: DocumentStore) -> None:
    with pytest.raises(InvalidInput):
        store.best_by_words("a", 0)
    assert store.best_by_words("a", 1).ids == []
    assert store.bm25("a", store.sequences([])).shape == (0,)
