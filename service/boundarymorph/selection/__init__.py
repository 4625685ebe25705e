"""The mathematics of BoundaryMORPH: numpy only, without I/O, clock or settings."""

from boundarymorph.selection.acquisition import Acquisition, BoundaryGap, UpperConfidenceBound
from boundarymorph.selection.belief import Belief
from boundarymorph.selection.pool import Pool
from boundarymorph.selection.session import Observation, Selection, SelectionConfig, SelectionSession, StopReason

__all__ = [
    "Acquisition",
    "Belief",
    "BoundaryGap",
    "Observation",
    "Pool",
    "Selection",
    "SelectionConfig",
    "SelectionSession",
    "StopReason",
    "UpperConfidenceBound",
]
