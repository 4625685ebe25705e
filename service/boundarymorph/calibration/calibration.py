"""Define calibrations: maps from relevance to the probability that a person agrees."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.calibration.trust import CHOICES, Choice
from boundarymorph.errors import InvalidConfiguration, InvalidInput

VERSION = 2
RelevanceKind = Literal["human", "scorer"]  # the relevance that people are expected to find, or the score alone


def log_odds(values: NDArray[np.float64], clip: float) -> NDArray[np.float64]:
    """Return the log-odds of values in [0, 1], clipped to `clip` and 1 - `clip`."""
    held = np.clip(values, clip, 1.0 - clip)
    return np.log(held) - np.log1p(-held)


def sigmoid(log_odds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probabilities of log-odds of any size."""
    return np.exp(-np.logaddexp(0.0, -log_odds))


@dataclass(frozen=True, slots=True)
class ProbabilityMap:
    """An increasing map from relevance to a probability.

    The probability is the sigmoid of `slope` times the log-odds of relevance, plus `intercept`.

    Attributes:
        slope: A number above 0.
        intercept: Any finite number.
        clip: Relevance within this distance of 0 or 1 counts as being at this distance; above 0, below 1/2.
    """

    slope: float
    intercept: float
    clip: float

    def __call__(self, relevance: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probabilities that a person agrees, for relevance in [0, 1] of any shape."""
        return sigmoid(self.slope * log_odds(relevance, self.clip) + self.intercept)

    def inverse(self, probability: float) -> float:
        """Return the least relevance in [0, 1] with at least this probability.

        It is infinity if the probability of 1 is smaller.
        """
        low, high = self(np.array([0.0, 1.0]))
        if probability <= low:
            return 0.0
        if probability > high:
            return math.inf
        marks = log_odds(np.array([probability]), 1e-12)
        return float(sigmoid((marks - self.intercept) / self.slope)[0])


@dataclass(frozen=True, slots=True)
class Calibration:
    """A calibration that `boundarymorph calibrate` learned, for one scorer and one encoder.

    Attributes:
        encoder: The name of the encoder; "words" where the vectors were made from words, and None if unknown.
        maps: A map for each kind of relevance where it predicts judgements better than relevance itself.
        created: The time, UTC in ISO 8601. Answers name the calibration by it.
        report: The measurements on queries that were left out.
        trust: The trust in the scorer, or "none" to make no calls. None keeps the declared trust.
    """

    scorer: str
    encoder: str | None
    maps: Mapping[RelevanceKind, ProbabilityMap]
    queries: int = 0
    judgments: int = 0
    created: str = ""
    report: Mapping[str, Any] = field(default_factory=dict)
    trust: Choice | None = None
    version: int = VERSION

    def staleness(self, scorer: str | None, encoder: str | None) -> str | None:
        """Return why it does not apply to these models; None if it applies."""
        for kind, own, present in (("scorer", self.scorer, scorer), ("encoder", self.encoder, encoder)):
            if present is not None and own is not None and own != present:
                return f"it was learned with the {kind} {own!r}, and {present!r} is in use; calibrate again"
        return None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_file(cls, path: Path) -> Calibration:
        """Read the calibration of the setting `calibration`.

        Raises:
            InvalidConfiguration: If the file cannot be read or is not a calibration.
        """
        try:
            return cls.from_json(orjson.loads(path.read_bytes()))
        except (OSError, orjson.JSONDecodeError, InvalidInput) as error:
            raise InvalidConfiguration(f"calibration: {path} cannot be used: {error}") from None

    @classmethod
    def from_json(cls, values: Any) -> Calibration:
        """Read a calibration from JSON.

        Raises:
            InvalidInput: If it is malformed; the message names the mistake.
        """
        try:
            if values["version"] != VERSION:
                raise ValueError(f"its version is {values['version']!r}, and this release reads {VERSION}")
            maps = {kind: _checked(ProbabilityMap(**one)) for kind, one in values["maps"].items()}
            if "people" in maps:  # the name of "human" in earlier releases
                maps["human"] = maps.pop("people")
            if unknown := maps.keys() - {"human", "scorer"}:
                raise ValueError(f"it has a map for {min(unknown)!r}")
            if values.get("trust") not in (None, *CHOICES):
                raise ValueError(f"its trust is {values['trust']!r}")
            return cls(**{**values, "maps": maps})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"this is not a calibration: {error}; make one with `boundarymorph calibrate`") from None


def _checked(made: ProbabilityMap) -> ProbabilityMap:
    if not (np.isfinite([made.slope, made.intercept]).all() and made.slope > 0 and 0 < made.clip < 0.5):
        raise ValueError("a map needs a slope above 0, a finite intercept, and a clip above 0 and below 1/2")
    return made
