"""The mathematics of BoundaryMORPH: numpy only, without I/O, clock or settings."""

from boundarymorph.selection.acquisition import Acquisition, BoundaryGap, Explore, UpperConfidenceBound, ValueAtCutoff
from boundarymorph.selection.belief import Belief
from boundarymorph.selection.config import Config, SelectionConfig, TrendConfig
from boundarymorph.selection.pool import Pool
from boundarymorph.selection.session import Observation, Selection, SelectionSession, StopReason

__all__ = [
    "Acquisition",
    "Belief",
    "BoundaryGap",
    "Config",
    "Explore",
    "Observation",
    "Pool",
    "Selection",
    "SelectionConfig",
    "SelectionSession",
    "StopReason",
    "TrendConfig",
    "UpperConfidenceBound",
    "ValueAtCutoff",
]
