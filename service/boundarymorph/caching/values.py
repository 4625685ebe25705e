"""The binary form of scores and embeddings in Redis.

A value is a version (1 byte), flags (1 byte), a checksum, and the score as float64 with the document's id in UTF-8, or
the vector as float32; all little-endian. The checksum also covers the place, so that a value that was damaged, written
elsewhere or meant for another request is detected. Version 1 has a CRC (4 bytes), which anyone who writes to Redis can
make too; version 2 has a digest keyed by a secret (8 bytes).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import blake2b
from hmac import compare_digest
from zlib import crc32

import numpy as np

from boundarymorph.caching.interfaces import CachedScore, Vector, kept_name

_CHECKED, _KEYED = 1, 2  # versions
_TRUNCATED, _NAMED = 1, 2
_SCORE = struct.Struct("<d")


class Corrupt(Exception):
    """These bytes are not a valid value of this place and version."""


@dataclass(frozen=True, slots=True)
class Place:
    """A key, to which the values under it are bound. secret: up to 64 bytes; empty for a CRC."""

    key: bytes
    secret: bytes = b""

    def seal(self, flags: int, content: bytes, field: bytes = b"") -> bytes:
        """Return the value with this content. field: of the hash at the key."""
        return self._head(flags, content, field) + content

    def open(self, value: object, field: bytes = b"") -> tuple[int, bytes]:
        """Return flags and content of a value. Raises Corrupt."""
        size = 10 if self.secret else 6
        if not isinstance(value, bytes) or len(value) < size:
            raise Corrupt
        flags, content = value[1], value[size:]
        if not compare_digest(value[:size], self._head(flags, content, field)):
            raise Corrupt
        return flags, content

    def _head(self, flags: int, content: bytes, field: bytes) -> bytes:
        if not self.secret:
            checksum = crc32(content, crc32(field, crc32(self.key)) ^ flags)
            return bytes((_CHECKED, flags)) + checksum.to_bytes(4, "little")
        head = bytes((_KEYED, flags))
        lengths = struct.pack("<II", len(self.key), len(field))
        return head + blake2b(head + lengths + self.key + field + content, digest_size=8, key=self.secret).digest()


def encode_score(cached: CachedScore, place: Place, field: bytes) -> bytes:
    """Encode a score. A score outside [0, 1] is written, but raises Corrupt when it is read."""
    name = kept_name(cached.document)
    flags = _TRUNCATED * cached.truncated | _NAMED * (name is not None)
    return place.seal(flags, _SCORE.pack(cached.score) + (name or b""), field)


def decode_score(value: object, place: Place, field: bytes) -> CachedScore:
    """Reverse `encode_score`; an id that was too long is missing. Raises Corrupt."""
    flags, content = place.open(value, field)
    if len(content) < _SCORE.size:
        raise Corrupt
    (score,), name = _SCORE.unpack_from(content), content[_SCORE.size :]
    if not 0 <= score <= 1 or (name and not flags & _NAMED):
        raise Corrupt
    try:
        return CachedScore(score, flags & _TRUNCATED != 0, name.decode() if flags & _NAMED else None)
    except UnicodeDecodeError as error:
        raise Corrupt from error


def encode_embedding(vector: Vector, place: Place) -> bytes:
    """Encode a vector."""
    return place.seal(0, vector.astype("<f4").tobytes())


def decode_embedding(value: object, place: Place, dimension: int) -> Vector:
    """Reverse `encode_embedding`. Raises Corrupt."""
    _, content = place.open(value)
    if len(content) != 4 * dimension:
        raise Corrupt
    return np.frombuffer(content, "<f4").astype(np.float32)
