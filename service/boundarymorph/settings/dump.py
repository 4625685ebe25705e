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
_PARAMETER = r"[?&][^=&]*(?i:pass|key|token|secret|auth|sig)[^=&]*="  # in a URL's query
_URL = re.compile(  # with one host, several, or none
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://((\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:\d+)?(,|(?=[/?]|$)))*"
    r"(?P<path>(/[^?#@]*)?)(\?[^#@]*)?"
)
_DATABASE = re.compile(r"(/\d*)?")
_CREDENTIALS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/.*@|://.*" + _PARAMETER)  # in a text that need not be a URL
_SECRET_PARAMETER = re.compile(_PARAMETER)


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
            return text if not text or (name == "url" and _may_be_shown(text)) else MASK
        case Path():
            return str(value)
        case tuple():
            return list(value) if all(masked(held, name) == held for held in value) else MASK
        case str():
            return value if _may_be_shown(value) or not (name == "url" or _CREDENTIALS.search(value)) else MASK
        case _:
            return value


def _without_texts(value: object) -> Any:
    """Return JSON with MASK in place of each string, and of each list."""
    if isinstance(value, Mapping):
        return {inner: _without_texts(held) for inner, held in value.items()}
    return MASK if isinstance(value, str | list) else value


def _may_be_shown(url: str) -> bool:
    """Whether this is a whole URL without a password: before its host, in its query or, of Redis, as its database."""
    found = _URL.fullmatch(url)
    if found is None or _SECRET_PARAMETER.search(url):
        return False
    return not found["scheme"].startswith("redis") or _DATABASE.fullmatch(found["path"]) is not None
