"""Test the tokenization of a text's beginning, which reads only a prefix."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from boundarymorph.inference import models as our_models
from boundarymorph.inference.concurrency import CallerGone, awaited_context
from boundarymorph.inference.models import (
    embedded_cross_encoder,
    embedded_encoder,
    encode_heads,
    encode_pairs,
    encode_texts,
    plain_tokenizer,
)
from tests.scoring.transformer import tiny

PROSE = "The timetable of the tram: one leaves each quarter of an hour, from 5 in the morning until midnight.\n"


def embedded(path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(path))


def llama(*, split: bool) -> Tokenizer:
    """Return a tokenizer like those of Llama 2 and Mistral, or with `split` that of T5.

    The former make tokens across white space.
    """
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=split)
    tokenizer.train_from_iterator([PROSE] * 3, trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"]))
    return tokenizer


def gemma() -> Tokenizer:
    """Return a tokenizer without a pre-tokenizer: white space is like any other character."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.train_from_iterator([PROSE] * 3, trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"]))
    return tokenizer


def gpt2() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([PROSE] * 3, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    return tokenizer


def modernbert() -> Tokenizer:
    """Return a tokenizer with tokens for runs of spaces, which no pre-tokenizer sees."""
    tokenizer = gpt2()
    tokenizer.add_tokens([AddedToken(" " * count, normalized=True) for count in range(2, 9)])
    return tokenizer


def newlines() -> Tokenizer:
    """Return a tokenizer like those of Qwen and Llama 3.

    Punctuation and the line ends after it are one piece.
    """
    tokenizer = gpt2()
    split = Regex(r"\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(split, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    written = [PROSE, "!!!\n" * 30, "(a)\n\n" * 30]
    tokenizer.train_from_iterator(written * 3, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    return tokenizer


MADE: dict[str, Callable[[], Tokenizer]] = {
    "bge": lambda: embedded(embedded_encoder().tokenizer),
    "minilm": lambda: embedded(embedded_cross_encoder().tokenizer),
    "word pieces": lambda: tiny.word_pieces(types=True).backend_tokenizer,
    "sentence pieces": lambda: tiny._sentence_pieces().backend_tokenizer,
    "qwen": lambda: tiny.byte_pairs().backend_tokenizer,
    "gpt2": gpt2,
    "modernbert": modernbert,
    "newlines": newlines,
    "t5": lambda: llama(split=True),
    "llama": lambda: llama(split=False),
    "gemma": gemma,
}
EXAMPLES = 8


@cache
def tokenizer_named(name: str) -> Tokenizer:
    return plain_tokenizer(MADE[name]())


WORDS = ["tram", "trams", "the", "of", "don't", "1234567", "violin", "!!!", "(a)", "…", "城市铁路", "Ärzte", "🙂", "ﬁ"]
words = st.sampled_from([*WORDS, "e\u0301"]) | st.text(max_size=6)
gaps = st.sampled_from([" "] * 6 + ["  ", "   \n", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\x1c", ""])
texts = st.lists(st.tuples(words, gaps), max_size=60).map(lambda parts: "".join(word + gap for word, gap in parts))


@pytest.fixture
def short_limits() -> Iterator[None]:
    """Treat texts of a few words as long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(our_models, "CHARACTERS_A_TOKEN", 2)
        patch.setattr(our_models, "LEAST_CHARACTERS", 6)
        patch.setattr(our_models, "MOST_CHARACTERS_A_TOKEN", 7)
        yield


def literal_head(tokenizer: Tokenizer, text: str, tokens: int) -> tuple[list[int], bool]:
    """Return the first tokens of a prefix, and whether there is more, by definition."""
    for characters in (2, 7):
        prefix = text[: max(6, characters * tokens)]
        ids = tokenizer.encode(prefix, add_special_tokens=False).ids
        if len(ids) >= tokens:
            break
    return ids[:tokens], len(ids) > tokens or prefix != text


@pytest.mark.parametrize("name", MADE)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(written=st.lists(texts, min_size=1, max_size=3), tokens=st.integers(0, 20))
def test_encode_heads_equals_encoding_a_prefix(short_limits: None, name: str, written: list[str], tokens: int) -> None:
    tokenizer = tokenizer_named(name)
    for text, head in zip(written, encode_heads(tokenizer, written, tokens), strict=True):
        assert (head.ids.tolist(), head.truncated) == literal_head(tokenizer, text, tokens)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("unit", ["tram!!!\n", "tram (a)\n\n", "tram  \n", "tram "])
def test_encode_heads_of_prose_equals_encoding_the_whole(name: str, unit: str) -> None:
    tokenizer = tokenizer_named(name)
    whole = tokenizer.encode(unit * 3_000, add_special_tokens=False)
    for tokens in (0, 1, 20, 500):
        [head] = encode_heads(tokenizer, [unit * 3_000], tokens)
        assert head.ids.tolist() == whole.ids[:tokens]
        assert head.truncated


@settings(max_examples=EXAMPLES, deadline=None)
@given(written=st.lists(texts, min_size=1, max_size=3), query=texts, length=st.integers(8, 30))
@pytest.mark.parametrize("name", MADE)
def test_encoded_pairs_and_texts_match_the_tokenizer(name: str, written: list[str], query: str, length: int) -> None:
    tokenizer = tokenizer_named(name)
    for text, tokens in zip(written, encode_texts(tokenizer, length, written), strict=True):
        whole = tokenizer.encode(text)
        assert tokens.type_ids is not None
        if not tokens.truncated:
            assert (tokens.ids.tolist(), tokens.type_ids.tolist()) == (whole.ids, whole.type_ids)
    room = length - tokenizer.num_special_tokens_to_add(True)
    for text, tokens in zip(written, encode_pairs(tokenizer, length, query, written), strict=True):
        first, second = (tokenizer.encode(part, add_special_tokens=False) for part in (query, text))
        cut = len(first) + len(second) > room
        first.truncate(max(room // 2, room - len(second)))
        second.truncate(room - len(first))
        whole = tokenizer.post_process(first, second)
        assert tokens.type_ids is not None and tokens.truncated == cut
        assert (tokens.ids.tolist(), tokens.type_ids.tolist()) == (whole.ids, whole.type_ids)


def test_encode_heads_stops_when_abandoned() -> None:
    tokenizer = tokenizer_named("gpt2")
    with awaited_context() as context:
        assert len(context.run(encode_heads, tokenizer, ["a"] * 200, 5)) == 200
    with pytest.raises(CallerGone):
        context.run(encode_heads, tokenizer, ["a"] * 200, 5)
