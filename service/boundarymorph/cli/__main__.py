"""`python -m boundarymorph.cli` is the command `boundarymorph`."""

from boundarymorph.cli.commands import main

main()
