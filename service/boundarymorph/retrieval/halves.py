"""Unit vectors as float16: how they are stored and sent, and how all who read them get the same bits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 1e-3  # by which the length of a stored or sent vector may differ from 1


class UnitRows(NamedTuple):
    """(n, d) float32 rows of unit length, NaN where there was none, and (n,) float64 lengths that they had."""

    vectors: NDArray[np.float32]
    lengths: NDArray[np.float64]


def unit_rows_of(halves: NDArray[np.float16]) -> UnitRows:
    """Finite (n, d) rows over their lengths.

    These are the same bits on every machine: squares of float16 are multiples of 2**-48, which float64 adds without
    rounding for a row near unit length, in any order, and root and division round as IEEE 754 says.
    """
    return to_unit_length(floats_from_halves(halves))


def to_unit_length(floats: NDArray[np.float32]) -> UnitRows:
    """The same of (n, d) halves that are float32 already, in their place."""
    lengths = np.sqrt(np.einsum("nd,nd->n", floats, floats, dtype=np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        floats /= lengths[:, None].astype(np.float32)
    return UnitRows(floats, lengths)


def unit_from_halves(halves: NDArray[np.float16]) -> NDArray[np.float32]:
    """The vectors of `unit_rows_of`."""
    return unit_rows_of(halves).vectors


def floats_from_halves(halves: NDArray[np.float16]) -> NDArray[np.float32]:
    """The same finite numbers as float32; NumPy's own conversion takes seven times as long.

    Exponent and fraction go to where float32 has them, which is 2^112 too small, as the exponents' biases differ so.
    """
    words = halves.view(np.int16).astype(np.int32)
    words <<= 13
    words &= np.int32(-0x80000000 | 0x0FFFE000)
    floats = words.view(np.float32)
    floats *= np.float32(2.0**112)
    return floats


def halves_from_floats(floats: NDArray[np.float32]) -> NDArray[np.float16]:
    """Numbers of magnitude at most 1 rounded to the nearest float16, ties to even, in half of NumPy's time.

    The way back of `floats_from_halves`. Below 2**-14 the multiplication rounds as well, and what it makes a tie may go
    the other way; numbers above 1 come out wrong.
    """
    words = (floats * np.float32(2.0**-112)).view(np.int32)
    signs = (words >> 16) & np.int32(0x8000)
    words &= np.int32(0x7FFFFFFF)
    words += ((words >> 13) & np.int32(1)) + np.int32(0x0FFF)
    words >>= 13
    words |= signs
    return words.astype(np.uint16).view(np.float16)
