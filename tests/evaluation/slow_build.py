"""A process to be killed while it scores."""

import sys
from pathlib import Path

from tests.evaluation.test_builder import Lengths, build

if __name__ == "__main__":
    build(Path(sys.argv[1]), Lengths(pause=0.5))
