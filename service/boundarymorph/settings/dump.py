"""Writing the settings as a TOML file that loads again, without secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, SecretStr

from boundarymorph.settings.environment import PREFIX

MASK = "********"
_KEY = re.compile(r"[^:]+:[^:]+:[0-9a-f]{64}(:[^:]*)?")  # with a hash; anything else may be the secret itself
_SECRET_PARAMETER = re.compile(r"(?i)[?&][^=&]*(pass|key|token|secret|auth|sig)[^=&]*=")  # in a URL's query


def to_toml(settings: BaseModel) -> str:
    """Return the settings as TOML: flat values first, then a table for each section.

    Unset values and secrets become comments.
    """
    return _table(masked(settings), ())


def _table(values: Mapping[str, Any], path: tuple[str, ...]) -> str:
    lines, tables = [], []
    for name, value in values.items():
        if isinstance(value, Mapping):
            inner = (*path, name)
            tables.append(f"\n{_header(inner)}{_table(value, inner)}")
        elif value is None:
            lines.append(f"# {name} is unset\n")
        elif value == MASK:
            variable = PREFIX + "__".join((*path, name)).upper()
            lines.append(f"# {name} is a secret and not shown; set {variable}\n")
        else:
            lines.append(tomli_w.dumps({name: value}))
    return "".join(lines + tables)


def _header(path: tuple[str, ...]) -> str:
    """Return the header line of a table, with each name quoted if necessary."""
    names = [tomli_w.dumps({name: 0}).removesuffix(" = 0\n") for name in path]
    return f"[{'.'.join(names)}]\n"


def masked(value: object, name: str = "") -> Any:
    """Return a value as plain data, with MASK in place of secrets and of URLs that contain one."""
    match value:
        case BaseModel():
            return {inner: masked(getattr(value, inner), inner) for inner in type(value).model_fields}
        case _ if name == "body":  # sent to a language model
            return _without_texts(value)
        case tuple() if name == "keys":
            return list(value) if all(map(_KEY.fullmatch, value)) else MASK
        case Mapping():
            return {inner: masked(held) for inner, held in value.items()}
        case SecretStr():
            text = value.get_secret_value()
            return text if not text or (name == "url" and not _holds_secret(text)) else MASK
        case Path():
            return str(value)
        case tuple():
            return MASK if any(isinstance(held, str) and _holds_secret(held) for held in value) else list(value)
        case str():
            return MASK if _holds_secret(value) else value
        case _:
            return value


def _without_texts(value: object) -> Any:
    """Return JSON with MASK in place of each string, and of each list."""
    if isinstance(value, Mapping):
        return {inner: _without_texts(held) for inner, held in value.items()}
    return MASK if isinstance(value, str | list) else value


def _holds_secret(text: str) -> bool:
    """Whether this is a URL that may contain a password, before its host or in its query."""
    _, separator, rest = text.partition("://")
    return bool(separator) and ("@" in rest or _SECRET_PARAMETER.search(rest) is not None)
