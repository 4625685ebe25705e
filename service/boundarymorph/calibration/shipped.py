"""The map from relevance to people to a probability that ships, for scorers without a calibration."""

from __future__ import annotations

from collections.abc import Mapping

from boundarymorph.calibration.calibration import ProbabilityMap

NAME = "shipped"  # by which answers name it
# By the name that a scorer reports, without its revision and precision. `make evaluation STUDY=probability` fits them.
SHIPPED: Mapping[str, ProbabilityMap] = {
    "cross-encoder/ms-marco-MiniLM-L-12-v2": ProbabilityMap(slope=0.24, intercept=-0.025, clip=1e-7)
}


def shipped_map(model: str | None) -> ProbabilityMap | None:
    """Return the map of the scorer that reports this full name; None if it has no map."""
    return None if model is None else SHIPPED.get(model.partition("@")[0])
