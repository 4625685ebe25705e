"""The order in which ASReview reads the records of one review. It runs in an environment of its own, which has
`asreview`, and imports nothing of this project.

Reads {"records": [{"title", "abstract"}], "labels": [0 or 1], "seed": a position or null, "model": a name, "read": how
many} from standard input, and writes the positions in the order in which they were read, without the seed's. Until the
model can be fitted, records are read as they come, as its own simulation does.
"""

import json
import sys
from importlib import import_module
from typing import Any


def main() -> None:
    given: dict[str, Any] = json.load(sys.stdin)
    asreview = import_module("asreview")
    models, queriers, stoppers = (
        import_module(f"asreview.models.{part}") for part in ("models", "queriers", "stoppers")
    )
    first = asreview.ActiveLearningCycle(querier=queriers.TopDown(), stopper=stoppers.IsFittable())
    learning = asreview.ActiveLearningCycle.from_meta(models.get_ai_config(given["model"])["value"])
    learning.n_query = lambda results: max(1, len(results) // 20)
    records = import_module("pandas").DataFrame(given["records"])
    simulation = asreview.Simulate(
        records, given["labels"], [first, learning], stopper=given["read"], print_progress=False
    )
    seed = given["seed"]
    if seed is not None:
        simulation.label([seed])
    simulation.review()
    order = [int(position) for position in simulation._results["record_id"]]
    json.dump([position for position in order if position != seed], sys.stdout)


if __name__ == "__main__":
    main()
