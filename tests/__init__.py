"""Tests compute in one thread a process: many processes run side by side, and threads that spin would slow all."""

import os

for library in ("OMP", "OPENBLAS", "MKL"):  # read when numpy is imported, and by the services that tests start
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
