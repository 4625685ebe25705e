"""Run the command `boundarymorph` as `python -m boundarymorph.cli`."""

from boundarymorph.cli import run

run()
