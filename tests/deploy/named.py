"""The settings, commands, ports, and routes of the code, for tests of files that name them."""

import os
from collections.abc import Mapping
from functools import cache
from unittest.mock import patch

from typer.main import get_command

from boundarymorph.cli.main import app
from boundarymorph.cli.serve import RETRIEVER_PORT, SCORER_PORT
from boundarymorph.server.app import create_app, create_retriever_app, create_scorer_app
from boundarymorph.settings import Settings

_SETTINGS = Settings()
COMMANDS = {"gateway": "serve", "retriever": "retriever", "scorer": "scorer"}
PORTS = {"gateway": _SETTINGS.port, "retriever": RETRIEVER_PORT, "scorer": SCORER_PORT}
CREATE = {"gateway": create_app, "retriever": create_retriever_app, "scorer": create_scorer_app}


def role_of(name: str) -> str:
    """Return the role in the name of a target, a service, or a Deployment."""
    return next(role for role in COMMANDS if role in name)


@cache
def paths(role: str) -> set[str]:
    """Return the paths that a role answers to GET."""
    return {path for path, operations in CREATE[role](_SETTINGS).openapi()["paths"].items() if "get" in operations}


def settings_from(environment: Mapping[str, str]) -> Settings:
    """Return the settings of a process with these environment variables."""
    ours = {name: value for name, value in environment.items() if name.startswith("BOUNDARYMORPH_")}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BOUNDARYMORPH_")}
    with patch.dict(os.environ, {**kept, **ours}, clear=True):
        return Settings.load()


def check_command(arguments: list[str]) -> None:
    """Parse the arguments of a command; raise click's UsageError if they are wrong."""
    group = get_command(app)
    with group.make_context("boundarymorph", list(arguments)) as context:
        name, command, rest = group.resolve_command(context, list(arguments))  # type: ignore[attr-defined]
        command.make_context(name, rest, parent=context)
