"""`make soak-models`: the state machines again and again with other seeds, until the time is over or one fails."""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

import pytest

from tests.stateful.profile import SOAK


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="no new pass begins after these")
    parser.add_argument("--only", default="", help="as pytest's -k")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    passes = 0
    while time.monotonic() < end:
        seed = random.SystemRandom().randrange(2**32)
        print(f"pass {passes + 1}, seed {seed}", flush=True)
        code = pytest.main(
            [
                str(Path(__file__).parent),
                *("--hypothesis-profile", SOAK, "--hypothesis-seed", str(seed)),
                *("--timeout", "0", "--exitfirst", "-n", "2", "-k", options.only),
            ]
        )
        if code:
            return int(code)
        passes += 1
    print(f"{passes} passes, no failure")
    return 0


if __name__ == "__main__":
    sys.exit(main())
