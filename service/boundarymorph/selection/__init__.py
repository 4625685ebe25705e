"""The mathematics of BoundaryMORPH: numpy only, without I/O, clock or settings."""

from boundarymorph.selection.acquisition import Acquisition, BoundaryGap, Explore, UpperConfidenceBound, ValueAtCutoff
from boundarymorph.selection.belief import Belief
from boundarymorph.selection.bookkeeping import Observation, Selection, StopReason
from boundarymorph.selection.capacity import Capacity, DocumentCapacity, TokenCapacity, capacity_of
from boundarymorph.selection.config import Config, SelectionConfig, TrendConfig
from boundarymorph.selection.distinct import Distinct
from boundarymorph.selection.exhaustive import ExhaustiveSession
from boundarymorph.selection.joint import JointSelection, JointSession
from boundarymorph.selection.outlook import Outlook, Recall
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
    "JointSelection",
    "JointSession",
    "Observation",
    "Outlook",
    "Pool",
    "Recall",
    "Selection",
    "SelectionConfig",
    "SelectionSession",
    "StopReason",
    "TokenCapacity",
    "TrendConfig",
    "UpperConfidenceBound",
    "ValueAtCutoff",
    "capacity_of",
]
