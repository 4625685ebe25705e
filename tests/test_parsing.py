"""JSON in pieces: the same values as in one piece, and what is refused before it is built."""

import json
import random
from typing import Any

import pytest
from pydantic_core import from_json

from boundarymorph import parsing
from boundarymorph.errors import InvalidInput, LimitExceeded

MANY = 10**9
SCALARS = (1, 2.5, -3e10, "a", 'x"\\,[]{}é', None, True, "", "k" * 60, "\\" * 9)


def drawn(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.random()
    if depth > 6 or kind < 0.4:
        return draw.choice(SCALARS)
    if kind < 0.7:
        return [drawn(draw, depth + 1) for _ in range(draw.randrange(8))]
    return {
        draw.choice(("a", "b", 'q"\\[{,]', "", str(draw.random()))): drawn(draw, depth + 1)
        for _ in range(draw.randrange(8))
    }


def damaged(text: bytes, draw: random.Random) -> bytes:
    """One byte of it less, more, or another."""
    place = draw.randrange(len(text))
    return text[:place] + draw.choice((b"", bytes([draw.choice(b'",[]{}:1\\')]))) + text[place + draw.randrange(2) :]


class TestInPieces:
    @pytest.fixture(autouse=True)
    def small_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(parsing, "PIECE_BYTES", 40)

    @pytest.mark.parametrize("seed", range(200))
    def test_the_value_is_that_of_the_whole(self, seed: int) -> None:
        draw = random.Random(seed)
        value = drawn(draw)
        text = json.dumps(value, indent=draw.choice([None, 1]), ensure_ascii=draw.random() < 0.5).encode()
        assert parsing.parse(text, MANY) == value
        for _ in range(5):
            broken = damaged(text, draw)
            try:
                wanted = from_json(broken)
            except ValueError:
                with pytest.raises(InvalidInput, match="JSON"):
                    parsing.parse(broken, MANY)
            else:
                assert parsing.parse(broken, MANY) == wanted

    @pytest.mark.parametrize("text", ["[{}, ]", "[, {}]", '{{"a": {}, }}', '{{, "b": {}}}', "[[{}],,1]", "[{}", "{}]"])
    def test_commas_where_it_is_cut(self, text: str) -> None:
        with pytest.raises(InvalidInput, match="JSON"):
            parsing.parse(text.format('{"a": "' + "x" * 90 + '", "b": 1}').encode(), MANY)

    def test_a_name_that_occurs_twice_does_no_harm(self) -> None:
        long = ", ".join(f'"{"x" * 30}"' for _ in range(9))
        for text in (f'{{"a": [{long}], "a": 1}}', f'{{"a": 1, "a": [{long}]}}', f'{{"a": {{"b": 1}}, "a": [{long}]}}'):
            assert set(parsing.parse(text.encode(), MANY)) == {"a"}


class TestBounds:
    @pytest.mark.parametrize(("thing", "size"), [(b"{}", 250), (b'{"a":1}', 250), (b"[]", 100), (b"[1]", 100)])
    def test_objects_and_arrays_at_the_bound_and_beyond(
        self, monkeypatch: pytest.MonkeyPatch, thing: bytes, size: int
    ) -> None:
        monkeypatch.setattr(parsing, "PIECE_BYTES", 0)
        monkeypatch.setattr(parsing, "TIMES", 0)
        monkeypatch.setattr(parsing, "LEAST_BYTES", parsing.ARRAY_BYTES + 100 * size)
        text = b'"' + rb"[]{}\"" * 9_000 + b'"'  # brackets in texts do not count
        assert len(parsing.parse(b"[" + b",".join([text, *[thing] * 100]) + b"]", MANY)) == 101
        with pytest.raises(LimitExceeded, match="objects or arrays"):
            parsing.parse(b"[" + b",".join([text, *[thing] * 101]) + b"]", MANY)
        with pytest.raises(LimitExceeded, match="objects or arrays"):
            parsing.check(b"[" + b",".join([text, *[thing] * 101]) + b"]")

    def test_numbers_at_the_bound_and_beyond(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(parsing, "PIECE_BYTES", 0)
        for text in ("[{}]", '{{"a": [{}]}}', '[{}, "a"]', '["a", {}]', "[[], {}]"):
            parsing.parse(text.format(", ".join(["1"] * 90)).encode(), 95)
            with pytest.raises(LimitExceeded, match="95 numbers"):
                parsing.parse(text.format(", ".join(["1"] * 99)).encode(), 95)

    @pytest.mark.parametrize("opening", ["[", '{"a":', '[1,{"b":2,"a":'])
    def test_nesting_at_the_bound_and_beyond(self, opening: str) -> None:
        levels = opening.count("[") + opening.count("{")
        closing = "".join("]" if mark == "[" else "}" for mark in reversed(opening) if mark in "[{")
        for piece_bytes in (0, parsing.PIECE_BYTES):
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(parsing, "PIECE_BYTES", piece_bytes)
                most = parsing.DEEPEST // levels
                parsing.parse((opening * most + "1" + closing * most).encode(), MANY)
                with pytest.raises(InvalidInput, match=r"nested|recursion"):
                    parsing.parse((opening * (most + 1) + "1" + closing * (most + 1)).encode(), MANY)
