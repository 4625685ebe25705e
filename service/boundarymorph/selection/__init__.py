"""Implement the mathematics of BoundaryMORPH, with NumPy and without I/O, clock or settings."""

from boundarymorph.selection.acquisition import (
    Acquisition,
    BoundaryGap,
    Exploration,
    UpperConfidenceBound,
    ValueAtCutoff,
)
from boundarymorph.selection.belief import Belief
from boundarymorph.selection.bookkeeping import BaseSession, ExhaustiveSession, Observation, Selection, StopReason
from boundarymorph.selection.boost import BoostedBoundary
from boundarymorph.selection.boundary import BestBoundary, Boundary, OrderBoundary, SearchBoundary, ThresholdBoundary
from boundarymorph.selection.capacity import Capacity, DocumentCapacity, Limit, TokenCapacity, capacity_of
from boundarymorph.selection.diversity import DiverseFinish
from boundarymorph.selection.groups import GroupLimit
from boundarymorph.selection.methods import Config, SelectionConfig, TrendConfig
from boundarymorph.selection.outlook import Outlook, Recall
from boundarymorph.selection.pool import Pool
from boundarymorph.selection.session import Session
from boundarymorph.selection.stop import Budget, SearchTarget, Tolerance

__all__ = [
    "Acquisition",
    "BaseSession",
    "Belief",
    "BestBoundary",
    "BoostedBoundary",
    "Boundary",
    "BoundaryGap",
    "Budget",
    "Capacity",
    "Config",
    "DiverseFinish",
    "DocumentCapacity",
    "ExhaustiveSession",
    "Exploration",
    "GroupLimit",
    "Limit",
    "Observation",
    "OrderBoundary",
    "Outlook",
    "Pool",
    "Recall",
    "SearchBoundary",
    "SearchTarget",
    "Selection",
    "SelectionConfig",
    "Session",
    "StopReason",
    "ThresholdBoundary",
    "TokenCapacity",
    "Tolerance",
    "TrendConfig",
    "UpperConfidenceBound",
    "ValueAtCutoff",
    "capacity_of",
]
