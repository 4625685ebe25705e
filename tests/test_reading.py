"""Test the reading of files: byte order marks, line ends, compression, arrays, encodings."""

import asyncio
import gzip
import io
import json
import re
import tracemalloc
import unicodedata
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundarymorph import reading
from boundarymorph.errors import InvalidInput, LimitExceeded
from boundarymorph.retrieval.uploads import Line, lines

pytestmark = pytest.mark.strangers
OBJECTS = [{"id": "q1", "query": "sea"}, {"query": "hills"}]
MARK = "\ufeff".encode()


def values(content: bytes) -> list[object]:
    return [record.value for record in reading.records(io.BytesIO(content), "file")]


@pytest.mark.parametrize(
    "content",
    [
        b'{"id":"q1","query":"sea"}\n{"query":"hills"}\n',
        MARK + b'{"id":"q1","query":"sea"}\r\n\r\n  {"query":"hills"}',
        b'{"id":"q1","query":"sea"}\r{"query":"hills"}\r',
        b'{"id":"q1","query":"sea"}\n' + MARK + b'{"query":"hills"}\n',
        b'[{"id":"q1","query":"sea"},{"query":"hills"}]',
        MARK + b'[\n  {\n    "id": "q1",\n    "query": "sea"\n  },\n  {"query": "hills"}\n]\n',
    ],
)
def test_reader_reads_json_objects_in_every_layout(content: bytes) -> None:
    assert values(content) == OBJECTS


def test_reader_reads_lines_of_plain_text() -> None:
    assert values(MARK + "Größe\r\n[sic] what?\n".encode()) == ["Größe", "[sic] what?"]
    assert values(b"[sic] what?\nsecond") == ["[sic] what?", "second"]
    assert values(b'["a", "b"]') == ["a", "b"]
    assert values(b"") == values(MARK) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"query":"sea"}'.encode("utf-16"), "UTF-16"),
        ('{"query":"sea"}'.encode("utf-16-le"), "line 1.*NUL.*UTF-16"),
        ("first\nGröße".encode("latin-1"), "line 2.*UTF-8.*byte 3"),
        (b'{"query":"sea"}\n{"query":', "line 2 is not JSON"),
        (b'[{"query":"sea"},\n', "array"),
        (b"[1, 2]", "element 1"),
        (b"id,query\n1,sea\n", "CSV"),
    ],
)
def test_reader_refuses_other_encodings_and_malformed_lines(content: bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        values(content)


def test_reader_detects_gzip_by_content(tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    path.write_bytes(gzip.compress(b"sea\nhills\n"))
    with reading.open_path(path) as stream:
        assert [text for _, text in reading.lines(stream, "file")] == ["sea", "hills"]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InvalidInput, match="cannot be read"), reading.open_path(path) as stream:
        list(reading.lines(stream, "file"))


async def _cut(content: bytes, size: int, limit: int) -> list[Line]:
    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(content), size):
            yield content[start : start + size]

    return [line async for found in lines(chunks(), limit) for line in found]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("mark", [b"", MARK])
def test_upload_lines_are_independent_of_chunk_size(size: int, mark: bytes) -> None:
    content = mark + b'{"a":1}\r\n\r\n{"b":2}\n' + mark + b'{"c":3}'
    found = asyncio.run(_cut(content, size, 2**20))
    assert [(line.number, line.text.strip()) for line in found] == [(1, b'{"a":1}'), (3, b'{"b":2}'), (4, b'{"c":3}')]
    assert found[-1].end == len(content)
    assert asyncio.run(_cut(mark, size, 2**20)) == []


@pytest.mark.parametrize("mark", ["\u0301", "\u0316", "\u0f73", "\U0001d165", "\u3099"])
def test_composed_keeps_thirty_combining_marks_of_a_run(mark: str) -> None:
    many = reading.compose(f"sea x{mark * 2_000} y{mark * 3}")
    assert many == unicodedata.normalize("NFC", f"sea x{mark * 30} y{mark * 3}")


ESCAPES = [rb"\ud83d", rb"\ude00", rb"\n", rb"\\", rb"\u0041", rb"\udfFF", b"ud83d", b"a", b'"', b"\xf0"]


@given(st.lists(st.sampled_from(ESCAPES), max_size=9).map(b"".join), st.integers(1, 9))
def test_lone_surrogate_escapes_are_replaced(text: bytes, piece: int) -> None:
    literal = re.compile(
        rb"\\[^u]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    )
    expected = literal.sub(lambda found: found[0] if found["half"] is None else rb"\ufffd", text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_PIECE", piece)
        assert reading.with_whole_characters(text) == expected


@pytest.mark.parametrize("escape", [rb"\n", rb"\ud83d", rb"\ud83d\ude00", rb"\\", rb"\\\ud83d", b"\\", b"a"])
def test_parsing_a_body_of_escapes_takes_little_memory(escape: bytes) -> None:
    body = b'{"query":"' + escape * (2**20 // len(escape)) + b'"'
    tracemalloc.start()
    with pytest.raises(InvalidInput, match="not JSON"):
        reading.parse(body)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 12 * len(body)


VALUES = st.recursive(
    st.none()
    | st.integers(-9, 99)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('a[,]1"\\é', max_size=40),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text("ab[", max_size=3), inner, max_size=4)
        | st.lists(st.integers(0, 9) | st.floats(0, 1), min_size=12, max_size=20)
    ),
    max_leaves=20,
)


@given(VALUES)
def test_body_parsed_in_pieces_has_the_same_value(value: object) -> None:
    for body in (json.dumps(value).encode(), json.dumps(value, ensure_ascii=False, indent=1).encode()):
        assert reading._parsed_in_pieces(body) == json.loads(body)


@pytest.mark.parametrize("inside", ["1,", "1.5,", "[1],", "{},", '"a",', "[1,2,3,4,5,6,7,8,9],"])
def test_body_of_too_many_values_is_refused_before_parsing(monkeypatch: pytest.MonkeyPatch, inside: str) -> None:
    monkeypatch.setattr(reading, "MOST_VALUES", 1_000)
    body = f'{{"query": "sea", "x": [[{inside * 2_000}1]]}}'.encode()
    with pytest.raises(LimitExceeded, match="1,000 are allowed"):
        reading.parse(body)
