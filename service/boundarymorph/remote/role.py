"""What remote models are there for."""

from __future__ import annotations

from dataclasses import dataclass

from boundarymorph.errors import BoundaryMorphError


@dataclass(frozen=True, slots=True)
class Role:
    """name: scorer or encoder; results: what it gives, in the plural; done: what it has then done to the texts;
    unavailable, failed: raised when none can work now, or when another try will not help."""

    name: str
    results: str
    done: str
    unavailable: type[BoundaryMorphError]
    failed: type[BoundaryMorphError]
