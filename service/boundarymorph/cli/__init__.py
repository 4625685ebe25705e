"""Define the command line, which is imported only where the service is installed."""

import sys

from boundarymorph.errors import missing_package


def run() -> None:
    """Run the command `boundarymorph`, or say what to install if packages are missing."""
    try:
        from boundarymorph.cli.main import main

        main()
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] == "boundarymorph":
            raise
        sys.exit(missing_package("the command boundarymorph", error.name, "service,models"))
