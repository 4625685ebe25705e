"""Where settings come from: environment variables, and the file that one of them names."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin

from pydantic import BaseModel
from pydantic_settings import TomlConfigSettingsSource

from boundarymorph import reading
from boundarymorph.errors import InvalidConfiguration, InvalidInput

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

PREFIX = "BOUNDARYMORPH_"
CONFIG_VARIABLE = "BOUNDARYMORPH_CONFIG"
CLIENT_VARIABLES = ("BOUNDARYMORPH_URL", "BOUNDARYMORPH_API_KEY")
OTHER_VARIABLES = (CONFIG_VARIABLE, *CLIENT_VARIABLES)  # which are not settings
# Kubernetes sets these in every pod for a Service whose name begins with "boundarymorph".
SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)", re.IGNORECASE)
SERVICE_LINK_URL = re.compile(r"(tcp|udp|sctp)://")
DEFAULT_CONFIG = Path("boundarymorph.toml")


def unknown_variables(settings: type[BaseModel]) -> list[str]:
    """Return an error message for each environment variable that has the prefix but is not a setting."""
    known = [name.upper() for name in _variables(settings)]
    found = []
    for variable, value in sorted(os.environ.items()):
        prefix, name = variable[: len(PREFIX)].upper(), variable[len(PREFIX) :].upper()
        if prefix != PREFIX or prefix + name in OTHER_VARIABLES or _is_setting(settings, name.split("__")):
            continue
        if SERVICE_LINK.fullmatch(variable) or SERVICE_LINK_URL.match(value):
            continue
        near = get_close_matches(name, known, n=1, cutoff=0.7)
        hint = f"; did you mean {PREFIX}{near[0]}?" if near else "; `boundarymorph config` lists the settings"
        found.append(f"there is no setting {variable}{hint}")
    return found


def _is_setting(model: type[BaseModel], parts: list[str]) -> bool:
    """Whether the parts of a variable's name lead to a field, or into a mapping whose keys the user chooses."""
    field = model.model_fields.get(parts[0].lower())
    if field is None:
        return False
    inner = field.annotation
    if len(parts) == 1 or get_origin(inner) is dict:
        return True
    return isinstance(inner, type) and issubclass(inner, BaseModel) and _is_setting(inner, parts[1:])


def _variables(model: type[BaseModel]) -> Iterator[str]:
    """Yield the names of all settings' variables, without the prefix."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from (f"{name}__{rest}" for rest in _variables(inner))
        else:
            yield name


def config_file() -> Path | None:
    """Return the file that CONFIG_VARIABLE names, or DEFAULT_CONFIG if it exists.

    Raises InvalidConfiguration if the named file does not exist.
    """
    named = os.environ.get(CONFIG_VARIABLE)
    if named is None:
        return DEFAULT_CONFIG if DEFAULT_CONFIG.is_file() else None
    path = Path(named)
    if not path.is_file():
        raise InvalidConfiguration(f"{CONFIG_VARIABLE} names {named}, which is not a file")
    return path


class TomlFile(TomlConfigSettingsSource):
    """A file of settings, with a byte order mark or without. Raises InvalidConfiguration for what is not UTF-8."""

    def _read_file(self, file_path: Path | Traversable) -> dict[str, Any]:
        try:
            text = reading.without_mark(file_path.read_bytes(), "the file")
            if (wrong := reading.complaint(text)) is not None:
                raise InvalidInput(wrong)
        except InvalidInput as error:
            raise InvalidConfiguration(f"bad settings: {file_path}: {error}") from None
        return tomllib.loads(text.decode())
