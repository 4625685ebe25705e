import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from boundarymorph.caching.interfaces import CachedScore, digest
from boundarymorph.caching.values import (
    Corrupt,
    Place,
    decode_embedding,
    decode_score,
    encode_embedding,
    encode_score,
)

KEY = Place(b"boundarymorph:scores:1:{abc}")
SECRET = Place(KEY.key, b"a secret of sixteen")
OTHER = Place(KEY.key, b"another secret of sixteen")
PLACES = pytest.mark.parametrize("place", [KEY, SECRET], ids=["checked", "keyed"])

places = st.binary(max_size=60)
names = st.none() | st.text(st.characters(codec="utf-8"), max_size=60)
cached_scores = st.builds(CachedScore, st.floats(0, 1), st.booleans(), names)
vectors = arrays(np.uint32, st.integers(1, 40)).map(lambda bits: bits.view(np.float32))


@PLACES
@given(cached_scores, places)
def test_scores_come_back(place: Place, score: CachedScore, field: bytes) -> None:
    found = decode_score(encode_score(score, place, field), place, field)
    assert found == score
    assert np.float64(found.score).tobytes() == np.float64(score.score).tobytes()


@given(vectors, places)
def test_vectors_come_back_bit_by_bit(vector: NDArray[np.float32], key: bytes) -> None:
    found = decode_embedding(encode_embedding(vector, Place(key)), Place(key), len(vector))
    assert found.tobytes() == vector.tobytes()


@given(st.text(max_size=300), places)
def test_an_id_comes_back_or_nothing_in_its_stead(document: str, field: bytes) -> None:
    found = decode_score(encode_score(CachedScore(0.5, document=document), KEY, field), KEY, field).document
    fits = len(document.encode("utf-8", "surrogatepass")) <= 255 and not any(
        "\ud800" <= c <= "\udfff" for c in document
    )
    assert found == (document if fits else None)


@given(st.text(), st.text(), st.text(), st.text())
def test_digests_tell_texts_apart(one: str, two: str, three: str, four: str) -> None:
    assert (digest(one) == digest(two)) == (one == two)
    assert (digest(one, two) == digest(three, four)) == ((one, two) == (three, four))


@given(st.binary(max_size=60), places)
def test_noise_is_corrupt(noise: bytes, field: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_score(noise, KEY, field)
    with pytest.raises(Corrupt):
        decode_embedding(noise, Place(field), len(noise) // 4)


@PLACES
@given(cached_scores, places, st.data())
def test_any_damage_is_noticed(place: Place, score: CachedScore, field: bytes, data: st.DataObject) -> None:
    value = bytearray(encode_score(score, place, field))
    position = data.draw(st.integers(0, len(value) - 1))
    value[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Corrupt):
        decode_score(bytes(value), place, field)


@given(vectors, st.data())
def test_any_damage_to_a_vector_is_noticed(vector: NDArray[np.float32], data: st.DataObject) -> None:
    value = bytearray(encode_embedding(vector, KEY))
    position = data.draw(st.integers(0, len(value) - 1))
    value[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Corrupt):
        decode_embedding(bytes(value), KEY, len(vector))


@PLACES
@given(cached_scores, places, st.data())
def test_a_value_that_was_cut_is_noticed(place: Place, score: CachedScore, field: bytes, data: st.DataObject) -> None:
    value = encode_score(score, place, field)
    with pytest.raises(Corrupt):
        decode_score(value[: data.draw(st.integers(0, len(value) - 1))], place, field)
    with pytest.raises(Corrupt):
        decode_score(value + b"\0", place, field)


@given(cached_scores, places, places)
def test_a_value_is_good_in_its_place_only(score: CachedScore, field: bytes, other: bytes) -> None:
    value = encode_score(score, KEY, field)
    if field != other:
        with pytest.raises(Corrupt):
            decode_score(value, KEY, other)
    moved = encode_embedding(np.ones(4, np.float32), Place(field))
    if field != other:
        with pytest.raises(Corrupt):
            decode_embedding(moved, Place(other), 4)


def test_another_version_is_corrupt() -> None:
    value = encode_score(CachedScore(0.5), KEY, b"field")
    for version in (0, 2, 255):
        with pytest.raises(Corrupt):
            decode_score(bytes([version]) + value[1:], KEY, b"field")


@pytest.mark.parametrize("score", [-0.1, 1.1, float("nan"), float("inf")])
def test_no_relevance_is_corrupt(score: float) -> None:
    with pytest.raises(Corrupt):
        decode_score(encode_score(CachedScore(score), KEY, b"field"), KEY, b"field")


@pytest.mark.parametrize("value", [None, 1, "text", [b""]])
def test_what_is_not_bytes_is_corrupt(value: object) -> None:
    with pytest.raises(Corrupt):
        decode_score(value, KEY, b"field")


def test_a_vector_of_another_dimension_is_corrupt() -> None:
    value = encode_embedding(np.ones(4, np.float32), KEY)
    with pytest.raises(Corrupt):
        decode_embedding(value, KEY, 5)


def test_only_who_has_the_secret_makes_values() -> None:
    """Who can write to Redis can make a CRC, and not the digest."""
    score, vector = CachedScore(0.5, document="d"), np.ones(4, np.float32)
    for writer in (KEY, SECRET, OTHER):
        for reader in (KEY, SECRET, OTHER):
            values = encode_score(score, writer, b"field"), encode_embedding(vector, writer)
            if writer is reader:
                assert decode_score(values[0], reader, b"field") == score
                assert decode_embedding(values[1], reader, 4).tobytes() == vector.tobytes()
            else:
                with pytest.raises(Corrupt):
                    decode_score(values[0], reader, b"field")
                with pytest.raises(Corrupt):
                    decode_embedding(values[1], reader, 4)


def test_the_sizes_that_are_promised() -> None:
    assert len(encode_score(CachedScore(0.5), KEY, b"field")) == 14
    assert len(encode_embedding(np.ones(384, np.float32), KEY)) == 6 + 4 * 384
    assert len(encode_score(CachedScore(0.5), SECRET, b"field")) == 18
    assert len(encode_embedding(np.ones(384, np.float32), SECRET)) == 10 + 4 * 384
