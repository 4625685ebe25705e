"""Arguments as clients of language models send them: values in strings of JSON, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from boundarymorph import parsing
from boundarymorph.agents.rest import ADVICE, ToolError
from boundarymorph.agents.schemas import json_schema
from boundarymorph.api.schemas import Message
from boundarymorph.errors import BoundaryMorphError

MOST_NAMED = 5  # mistakes in a message
JUNCTIONS, LISTS = ("and", "or"), ("in", "nin")  # of filters
COMPARISONS = {"eq", "ne", "in", "nin", "gt", "gte", "lt", "lte", "exists"}
Arguments = TypeVar("Arguments", bound=Message)
_TYPES: dict[str, type[Any] | tuple[type[Any], ...]] = {
    "object": dict,
    "array": list,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}


def understood(model: type[Arguments], given: Mapping[str, Any]) -> Arguments:
    """Return the arguments of a tool. A value of any type but a string may also come as a string with its JSON, since
    many clients write it so. Raises ToolError, with all mistakes."""
    properties = json_schema(model)["properties"]
    values = {name: _value(value, _types(properties.get(name, {}))) for name, value in given.items()}
    if isinstance(values.get("filter"), dict):
        values["filter"] = _filter(values["filter"])
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ToolError(f"{_mistakes(error)}. {ADVICE['invalid-input']}") from None


def _mistakes(error: ValidationError) -> str:
    """Describe each mistake, those of one argument once: it may have had several types."""
    found: dict[str, str] = {}
    for detail in error.errors(include_url=False, include_input=False):
        name = str(detail["loc"][0]) if detail["loc"] else "arguments"
        words = parsing.in_words(detail, error.title)
        if detail["type"] == "extra_forbidden":
            found[name] = words.replace("unknown field", "unknown argument")
        elif name in found and len(detail["loc"]) > 1:
            found[name] += f", or {words[:1].lower()}{words[1:]}"
        else:
            found[name] = f"{name}: {words}"
    more = f" (and {len(found) - MOST_NAMED} more)" if len(found) > MOST_NAMED else ""
    return "; ".join(list(found.values())[:MOST_NAMED]) + more


def _types(schema: Mapping[str, Any]) -> set[str]:
    """Return the types that a schema allows."""
    kinds = schema.get("anyOf", [schema])
    return {kind["type"] for kind in kinds if "type" in kind}


def _value(value: Any, types: set[str]) -> Any:
    """Return the value that is meant by one: that of its JSON, or a whole number without its fraction."""
    others = types - {"string"}
    if isinstance(value, str) and others:
        read = _read(value)
        if any(_is(read, kind) for kind in others):
            value = read
    if isinstance(value, float) and "integer" in types and "number" not in types and value.is_integer():
        return int(value)
    return value


def _is(value: Any, kind: str) -> bool:
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _filter(filter: Any) -> Any:
    """Return a filter whose parts that cannot be strings are none."""
    if not isinstance(filter, dict):
        return filter
    return {name: _part(name, value) for name, value in filter.items()}


def _part(name: str, value: Any) -> Any:
    read = _read(value) if isinstance(value, str) else value
    if name in JUNCTIONS and isinstance(read, list):
        return [_filter(_value(each, {"object"})) for each in read]
    if name == "not" and isinstance(read, dict):
        return _filter(read)
    if name in LISTS and isinstance(read, list):
        return read
    if isinstance(read, dict) and read.keys() <= COMPARISONS:
        return {each: _part(each, compared) if each in LISTS else compared for each, compared in read.items()}
    return value


def _read(text: str) -> Any:
    """Return the value of a string of JSON; None if it is not JSON."""
    try:
        return parsing.parse(text.encode(errors="surrogatepass"))
    except BoundaryMorphError:
        return None
