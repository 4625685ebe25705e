"""The mathematics of BoundaryMORPH: numpy only, without I/O, clock or settings."""

from boundarymorph.selection.acquisition import Acquisition, BoundaryGap, Explore, UpperConfidenceBound, ValueAtCutoff
from boundarymorph.selection.belief import Belief
from boundarymorph.selection.bookkeeping import ExhaustiveSession, Observation, Selection, StopReason
from boundarymorph.selection.capacity import Capacity, Distinct, DocumentCapacity, TokenCapacity, capacity_of
from boundarymorph.selection.methods import Config, SelectionConfig, TrendConfig
from boundarymorph.selection.outlook import Outlook, Recall, Target
from boundarymorph.selection.pool import Pool
from boundarymorph.selection.session import SelectionSession

__all__ = [
    "Acquisition",
    "Belief",
    "BoundaryGap",
    "Capacity",
    "Config",
    "Distinct",
    "DocumentCapacity",
    "ExhaustiveSession",
    "Explore",
    "Observation",
    "Outlook",
    "Pool",
    "Recall",
    "Selection",
    "SelectionConfig",
    "SelectionSession",
    "StopReason",
    "Target",
    "TokenCapacity",
    "TrendConfig",
    "UpperConfidenceBound",
    "ValueAtCutoff",
    "capacity_of",
]
