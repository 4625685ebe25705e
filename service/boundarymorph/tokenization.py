"""How texts become token ids, and how pairs of them are cut to fit."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from tokenizers import Encoding, Tokenizer

# The cores are busy with models; threads of the tokenizers' own would only get in their way.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def plain(tokenizer: Tokenizer, also: set[str] | None = None) -> Tokenizer:
    """A tokenizer that neither pads nor cuts and reads special tokens, and those in `also`, as plain text."""
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
    """n pairs with their special tokens, and of each whether it was cut to max_length.

    A pair keeps its query whole while that leaves the document half of the room, or all that it needs.
    """
    room = max_length - tokenizer.num_special_tokens_to_add(True)
    whole = tokenizer.encode(query, add_special_tokens=False)
    pairs = []
    for document in tokenizer.encode_batch(list(texts), add_special_tokens=False):
        most = max(room // 2, room - len(document))
        first = whole
        if query_cut := len(whole) > most:
            first = tokenizer.encode(query, add_special_tokens=False)
            first.truncate(most)
        document_cut = cut(document, room - len(first))
        pairs.append((tokenizer.post_process(first, document), query_cut or document_cut))
    return pairs


def encode_texts(tokenizer: Tokenizer, max_length: int, texts: Sequence[str]) -> list[tuple[Encoding, bool]]:
    """n texts with their special tokens, and of each whether it was cut to max_length."""
    room = max_length - tokenizer.num_special_tokens_to_add(False)
    read = []
    for text in tokenizer.encode_batch(list(texts), add_special_tokens=False):
        truncated = cut(text, room)
        read.append((tokenizer.post_process(text), truncated))
    return read


def cut(encoding: Encoding, room: int) -> bool:
    """Shorten to `room` tokens in place; whether anything was lost."""
    if len(encoding) <= room:
        return False
    encoding.truncate(room)
    return True
