"""Pools and embeddings as bytes: the same bits come back, and nothing malformed comes in."""

import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load, save

from boundarymorph.calibration.calibration import Calibration, ProbabilityMap
from boundarymorph.errors import InvalidInput, MalformedFrame
from boundarymorph.retrieval.artifacts import Artifacts
from boundarymorph.retrieval.document import Document, Retrieved, VectorSource
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.retrieval.frame import (
    EMBEDDINGS_TYPE,
    HEADER_BYTES,
    POOL_TYPE,
    VERSION,
    decode_embeddings,
    decode_pool,
    encode_embeddings,
    encode_pool,
)
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.retrieval.ranking import unit_from_halves
from boundarymorph.selection.pool import Pool, unit_rows
from tests.stateful.profile import times

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def header_of(frame: bytes) -> dict[str, Any]:
    header: dict[str, Any] = orjson.loads(frame[8 : 8 + int.from_bytes(frame[:8], "little")])
    return header


def stored(rows: NDArray[np.floating]) -> NDArray[np.float32]:
    """(n, d) rows as the document store gives them back, literally: one at a time, float16 over its length."""
    found = []
    for row in unit_rows(rows, []):
        half = row.astype("<f2").astype(np.float32)
        length = np.sqrt(sum(float(component) ** 2 for component in half))
        found.append(half / np.float32(length))
    return np.array(found, dtype=np.float32)


def pool_of(rows: NDArray[np.floating], seed: int = 0, /, **features: NDArray[np.float64]) -> Pool:
    count, dimension = rows.shape
    rng = np.random.default_rng(seed)
    query = rng.standard_normal(dimension)
    unit = (query / np.linalg.norm(query)).astype(rows.dtype)
    return Pool([f"d{n}" for n in range(count)], rows, unit, np.sort(rng.standard_normal(count))[::-1], features)


def same(one: Pool, other: Pool) -> None:
    """Bit for bit, types included."""
    assert list(one.ids) == list(other.ids)
    assert one.features.keys() == other.features.keys()
    assert (one.terms is None) == (other.terms is None)
    if one.terms is not None and other.terms is not None:
        assert one.terms.dtype == other.terms.dtype == np.bool_
        np.testing.assert_array_equal(one.terms, other.terms)
    pairs = [(one.embeddings, other.embeddings), (one.query, other.query), (one.scores, other.scores)]
    for mine, theirs in [*pairs, *((one.features[name], other.features[name]) for name in one.features)]:
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        assert np.ascontiguousarray(mine).tobytes() == np.ascontiguousarray(theirs).tobytes()


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    """From a store or not, with rows that float16 holds badly, in float32 or float64."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    ids = draw(st.lists(texts, min_size=1, max_size=12, unique=True))
    shape = len(ids), draw(st.integers(1, 40))
    rows = rng.standard_normal(shape) * 10.0 ** -rng.integers(0, draw(st.integers(1, 12)), shape)
    rows[:, 0] += 1e-3
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    match draw(st.sampled_from(["stored", "float32", "float64", "mixed"])):
        case "stored":
            rows = stored(rows)
        case "float32":
            rows = rows.astype(np.float32)
        case "mixed":
            rows = np.concatenate([stored(rows[::2]), rows[1::2].astype(np.float32)])
    names = draw(st.lists(texts, max_size=3, unique=True))
    pool = pool_of(rows, draw(st.integers(0, 100)), **{name: rng.standard_normal(len(ids)) for name in names})
    count = draw(st.none() | st.integers(0, 70))
    terms = None if count is None else rng.uniform(size=(len(ids), count)).T < 0.5
    return Pool(ids, pool.embeddings, pool.query, pool.scores, pool.features, terms)


@settings(deadline=None, max_examples=200)
@given(pool=pools(), warnings=st.lists(texts, max_size=3), source=st.sampled_from(get_args(VectorSource)))
def test_a_pool_comes_back_bit_for_bit(pool: Pool, warnings: list[str], source: VectorSource) -> None:
    back = decode_pool(encode_pool(Retrieved(pool, warnings, source)))
    same(pool, back.pool)
    assert (list(back.warnings), back.vectors) == (warnings, source)


@pytest.mark.parametrize("dimension", [1, 2, 3, 384, 1024, 8192])
def test_what_an_index_stores_travels_in_two_bytes_a_number(tmp_path: Path, dimension: int) -> None:
    """The store's own rows, and the literal ones."""
    rng = np.random.default_rng(dimension)
    rows = rng.standard_normal((30, dimension))
    store = DocumentStore.create(tmp_path / "store.sqlite3", encoder=None, dimension=dimension)
    store.upsert([Document(str(n), "") for n in range(30)], rows, [b""] * 30)
    vectors = store.changes(0).vectors
    store.close()
    np.testing.assert_array_equal(vectors, stored(rows))
    pool = pool_of(vectors)
    frame = encode_pool(Retrieved(pool))
    same(pool, decode_pool(frame).pool)
    if dimension > 8:
        assert header_of(frame)["vectors"]["dtype"] == "F16"


def test_rows_known_in_float16_travel_as_those() -> None:
    rows = np.random.default_rng(1).standard_normal((10, 64))
    halves = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype("<f2")
    pool = pool_of(unit_from_halves(halves))
    frame = encode_pool(Retrieved(pool, halves=halves))
    np.testing.assert_array_equal(load(frame)["vectors"], halves)
    same(pool, decode_pool(frame).pool)


def test_rows_of_which_float16_cannot_give_one_back_travel_as_they_are() -> None:
    rows = np.random.default_rng(1).standard_normal((10, 64))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    mixed = np.concatenate([stored(rows[:9]), rows[9:].astype(np.float32)])
    frame = encode_pool(Retrieved(pool_of(mixed)))
    assert header_of(frame)["vectors"]["dtype"] == "F32"
    same(pool_of(mixed), decode_pool(frame).pool)


def test_documents_travel_with_their_pool() -> None:
    pool = pool_of(stored(np.eye(2)))
    documents = {"0": Document("0", "ä text", "title", {"tags": ["a", 1]}), "1": Document("1", "")}
    assert decode_pool(encode_pool(Retrieved(pool, documents=documents))).documents == documents


def test_artifacts_travel_with_their_pool() -> None:
    pool = pool_of(stored(np.eye(2)))
    made = Calibration("scorer", None, {"people": ProbabilityMap(0.5, -1.0, 1e-6)})
    found = Artifacts("Photos.", "author.name", made)
    assert decode_pool(encode_pool(Retrieved(pool, artifacts=found))).artifacts == found
    assert decode_pool(encode_pool(Retrieved(pool))).artifacts == Artifacts()


def test_an_id_that_is_no_text() -> None:
    pool = pool_of(stored(np.eye(2)))
    with pytest.raises(InvalidInput, match="surrogate"):
        encode_pool(Retrieved(Pool(["\ud800", "b"], pool.embeddings, pool.query, pool.scores)))


@pytest.fixture(scope="module")
def tensors() -> dict[str, NDArray[Any]]:
    """Of a good frame of three documents."""
    rng = np.random.default_rng(3)
    pool = pool_of(stored(rng.standard_normal((3, 8))), bm25=np.arange(3.0))
    terms = np.array([[True, False, True], [False, False, True]])
    pool = Pool(["ä", "b", ""], pool.embeddings, pool.query, pool.scores, pool.features, terms)
    found = load(encode_pool(Retrieved(pool, ["careful"])))
    assert found.keys() == {"vectors", "query", "scores", "ids", "artifacts", "feature:bm25", "terms"}
    return found


NO_DOCUMENTS = b"", b"{}", b"[1]", b'[{"id": 1, "text": "", "title": null, "metadata": {}}]', b'[{"id": "1"}]'
NO_ARTIFACTS = b"", b"[]", b"1", b"{}", b'{"description": null, "distinct": null, "calibration": {}}'
METADATA = {"type": POOL_TYPE, "version": VERSION, "warnings": '["careful"]', "source": "index"}


@pytest.mark.parametrize("missing", ["vectors", "query", "scores", "ids"])
def test_something_missing(tensors: dict[str, NDArray[Any]], missing: str) -> None:
    with pytest.raises(MalformedFrame, match=missing):
        decode_pool(save({name: tensor for name, tensor in tensors.items() if name != missing}, METADATA))


def test_without_artifacts_as_of_a_retriever_that_knows_none(tensors: dict[str, NDArray[Any]]) -> None:
    others = {name: tensor for name, tensor in tensors.items() if name != "artifacts"}
    assert decode_pool(save(others, METADATA)).artifacts == Artifacts()


@pytest.mark.parametrize("name", ["vectors", "query", "scores", "ids", "feature:bm25"])
def test_another_type_or_shape(tensors: dict[str, NDArray[Any]], name: str) -> None:
    for other in (
        tensors[name].astype(np.int64),
        tensors[name][:0],
        tensors[name][:-1],
        tensors[name][None],
        tensors[name].reshape(-1, 1),
        np.array(1, tensors[name].dtype),
    ):
        with pytest.raises(MalformedFrame):
            decode_pool(save(tensors | {name: other.copy(order="C")}, METADATA))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["vectors", "query", "scores", "feature:bm25"])
def test_numbers_that_are_none(tensors: dict[str, NDArray[Any]], name: str, value: float) -> None:
    broken = tensors[name].copy()
    broken.flat[-1 if name != "vectors" else 0] = value
    with pytest.raises(MalformedFrame):
        decode_pool(save(tensors | {name: broken}, METADATA))


@pytest.mark.parametrize(
    "change",
    [
        {"vectors": np.zeros((3, 8), np.float16)},
        {"vectors": np.full((3, 8), 0.5, np.float32)},
        {"query": np.zeros(8, np.float32)},
        {"scores": np.array([0.0, 1.0, 0.5])},
        *(
            {"ids": np.frombuffer(ids, np.uint8)}
            for ids in (b"", b'"abc"', b'["a"]', b'["a", "b", 1]', b'["a", "b", "b"]')
        ),
        {"ids": np.array([91, 34, 255, 34, 93], np.uint8)},
        {"terms": np.full((2, 3), 2, np.uint8)},
        {"terms": np.zeros((3, 2), np.uint8)},
        {"terms": np.zeros(3, np.uint8)},
        {"terms": np.zeros((2, 3), np.float32)},
        {"more": np.zeros(1)},
        *({"documents": np.frombuffer(documents, np.uint8)} for documents in NO_DOCUMENTS),
        *({"artifacts": np.frombuffer(found, np.uint8)} for found in NO_ARTIFACTS),
    ],
)
def test_contents_that_are_no_pool(tensors: dict[str, NDArray[Any]], change: dict[str, NDArray[Any]]) -> None:
    with pytest.raises(MalformedFrame):
        decode_pool(save(tensors | change, METADATA))


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {},
        METADATA | {"type": EMBEDDINGS_TYPE},
        METADATA | {"version": "1"},
        METADATA | {"source": "nowhere"},
        METADATA | {"warnings": "careful"},
        METADATA | {"warnings": "[1]"},
        METADATA | {"warnings": '"careful"'},
    ],
)
def test_another_kind_of_frame(tensors: dict[str, NDArray[Any]], metadata: dict[str, str] | None) -> None:
    with pytest.raises(MalformedFrame):
        decode_pool(save(tensors, metadata))


def test_cut_off_anywhere(tensors: dict[str, NDArray[Any]]) -> None:
    frame = save(tensors, METADATA)
    for end in range(len(frame)):
        with pytest.raises(MalformedFrame):
            decode_pool(frame[:end])
    with pytest.raises(MalformedFrame):
        decode_pool(frame + b"\0")


@settings(deadline=None, max_examples=times(150, 4_000))
@given(data=st.data())
def test_damaged_anywhere(tensors: dict[str, NDArray[Any]], data: st.DataObject) -> None:
    """Either it is refused, or what comes out is a pool that could have been sent."""
    frame = bytearray(save(tensors, METADATA))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(frame) - 1))
        frame[position] = data.draw(st.integers(0, 255))
    try:
        found = decode_pool(bytes(frame))
    except MalformedFrame:
        return
    pool = found.pool
    assert len(set(pool.ids)) == len(pool.ids) == len(pool.embeddings) == len(pool.scores)
    np.testing.assert_allclose(np.linalg.norm(pool.embeddings, axis=1), 1, atol=2e-3)
    assert np.isfinite(pool.scores).all() and all(one >= next for one, next in pairwise(pool.scores))
    same(pool, decode_pool(encode_pool(found)).pool)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200))
def test_any_bytes(frame: bytes) -> None:
    with pytest.raises(MalformedFrame):
        decode_pool(frame)
    with pytest.raises(MalformedFrame):
        decode_embeddings(frame, 1)


huge = st.sampled_from([0, 1, 2**31, 2**32, 2**53, 2**62, 2**63, 2**64 - 1, 2**64, -1])


@settings(deadline=None, max_examples=200)
@given(shape=st.lists(huge, max_size=3), end=huge, length=huge, dtype=st.sampled_from(["F16", "F32", "BF16", "F64"]))
def test_a_header_that_promises_more_than_there_is(shape: list[int], end: int, length: int, dtype: str) -> None:
    entry = {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}
    try:
        header = orjson.dumps({"__metadata__": METADATA, "vectors": entry})
    except orjson.JSONEncodeError:
        header = str({"__metadata__": METADATA, "vectors": entry}).replace("'", '"').encode()
    for promised in (len(header), length):
        frame = (promised % 2**64).to_bytes(8, "little") + header + bytes(64)
        tracemalloc.start()
        try:
            with pytest.raises(MalformedFrame):
                decode_pool(frame)
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()


def test_memory_follows_the_frame() -> None:
    """The vectors in float32, which the pool is made of, and no more than a copy of the frame beside them."""
    rows = np.random.default_rng(4).standard_normal((2_000, 256))
    frame = encode_pool(Retrieved(pool_of(stored(rows))))
    tracemalloc.start()
    try:
        decode_pool(frame)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(frame) + 4_000_000


def test_a_header_that_is_too_long(tensors: dict[str, NDArray[Any]]) -> None:
    with pytest.raises(MalformedFrame, match="header"):
        decode_pool(save(tensors, METADATA | {"more": "x" * HEADER_BYTES}))


@pytest.mark.parametrize("count", [0, 1, 5])
def test_embeddings(count: int) -> None:
    vectors = np.eye(8, dtype=np.float32)[:count]
    back = decode_embeddings(encode_embeddings(Embeddings(vectors, min(count, 2))), count)
    np.testing.assert_array_equal(back.vectors, vectors)
    assert back.vectors.dtype == np.float32
    assert back.truncated == min(count, 2)
    assert back.encoder is None
    assert decode_embeddings(encode_embeddings(Embeddings(vectors, encoder="ä/fp32")), count).encoder == "ä/fp32"
    with pytest.raises(MalformedFrame):
        decode_embeddings(encode_embeddings(Embeddings(vectors)), count + 1)


@pytest.mark.parametrize(
    ("vectors", "truncated"),
    [
        (np.zeros((1, 8), np.float32), "0"),
        (np.full((1, 8), np.nan, np.float32), "0"),
        (np.eye(1, 8), "0"),
        (np.ones((1, 0), np.float32), "0"),
        (np.ones(1, np.float32), "0"),
        (np.eye(1, 8, dtype=np.float32), "2"),
        (np.eye(1, 8, dtype=np.float32), "-1"),
        (np.eye(1, 8, dtype=np.float32), ""),
        (np.eye(1, 8, dtype=np.float32), "²"),
    ],
)
def test_embeddings_that_are_none(vectors: NDArray[Any], truncated: str) -> None:
    metadata = {"type": EMBEDDINGS_TYPE, "version": VERSION, "truncated": truncated}
    with pytest.raises(MalformedFrame):
        decode_embeddings(save({"vectors": vectors}, metadata), 1)
