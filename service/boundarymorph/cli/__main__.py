"""Runs the command `boundarymorph` as `python -m boundarymorph.cli`."""

from boundarymorph.cli.main import main

main()
