"""Tests compute in one thread per process.

Many processes run side by side, and spinning threads would slow them all.
"""

import os

for library in ("OMP", "OPENBLAS", "MKL"):  # read when numpy is imported, and by the services that tests start
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
