"""The settings as a file that loads again, without secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, SecretStr

from boundarymorph.settings.environment import PREFIX

MASK = "********"
_SECRET_PARAMETER = re.compile(r"(?i)[?&][^=&]*(pass|key|token|secret|auth|sig)[^=&]*=")  # of a URL


def to_toml(settings: BaseModel) -> str:
    """Flat values first, then one table each for the nested ones. Unset values are comments, and so are secrets."""
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
    """The line of a table, its name quoted where it has to be."""
    names = [tomli_w.dumps({name: 0}).removesuffix(" = 0\n") for name in path]
    return f"[{'.'.join(names)}]\n"


def masked(value: object, name: str = "") -> Any:
    """A value as plain data, with MASK in place of secrets, and of URLs that hold one."""
    match value:
        case BaseModel():
            return {inner: masked(getattr(value, inner), inner) for inner in type(value).model_fields}
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


def _holds_secret(text: str) -> bool:
    """Whether this is a URL that may hold a password: before its host, or in its query."""
    _, separator, rest = text.partition("://")
    return bool(separator) and ("@" in rest or _SECRET_PARAMETER.search(rest) is not None)
