"""The binary form of scores and embeddings in Redis.

A value is a version (1 byte), flags (1 byte), a checksum (4 bytes) and the score as float64 with the document's id in
UTF-8, or the vector as float32; all little-endian. The checksum also covers the place, so that a value that was
damaged, written elsewhere or meant for another request is detected.
"""

from __future__ import annotations

import struct
from zlib import crc32

import numpy as np

from boundarymorph.caching.embeddings import Vector
from boundarymorph.caching.scores import CachedScore, kept_name

VERSION = 1
_TRUNCATED, _NAMED = 1, 2
_HEAD = struct.Struct("<BBI")
_SCORE = struct.Struct("<BBId")


class Corrupt(Exception):
    """These bytes are not a valid value of this place and version."""


def place(key: bytes) -> int:
    """Return a checksum of a key, to which the values under it are bound."""
    return crc32(key)


def encode_score(cached: CachedScore, key: int, field: bytes) -> bytes:
    """Encode a score. key: its `place`. A score outside [0, 1] is written, but raises Corrupt when it is read."""
    name = kept_name(cached.document)
    flags = _TRUNCATED * cached.truncated | _NAMED * (name is not None)
    value = _SCORE.pack(VERSION, flags, 0, cached.score) + (name or b"")
    return _sealed(value, flags, crc32(field, key))


def decode_score(value: object, key: int, field: bytes) -> CachedScore:
    """Reverse `encode_score`; an id that was too long is missing. Raises Corrupt."""
    if not isinstance(value, bytes) or len(value) < _SCORE.size:
        raise Corrupt
    version, flags, checksum, score = _SCORE.unpack_from(value)
    if version != VERSION or checksum != crc32(value[_HEAD.size :], crc32(field, key) ^ flags) or not 0 <= score <= 1:
        raise Corrupt
    if not flags & _NAMED:
        if len(value) != _SCORE.size:
            raise Corrupt
        return CachedScore(score, flags & _TRUNCATED != 0)
    try:
        return CachedScore(score, flags & _TRUNCATED != 0, value[_SCORE.size :].decode())
    except UnicodeDecodeError as error:
        raise Corrupt from error


def encode_embedding(vector: Vector, key: int) -> bytes:
    """Encode a vector. key: its `place`."""
    return _sealed(_HEAD.pack(VERSION, 0, 0) + vector.astype("<f4").tobytes(), 0, key)


def decode_embedding(value: object, key: int, dimension: int) -> Vector:
    """Reverse `encode_embedding`. Raises Corrupt."""
    if not isinstance(value, bytes) or len(value) != _HEAD.size + 4 * dimension:
        raise Corrupt
    version, flags, checksum = _HEAD.unpack_from(value)
    if version != VERSION or checksum != crc32(value[_HEAD.size :], key ^ flags):
        raise Corrupt
    return np.frombuffer(value, "<f4", offset=_HEAD.size).astype(np.float32)


def _sealed(value: bytes, flags: int, place: int) -> bytes:
    """Add the checksum. It does not cover the version, since another version may use another checksum."""
    checksum = crc32(value[_HEAD.size :], place ^ flags)
    return value[:2] + checksum.to_bytes(4, "little") + value[_HEAD.size :]
