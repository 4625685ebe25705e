"""Implement the mathematics of BoundaryMORPH, with numpy and without I/O, clock or settings."""

from boundarymorph.selection.acquisition import Acquisition, BoundaryGap, Explore, UpperConfidenceBound, ValueAtCutoff
from boundarymorph.selection.belief import Belief
from boundarymorph.selection.bookkeeping import BaseSession, ExhaustiveSession, Observation, Selection, StopReason
from boundarymorph.selection.boost import Boosted
from boundarymorph.selection.boundary import Best, Boundary, Find, Ordered, Threshold
from boundarymorph.selection.capacity import Capacity, DocumentCapacity, Limit, TokenCapacity, capacity_of
from boundarymorph.selection.diversity import Diverse
from boundarymorph.selection.groups import Distinct
from boundarymorph.selection.methods import Config, SelectionConfig, TrendConfig
from boundarymorph.selection.outlook import Outlook, Recall
from boundarymorph.selection.pool import Pool
from boundarymorph.selection.session import Session
from boundarymorph.selection.stop import Budget, Found, Tolerance

__all__ = [
    "Acquisition",
    "BaseSession",
    "Belief",
    "Best",
    "Boosted",
    "Boundary",
    "BoundaryGap",
    "Budget",
    "Capacity",
    "Config",
    "Distinct",
    "Diverse",
    "DocumentCapacity",
    "ExhaustiveSession",
    "Explore",
    "Find",
    "Found",
    "Limit",
    "Observation",
    "Ordered",
    "Outlook",
    "Pool",
    "Recall",
    "Selection",
    "SelectionConfig",
    "Session",
    "StopReason",
    "Threshold",
    "TokenCapacity",
    "Tolerance",
    "TrendConfig",
    "UpperConfidenceBound",
    "ValueAtCutoff",
    "capacity_of",
]
