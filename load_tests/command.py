"""Running the product's command as a user does."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def output_of(command: Sequence[str], **environment: str) -> str:
    """What `boundarymorph ...` of this environment shows. Leaves with it where the command fails."""
    binary = Path(sys.executable).with_name(command[0])
    quiet = {"COLUMNS": "100", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(binary), *command[1:]],
        env={**os.environ, **quiet, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout.strip()
