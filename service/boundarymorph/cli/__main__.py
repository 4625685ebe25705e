"""`python -m boundarymorph.cli` is the command `boundarymorph`."""

from boundarymorph.cli.main import main

main()
