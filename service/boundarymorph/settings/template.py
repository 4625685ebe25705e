"""Write a boundarymorph.toml that describes every setting."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import get_args, get_origin

import orjson
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from boundarymorph.settings import Settings

HEAD = (
    "# Every setting with its default; nothing follows the = of a setting that is not set.\n"
    "# To change a setting, remove the # before its name."
)
PLACEHOLDER = "NAME"  # stands for a name that the operator chooses


def template() -> str:
    """Return a file in which each setting has its description and, as a comment, its default."""
    return "\n".join([HEAD, *_lines(Settings, "")]) + "\n"


def _lines(model: type[BaseModel], section: str) -> Iterator[str]:
    """Yield the lines of the settings of a model, and then those of its sections."""
    sections = {name: found for name, info in model.model_fields.items() if (found := _section(info))}
    for name, info in model.model_fields.items():
        if name not in sections:
            yield f"# {info.description}"
            yield f"#{name} = {_default(info)}".rstrip()
    for name, (inner, named) in sections.items():
        path = ".".join(filter(None, [section, name, PLACEHOLDER if named else ""]))
        said = model.model_fields[name].description or inspect.cleandoc(inner.__doc__ or "").splitlines()[0]
        yield from ("", f"# {said}")
        yield f"#[{path}]" if PLACEHOLDER in path else f"[{path}]"
        yield from _lines(inner, path)


def _section(info: FieldInfo) -> tuple[type[BaseModel], bool] | None:
    """Return the model of a section, and whether operators name such sections; None for a value."""
    kind, named = info.annotation, get_origin(info.annotation) is dict
    kind = get_args(kind)[1] if named else kind
    return (kind, named) if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _default(info: FieldInfo) -> str:
    """Return the default as TOML, or an empty string for a setting that is not set."""
    default = None if info.is_required() else info.get_default(call_default_factory=True)
    if default is None or isinstance(default, SecretStr):
        return ""
    return orjson.dumps(default, default=str).decode()
