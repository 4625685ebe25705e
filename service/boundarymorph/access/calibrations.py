"""Which calibration a request is answered with, and what its documents are distinct by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from boundarymorph.access.keys import Caller
from boundarymorph.calibration.calibration import Calibration
from boundarymorph.errors import UnknownCalibration
from boundarymorph.retrieval.interfaces import CalibrationSource

Wanted = str | Literal[False] | None  # a name; none at all; or the default
MOST_NAMES = 20  # in a message


class Calibrations:
    """Chooses among the calibrations that a caller may use: by name, and the defaults of keys and of indexes."""

    def __init__(self, of_keys: Mapping[str, str]) -> None:
        """of_keys: the names of default calibrations, by the names of keys."""
        self._of_keys = of_keys

    async def of(
        self, wanted: Wanted, caller: Caller, source: CalibrationSource, index: str | None = None
    ) -> tuple[Calibration | None, str | None]:
        """Return the calibration of this name, else the default of the caller's key, else that of the index; and the
        field by which selections from the index are distinct by default.

        index: one that the caller sees. Raises UnknownCalibration, also for the calibration of an index that the caller
        does not see, and what the source raises.
        """
        name = self._of_keys.get(caller.name) if wanted is None else wanted or None
        if name is None and index is None:
            return None, None
        found = await source.calibrations(name, index)
        if name is None:
            return next(iter(found.calibrations), None) if wanted is None else None, found.distinct
        for made in found.calibrations:
            if made.index is None or caller.sees(made.index):
                return made, found.distinct
        seen = sorted({known for known, owner in found.known if owner is None or caller.sees(owner)})
        more = f" and {len(seen) - MOST_NAMES} more" if len(seen) > MOST_NAMES else ""
        there = ", ".join(seen[:MOST_NAMES]) + more if seen else "none yet; `boundarymorph calibrate` makes one"
        raise UnknownCalibration(f"there is no calibration {name!r}; there is {there}")
