"""Document ids in arrays that can be mapped from a file, and found there without a dictionary."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray


class Identifiers:
    """n distinct ids by row, and rows by id. 20 bytes an id beside its text.

    text: the ids one after the other in UTF-8, as bytes; ends: (n + 1,) where each begins and the last one ends;
    hashes: (n,) uint64, ascending; owners: (n,) the row of each hash.
    """

    def __init__(
        self,
        text: NDArray[np.uint8],
        ends: NDArray[np.int64],
        hashes: NDArray[np.uint64],
        owners: NDArray[np.int32],
    ) -> None:
        self.text, self.ends, self.hashes, self.owners = text, ends, hashes, owners

    @classmethod
    def of(cls, ids: Iterable[str]) -> Identifiers:
        """Pack ids, which must be distinct."""
        encoded = [id.encode() for id in ids]
        ends = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(id) for id in encoded], out=ends[1:])
        hashes = _hashes(encoded)
        owners = np.argsort(hashes, kind="stable").astype(np.int32)
        return cls(np.frombuffer(b"".join(encoded), np.uint8), ends, hashes[owners], owners)

    def __len__(self) -> int:
        return len(self.owners)

    def at(self, rows: NDArray[np.int64]) -> list[str]:
        """The ids of these rows."""
        starts, ends = self.ends[rows].tolist(), self.ends[rows + 1].tolist()
        text = memoryview(self.text.data)
        return [str(text[start:end], "utf-8") for start, end in zip(starts, ends, strict=True)]

    def rows(self, ids: Collection[str]) -> NDArray[np.int64]:
        """Rows of those of these ids that are there, in no particular order, each once."""
        distinct = list(dict.fromkeys(id.encode() for id in ids))
        hashes = _hashes(distinct)
        first = np.searchsorted(self.hashes, hashes, "left")
        beyond = np.searchsorted(self.hashes, hashes, "right")
        text = memoryview(self.text.data)
        found = []
        for position in np.flatnonzero(first < beyond).tolist():
            for row in self.owners[first[position] : beyond[position]].tolist():
                if text[self.ends[row] : self.ends[row + 1]] == distinct[position]:
                    found.append(row)
        return np.array(found, np.int64)


def _hashes(encoded: list[bytes]) -> NDArray[np.uint64]:
    digests = b"".join(blake2b(id, digest_size=8).digest() for id in encoded)
    return np.frombuffer(digests, "<u8").astype(np.uint64)
