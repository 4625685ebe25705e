"""Scrapes of /metrics, and the differences between two of them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Samples:
    """One scrape. at: seconds since 1970, NaN if unknown; values: by name and labels."""

    at: float
    values: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)

    @classmethod
    def parsed(cls, text: str, at: float) -> Samples:
        """Parse Prometheus's text format. Raises ValueError if the text is something else."""
        values: defaultdict[str, dict[Labels, float]] = defaultdict(dict)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                values[sample.name][frozenset(sample.labels.items())] = sample.value
        return cls(at, values)

    def of(self, name: str, **labels: str) -> dict[Labels, float]:
        """Return the values of a name that have these labels."""
        wanted = labels.items()
        return {found: value for found, value in self.values.get(name, {}).items() if wanted <= found}

    def total(self, name: str, **labels: str) -> float:
        return sum(self.of(name, **labels).values())


@dataclass(frozen=True, slots=True)
class Span:
    """The time between two scrapes of a service, which may have restarted in between."""

    before: Samples
    now: Samples

    @property
    def seconds(self) -> float:
        """The length of the span; NaN, as all rates then are, if the time of its first scrape is unknown."""
        return max(self.now.at - self.before.at, 1e-9)

    def grown(self, name: str, **labels: str) -> dict[Labels, float]:
        """Return by how much counters grew; one that fell was reset."""
        old = self.before.of(name, **labels)
        return {
            found: value if value < old.get(found, 0.0) else value - old.get(found, 0.0)
            for found, value in self.now.of(name, **labels).items()
        }

    def count(self, name: str, **labels: str) -> float:
        return sum(self.grown(name, **labels).values())

    def rate(self, name: str, **labels: str) -> float:
        """Return the growth per second."""
        return self.count(name, **labels) / self.seconds

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """Return the growth of counters by the values of a label, the largest first, without zeros."""
        sums: defaultdict[str, float] = defaultdict(float)
        for found, value in self.grown(name, **labels).items():
            sums[dict(found).get(label, "")] += value
        return {key: sums[key] for key in sorted(sums, key=lambda key: -sums[key]) if sums[key] > 0}

    def mean(self, name: str, **labels: str) -> float:
        """Return the mean of a histogram; NaN if nothing was observed."""
        count = self.count(f"{name}_count", **labels)
        return self.count(f"{name}_sum", **labels) / count if count else math.nan

    def quantile(self, share: float, name: str, **labels: str) -> float:
        """Return a quantile of a histogram, linear within a bucket, as in Prometheus; NaN if nothing was observed."""
        sums: defaultdict[float, float] = defaultdict(float)
        for found, value in self.grown(f"{name}_bucket", **labels).items():
            sums[float(dict(found)["le"])] += value
        bounds = sorted(sums)
        if not bounds or not sums[bounds[-1]]:
            return math.nan
        wanted, low, below = share * sums[bounds[-1]], 0.0, 0.0
        for bound in bounds:
            if sums[bound] >= wanted:
                return low if math.isinf(bound) else low + (bound - low) * (wanted - below) / (sums[bound] - below)
            low, below = bound, sums[bound]
        return math.nan
