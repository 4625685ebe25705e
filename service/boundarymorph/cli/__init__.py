"""The command line, of the service: it is imported where the service is installed."""

import sys

from boundarymorph.errors import missing_package


def run() -> None:
    """Run the command `boundarymorph`. Where packages of the service are missing, one sentence says what to install."""
    try:
        from boundarymorph.cli.main import main

        main()
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] == "boundarymorph":
            raise
        sys.exit(missing_package("the command boundarymorph", error.name, "service,models"))
