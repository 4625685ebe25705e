"""The tests, each process of which computes in one thread: they run side by side, and spinning threads halve the speed."""

import os

for library in ("OMP", "OPENBLAS", "MKL"):  # read when numpy is imported, and by the services that tests start
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
