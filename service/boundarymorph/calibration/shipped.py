"""Ship maps from human relevance to a probability, for scorers without a calibration."""

from __future__ import annotations

from collections.abc import Mapping

from boundarymorph.calibration.calibration import ProbabilityMap

NAME = "shipped"  # the name in answers
# Maps by the name of the scorer, without revision and precision. `make evaluation STUDY=probability` fits them.
SHIPPED: Mapping[str, ProbabilityMap] = {
    "cross-encoder/ms-marco-MiniLM-L-12-v2": ProbabilityMap(slope=0.24, intercept=-0.025, clip=1e-7)
}


def shipped_map(model: str | None) -> ProbabilityMap | None:
    """Return the map of the scorer with this full name; None if there is no map."""
    return None if model is None else SHIPPED.get(model.partition("@")[0])
