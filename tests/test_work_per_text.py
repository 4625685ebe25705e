"""Test that the work for a text grows at most linearly with its length."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial

import pytest
from tokenizers import Tokenizer

from boundarymorph import reading
from boundarymorph.cli import files
from boundarymorph.errors import InvalidInput
from boundarymorph.inference.models import (
    Weights,
    embedded_cross_encoder,
    embedded_encoder,
    encode_pairs,
    encode_texts,
    plain_tokenizer,
)
from boundarymorph.retrieval import uploads, words
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.lexical_vectors import lexical_vectors
from boundarymorph.retrieval.passages import Cut, divide
from tests.texts import KINDS

pytestmark = pytest.mark.strangers

SMALL = 25_000  # characters of the first of three sizes, each of which is twice the one before
TOO_SMALL = 0.002  # seconds; less is noise
RUNS = 2
SLACK = 2  # the allowed multiple of linear CPU time
# One kind for each defect that once made a text slow; the slow tests have the others.
OFTEN = {
    "plain prose",
    "combining marks",
    "one long word",
    "blanks",
    "escapes of half surrogates",
    "brackets",
    "a heading with blanks",
}
TIMED = [pytest.param(kind, marks=[] if kind in OFTEN else [pytest.mark.slow]) for kind in KINDS]


def words_of_a_pool(text: str) -> object:
    return words.PoolWords.from_texts([text, "the sea"]).index_terms()


@cache
def tokenizer(weights: Callable[[], Weights]) -> Tokenizer:
    return plain_tokenizer(Tokenizer.from_file(str(weights().tokenizer)))


def vectors_of_a_pool(text: str) -> object:
    return lexical_vectors(words.PoolWords.from_texts([text, "the sea", "a tram"]), "sea")


def body(text: str) -> object:
    return reading.parse(json.dumps({"query": "sea", "pool": [text]}).encode())


def broken_body(text: str) -> None:
    with suppress(InvalidInput):
        reading.parse(b'{"query": "' + text.encode())


def line_of_an_upload(text: str) -> None:
    for line in (
        json.dumps({"id": "1", "text": text}),
        f'{{"id": "1", "text": "{text}',
        f'{{"id": "1", "text": "{text}"}}',
    ):
        uploads._parsed(uploads.Line(1, line.encode(), 0), 0, 2**30)


def passages_of_a_pool(text: str) -> object:
    return divide([Document("a", text)], "sea", Cut({0}, 400, 32, 1_000))


def passages(name: str, text: str) -> object:
    return list(files.PassageSplitter(200)._cut(Document(name, text)))


ENTRIES: dict[str, Callable[[str], object]] = {
    "words": words.words,
    "words of a query": lambda text: words.PoolWords.from_texts([text], query=True).hashes,
    "words of a pool": words_of_a_pool,
    "vectors of a pool": vectors_of_a_pool,
    "pairs for the cross-encoder": lambda text: encode_pairs(tokenizer(embedded_cross_encoder), 512, "sea", [text] * 3),
    "queries for the cross-encoder": lambda text: encode_pairs(tokenizer(embedded_cross_encoder), 512, text, ["a"] * 3),
    "texts for the encoder": lambda text: encode_texts(tokenizer(embedded_encoder), 512, [text] * 3),
    "a body": body,
    "a body that is broken": broken_body,
    "a line of an upload": line_of_an_upload,
    "the title of a file": files.titled,
    "passages of Markdown": partial(passages, "a.md"),
    "passages of a pool": passages_of_a_pool,
    "passages of a text": partial(passages, "a.txt"),
    "what can be read": lambda text: (reading.has_content(text), reading.compose(text)),
}


def seconds(call: Callable[[str], object], text: str) -> float:
    """Return the least CPU time that a call takes."""
    least = float("inf")
    for _ in range(RUNS):
        begun = time.thread_time()
        call(text)
        least = min(least, time.thread_time() - begun)
    return least


@pytest.mark.parametrize("kind", TIMED)
@pytest.mark.parametrize("entry", ENTRIES)
def test_work_per_text_is_linear_in_its_length(entry: str, kind: str) -> None:
    spent = [seconds(ENTRIES[entry], KINDS[kind](SMALL * times)) for times in (1, 2, 4)]
    for times, this in zip((2, 4), spent[1:], strict=True):
        assert this <= SLACK * times * max(spent[0], TOO_SMALL), f"{entry}, {kind}: {spent}"
