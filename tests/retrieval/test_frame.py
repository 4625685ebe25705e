"""Test that pools and embeddings survive encoding bit for bit, and wrong frames are refused."""

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
from boundarymorph.notices import Notice
from boundarymorph.retrieval.artifacts import Artifacts
from boundarymorph.retrieval.document import Document, Retrieval, VectorSource
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
from boundarymorph.selection.pool import Pool, unit_rows
from tests.stateful.profile import times

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def header_of(frame: bytes) -> dict[str, Any]:
    header: dict[str, Any] = orjson.loads(frame[8 : 8 + int.from_bytes(frame[:8], "little")])
    return header


def stored(rows: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return (n, d) rows as the store returns them: float16 rows, each divided by its length."""
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


def check_equal(one: Pool, other: Pool) -> None:
    """Check that two pools are equal bit for bit, including types."""
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
    """Draw pools of a store or of a request, in float32 or float64.

    Some rows cannot be represented well in float16.
    """
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


@settings(deadline=None, max_examples=60)
@given(
    pool=pools(),
    warnings=st.lists(st.builds(Notice, texts, texts), max_size=3),
    source=st.sampled_from(get_args(VectorSource)),
)
def test_pool_frame_round_trips_bit_for_bit(pool: Pool, warnings: list[Notice], source: VectorSource) -> None:
    back = decode_pool(encode_pool(Retrieval(pool, warnings, source)))
    check_equal(pool, back.pool)
    assert (list(back.warnings), back.vectors) == (warnings, source)


@pytest.mark.parametrize("dimension", [1, 3, 384, 1024])
def test_pool_frame_sends_stored_rows_as_float16(tmp_path: Path, dimension: int) -> None:
    """One row that float16 cannot hold makes all rows travel as float32."""
    rows = np.random.default_rng(dimension).standard_normal((30, dimension))
    store = DocumentStore.create(tmp_path / "store.sqlite3", encoder=None, dimension=dimension)
    store.upsert([Document(str(n), "") for n in range(30)], rows, [b""] * 30)
    vectors = store.changes(0).vectors
    store.close()
    np.testing.assert_array_equal(vectors, stored(rows))
    pool, mixed = pool_of(vectors), pool_of(np.concatenate([vectors[1:], unit_rows(rows[:1], []).astype("f4")]))
    for each, dtype in ((pool, "F16"), (mixed, "F32")):
        frame = encode_pool(Retrieval(each))
        check_equal(each, decode_pool(frame).pool)
        assert dimension <= 8 or header_of(frame)["vectors"]["dtype"] == dtype


def test_pool_frame_carries_documents_and_artifacts() -> None:
    pool = pool_of(stored(np.eye(2)))
    documents = {"0": Document("0", "ä text", "title", {"tags": ["a", 1]}), "1": Document("1", "")}
    made = Calibration("scorer", None, {"human": ProbabilityMap(0.5, -1.0, 1e-6)})
    artifacts = Artifacts("Photos.", "author.name", made)
    found = decode_pool(encode_pool(Retrieval(pool, documents=documents, artifacts=artifacts)))
    assert (found.documents, found.artifacts) == (documents, artifacts)
    bare = load(encode_pool(Retrieval(pool)))
    del bare["artifacts"]  # as a retriever without artifacts sends it
    assert decode_pool(save(bare, METADATA)).artifacts == Artifacts()


def test_encode_pool_refuses_an_id_with_a_lone_surrogate() -> None:
    pool = pool_of(stored(np.eye(2)))
    with pytest.raises(InvalidInput, match="surrogate"):
        encode_pool(Retrieval(Pool(["\ud800", "b"], pool.embeddings, pool.query, pool.scores)))


@pytest.fixture(scope="module")
def tensors() -> dict[str, NDArray[Any]]:
    """Return the tensors of a valid frame of three documents."""
    rng = np.random.default_rng(3)
    pool = pool_of(stored(rng.standard_normal((3, 8))), bm25=np.arange(3.0))
    terms = np.array([[True, False, True], [False, False, True]])
    pool = Pool(["ä", "b", ""], pool.embeddings, pool.query, pool.scores, pool.features, terms)
    found = load(encode_pool(Retrieval(pool, [Notice("no-effect", "careful")])))
    assert found.keys() == {"vectors", "query", "scores", "ids", "artifacts", "feature:bm25", "terms"}
    return found


METADATA = {
    "type": POOL_TYPE,
    "version": VERSION,
    "warnings": '[{"slug": "new", "message": "careful"}]',
    "source": "index",
}


@pytest.mark.parametrize("name", ["vectors", "query", "scores", "ids", "feature:bm25"])
def test_decode_pool_refuses_a_wrong_type_or_shape(tensors: dict[str, NDArray[Any]], name: str) -> None:
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


@pytest.mark.parametrize(
    "change",
    [
        *({name: None} for name in ("vectors", "query", "scores", "ids")),
        {"vectors": np.zeros((3, 8), np.float16)},
        {"vectors": np.full((3, 8), 0.5, np.float32)},
        {"query": np.zeros(8, np.float32)},
        {"scores": np.array([0.0, 1.0, 0.5])},
        *({"scores": np.array([1.0, 0.5, number])} for number in (np.nan, np.inf, -np.inf)),
        {"feature:bm25": np.array([np.nan, 0.0, 0.0])},
        {"vectors": np.full((3, 8), np.nan, np.float32)},
        {"query": np.full(8, np.nan, np.float32)},
        *({"ids": ids} for ids in (b"", b'"abc"', b'["a"]', b'["a", "b", 1]', b'["a", "b", "b"]', b'["\xff"]')),
        {"terms": np.full((2, 3), 2, np.uint8)},
        {"terms": np.zeros((3, 2), np.uint8)},
        {"terms": np.zeros(3, np.uint8)},
        {"terms": np.zeros((2, 3), np.float32)},
        {"more": np.zeros(1)},
        *({"documents": each} for each in (b"", b"{}", b"[1]", b'[{"id": "1"}]', b'[{"id": 1, "text": ""}]')),
        *({"artifacts": each} for each in (b"", b"[]", b"{}", b'{"description": null, "calibration": {}}')),
        {"type": EMBEDDINGS_TYPE},
        {"version": "1"},
        {"source": "nowhere"},
        {"warnings": "careful"},
        {"warnings": "[1]"},
        {"warnings": '"careful"'},
        {"warnings": '["careful"]'},
        {"warnings": '[{"slug": "new", "message": null}]'},
        {"more": "x" * HEADER_BYTES},
    ],
    ids=str,
)
def test_decode_pool_refuses_malformed_frames(tensors: dict[str, NDArray[Any]], change: dict[str, Any]) -> None:
    """A tensor is missing, or a tensor, JSON or text of the header is wrong."""
    changed, metadata = dict(tensors), dict(METADATA)
    for name, value in change.items():
        if value is None:
            del changed[name]
        elif isinstance(value, str):
            metadata[name] = value
        else:
            changed[name] = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value
    with pytest.raises(MalformedFrame):
        decode_pool(save(changed, metadata))


@settings(deadline=None, max_examples=times(80, 4_000))
@given(data=st.data())
def test_damaged_frame_is_refused_or_gives_a_sound_pool(tensors: dict[str, NDArray[Any]], data: st.DataObject) -> None:
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
    check_equal(pool, decode_pool(encode_pool(found)).pool)


def test_decode_pool_refuses_a_truncated_frame(tensors: dict[str, NDArray[Any]]) -> None:
    frame = save(tensors, METADATA)
    for part in (*(frame[:end] for end in range(len(frame))), frame + b"\0", save(tensors, None)):
        with pytest.raises(MalformedFrame):
            decode_pool(part)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_embeddings_frame_round_trips(count: int) -> None:
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
def test_decode_embeddings_refuses_malformed_frames(vectors: NDArray[Any], truncated: str) -> None:
    metadata = {"type": EMBEDDINGS_TYPE, "version": VERSION, "truncated": truncated}
    with pytest.raises(MalformedFrame):
        decode_embeddings(save({"vectors": vectors}, metadata), 1)
