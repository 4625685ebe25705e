"""The capabilities of a Milvus server, by its version."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Server:
    """A release of Milvus. version: major and minor number; lite: milvus-lite, which has its own version numbers."""

    version: tuple[int, int]
    lite: bool = False

    @classmethod
    def of(cls, name: str) -> Server:
        """Parse a version string: `v2.5.4`, `v2.3.5-lite` (a server that pip installs), `milvus_lite-3.2.2`."""
        found = re.search(r"(\d+)\.(\d+)", name)
        numbers = (int(found[1]), int(found[2])) if found else (0, 0)
        return cls(numbers, lite=name.startswith("milvus_lite"))

    @property
    def half_precision(self) -> bool:
        """Whether vectors can be float16. Milvus 2.3 accepts them but ranks them wrongly."""
        return not self.lite and self.version >= (2, 4)

    @property
    def array_index(self) -> bool:
        """Whether an array may have an INVERTED index."""
        return not self.lite and self.version >= (2, 5)

    @property
    def full_text(self) -> bool:
        """Whether it computes BM25. milvus-lite's scores are negative and change with the filter."""
        return not self.lite and self.version >= (2, 5)
