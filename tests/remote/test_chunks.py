"""Test how a list of texts is divided into requests."""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from boundarymorph.remote.wire import TextContext, chunks

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), min_size=1, max_size=50)


@given(texts=TEXTS, most=st.integers(1, 60), most_bytes=st.one_of(st.none(), st.integers(1, 300)))
def test_chunks_keep_all_texts_in_order_within_the_limits(texts: list[str], most: int, most_bytes: int | None) -> None:
    parts = chunks(TextContext("query"), texts, most, most_bytes)
    assert [text for part in parts for text in part] == texts
    assert all(1 <= len(part) <= most for part in parts)
    if most_bytes is None:
        assert len(parts) == -(-len(texts) // most)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    else:
        assert all(len(part) == 1 or len(orjson.dumps(["query", *part])) <= most_bytes for part in parts)
