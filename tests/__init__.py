"""Tests compute in one thread per process.

Many processes run side by side, and spinning threads would slow them all.
"""

import os

for library in ("OMP", "OPENBLAS", "MKL"):  # numpy's import and the services of tests read these
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
