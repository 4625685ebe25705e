"""Turning texts into token ids, and truncating pairs of them to fit."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence

from tokenizers import Encoding, Tokenizer

from boundarymorph.inference.concurrency import check_awaited

# The cores are busy with models; the tokenizers' own threads would only get in their way.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

TEXTS = 64  # tokenized at a time

# To get the first tokens of a long text we read only its beginning: this many characters per token, at least
# LEAST_CHARACTERS, and LONGER times as many if they do not suffice.
CHARACTERS_A_TOKEN, LEAST_CHARACTERS, LONGER = 8, 1_024, 4


def plain(tokenizer: Tokenizer, also: set[str] | None = None) -> Tokenizer:
    """Copy a tokenizer so that it neither pads nor truncates, and reads special tokens and `also` as plain text."""
    state = json.loads(tokenizer.to_str())
    for token in state["added_tokens"]:
        token["special"] |= token["content"] in (also or ())
    plain = Tokenizer.from_str(json.dumps(state))
    plain.no_padding()
    plain.no_truncation()
    plain.encode_special_tokens = True
    return plain


def encode_pairs(
    tokenizer: Tokenizer, max_length: int, query: str, texts: Sequence[str]
) -> list[tuple[Encoding, bool]]:
    """Tokenize n pairs with their special tokens; returns for each whether it was truncated to max_length.

    The query is kept whole as long as that leaves the document half of the room, or all that it needs.
    """
    room = max(0, max_length - tokenizer.num_special_tokens_to_add(True))
    whole = tokenizer.encode(query, add_special_tokens=False)
    pairs = []
    for document in encode_heads(tokenizer, texts, room):
        most = max(room // 2, room - len(document))
        first = whole
        if query_cut := len(whole) > most:
            first = tokenizer.encode(query, add_special_tokens=False)
            first.truncate(most)
        document_cut = cut(document, room - len(first))
        pairs.append((tokenizer.post_process(first, document), query_cut or document_cut))
    return pairs


def encode_texts(tokenizer: Tokenizer, max_length: int, texts: Sequence[str]) -> list[tuple[Encoding, bool]]:
    """Tokenize n texts with their special tokens; returns for each whether it was truncated to max_length."""
    room = max(0, max_length - tokenizer.num_special_tokens_to_add(False))
    read = []
    for text in encode_heads(tokenizer, texts, room):
        truncated = cut(text, room)
        read.append((tokenizer.post_process(text), truncated))
    return read


def encode_heads(tokenizer: Tokenizer, texts: Sequence[str], tokens: int) -> list[Encoding]:
    """Tokenize n texts, without special tokens, so that the first `tokens` tokens are those of the whole text.

    An encoding of at most `tokens` tokens is complete; of a longer one only the first `tokens` are valid. Only the
    beginning of a long text is read, if the tokenizer never merges across white space. Raises Abandoned once nobody
    waits for the result.
    """
    bound = max(CHARACTERS_A_TOKEN * tokens, LEAST_CHARACTERS)
    short = [text if len(text) <= bound else "" for text in texts]
    encodings: list[Encoding] = []
    for start in range(0, len(short), TEXTS):
        check_awaited()
        encodings += tokenizer.encode_batch_fast(short[start : start + TEXTS], add_special_tokens=False)
    long = [place for place, text in enumerate(texts) if len(text) > bound]
    spaces = _spaces(tokenizer) if long else ""
    for place in long:
        check_awaited()
        encodings[place] = _encode_head(tokenizer, texts[place], tokens, bound, spaces)
    return encodings


def _encode_head(tokenizer: Tokenizer, text: str, tokens: int, bound: int, spaces: str) -> Encoding:
    while spaces and len(head := _head(text, bound, spaces)) < len(text):
        encoding = tokenizer.encode(head, add_special_tokens=False)
        if _certain(encoding, head, spaces) > tokens:
            return encoding
        bound = LONGER * len(head)
    return tokenizer.encode(text, add_special_tokens=False)


def _spaces(tokenizer: Tokenizer) -> str:
    """Return the white-space characters at which the tokenizer always splits."""
    if tokenizer.pre_tokenizer is None or any(
        len(token.content.split()) > 1 for token in tokenizer.get_added_tokens_decoder().values()
    ):
        return ""
    found = ""
    for space in " \n":
        text = f"a{space}b"
        if tokenizer.normalizer is not None:
            text = tokenizer.normalizer.normalize_str(text)
        pieces = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        if not any("a" in piece and "b" in piece for piece in pieces):
            found += space
    return found


def _head(text: str, bound: int, spaces: str) -> str:
    """Return a text up to the first of these spaces that ends a word after `bound` characters."""
    ends = re.compile(rf"\S(?=[{spaces}])")
    found = ends.search(text, bound)
    return text if found is None else text[: found.end()]


def _certain(encoding: Encoding, head: str, spaces: str) -> int:
    """Return how many of a head's tokens are certainly those of its text: all but those of its last word."""
    last = max(head.rfind(space) for space in spaces)
    end = len(head[:last].rstrip()) if last >= 0 else 0
    return sum(stop <= end for _, stop in encoding.offsets)


def cut(encoding: Encoding, room: int) -> bool:
    """Truncate to `room` tokens in place; return whether anything was cut off."""
    if len(encoding) <= room:
        return False
    encoding.truncate(room)
    return True
