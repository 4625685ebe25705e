"""`make soak NAME=models`: repeats the state machines with different seeds, until the time is over or one fails."""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from pathlib import Path

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
        command = [
            sys.executable,
            "-m",
            "pytest",
            str(Path(__file__).parent),
            "--exitfirst",
            "--timeout",
            "0",
            "-n",
            "2",
        ]
        command += ["--hypothesis-profile", SOAK, "--hypothesis-seed", str(seed), "-k", options.only]
        code = subprocess.run(command, check=False).returncode
        if code:
            return code
        passes += 1
    print(f"{passes} passes, no failure")
    return 0


if __name__ == "__main__":
    sys.exit(main())
