"""Define the command `boundarymorph evaluate`.

Importing it is cheap, because `boundarymorph` imports it at every start.
"""

from __future__ import annotations

from boundarymorph.cli.common import command_of, console
from boundarymorph_evaluation.options import Evaluation


@command_of(Evaluation)
def evaluate(options: Evaluation) -> None:
    """Say whether the scorer helps on your data, by people's judgements, and what to use.

    With --methods it also compares selectors on all scores. Writes a report with tables and plots, and summary.json.
    """
    from boundarymorph_evaluation import evaluate

    evaluate.evaluate(options, console)
