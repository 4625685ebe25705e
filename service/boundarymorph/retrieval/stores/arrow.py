"""Columns of Arrow: what their types mean here, their values as JSON, and comparisons with them in SQL."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pyarrow as arrow

from boundarymorph.retrieval.filters import Compare, Scalar
from boundarymorph.retrieval.stores.bounds import whole
from boundarymorph.retrieval.stores.times import Kind, Moment, Unit, of_number

OPERATORS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_EXACT_NUMBER = 2**53  # integers up to this are exact as floats
_IN_SECOND = {"D": Fraction(1, 86_400), **{unit: Fraction(1_000**n) for n, unit in enumerate(("s", "ms", "us", "ns"))}}
_SQL = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}


def kind_of(type: arrow.DataType) -> str:
    """Return the kind of a column, as for `guessed`."""
    if arrow.types.is_fixed_size_list(type):
        return "vector"
    return "json" if arrow.types.is_struct(type) or arrow.types.is_string(type) else ""


def compared(column: str, type: arrow.DataType, condition: Compare) -> str | bool:
    """Return an expression for a column that is not null; True if there is none, False if nothing can match."""
    if _is_list(type) and not arrow.types.is_list(type):
        return True
    inner = type.value_type if arrow.types.is_list(type) else type
    if time_of(inner) is not None:
        return _compared_time(column, type, inner, condition)
    match condition.type:
        case "text":
            fits = arrow.types.is_string(inner) or arrow.types.is_large_string(inner)
        case "number":
            fits = arrow.types.is_integer(inner) or arrow.types.is_floating(inner)
        case "true" | "false":
            fits = arrow.types.is_boolean(inner)
        case _:
            return False
    known = (arrow.types.is_primitive(inner) and not arrow.types.is_temporal(inner)) or arrow.types.is_string(inner)
    if not fits:
        return arrow.types.is_struct(inner) is False and not known
    if arrow.types.is_floating(inner):
        column = f"CAST({column} AS {'DOUBLE[]' if inner is not type else 'DOUBLE'})"
    values: list[Any] = list(condition.values)
    comparison = OPERATORS.get(condition.comparison, "")
    if arrow.types.is_integer(inner):
        named, values = whole(condition.comparison, values)
        comparison = OPERATORS.get(named, "")
        if any(abs(value) >= 2 ** (inner.bit_width - 1) for value in values):
            return True
    elif any(isinstance(value, int | float) and abs(value) > _EXACT_NUMBER for value in values):
        return True
    literals = [literal(value) for value in values]
    if not literals:
        return False
    if inner is not type:
        return True if comparison else f"array_has_any({column}, [{', '.join(literals)}])"
    return f"{column} {comparison} {literals[0]}" if comparison else f"{column} IN ({', '.join(literals)})"


def _compared_time(column: str, type: arrow.DataType, inner: arrow.DataType, condition: Compare) -> str | bool:
    """Do the same for times, which are integers there."""
    kind = time_of(inner)
    if condition.type != "text" or kind is None:
        return False
    moments = [Moment.read(str(value), kind) for value in condition.values]
    ticks = [moment.ticks(_IN_SECOND[_unit(inner)]) for moment in moments if moment is not None]
    if len(ticks) < len(moments):
        return True
    named, numbers = whole(condition.comparison, ticks)
    if any(abs(number) >= 2**63 for number in numbers):
        return True
    listed = ", ".join(map(str, numbers))
    if not listed:
        return False
    if inner is not type:
        if named != "in" or kind != "timestamp" or inner.tz:
            return True
        return f"array_has_any({column}, arrow_cast([{listed}], 'List(Timestamp({_SQL[inner.unit]}, None))'))"
    column = f"CAST({column} AS BIGINT)"
    return f"{column} IN ({listed})" if named == "in" else f"{column} {OPERATORS[named]} {listed}"


def time_of(type: arrow.DataType) -> Kind | None:
    """Return what times a column of a type, or of lists of it, holds."""
    type = type.value_type if _is_list(type) else type
    if arrow.types.is_timestamp(type):
        return "timestamp"
    return "date" if arrow.types.is_date(type) else "time" if arrow.types.is_time(type) else None


def _is_list(type: arrow.DataType) -> bool:
    return bool(arrow.types.is_list(type) or arrow.types.is_large_list(type) or arrow.types.is_fixed_size_list(type))


def _unit(type: arrow.DataType) -> Unit:
    """Return the unit of a time."""
    if arrow.types.is_date(type):
        return "D" if arrow.types.is_date32(type) else "ms"
    unit: Unit = type.unit
    return unit


def numbers_of(type: arrow.DataType) -> arrow.DataType:
    """Return a type with the numbers that its times are."""
    if arrow.types.is_struct(type):
        return arrow.struct([field.with_type(numbers_of(field.type)) for field in type])
    if _is_list(type):
        return arrow.list_(type.value_field.with_type(numbers_of(type.value_type)))
    if time_of(type) is None:
        return type
    return arrow.int64() if type.bit_width == 64 else arrow.int32()


def literal(value: Scalar) -> str:
    """Return a value in SQL."""
    match value:
        case str():
            return "'" + value.replace("'", "''") + "'"
        case bool():
            return "true" if value else "false"
        case _:
            return repr(value)


def quoted(name: str) -> str:
    """Return a name in SQL, which must have no backtick."""
    return f"`{name}`"


def plain(value: Any, type: arrow.DataType) -> Any:
    """Return a value as JSON, without the nulls that stand for missing fields. type: with the times that the numbers
    are."""
    match value:
        case dict():
            return {name: plain(each, type.field(name).type) for name, each in value.items() if each is not None}
        case list():
            inner = getattr(type, "value_type", type)
            return [plain(each, inner) for each in value]
        case int() if (kind := time_of(type)) is not None:
            return of_number(value, _unit(type), kind)
        case str() | int() | float() | None:
            return value
        case _:
            return str(value)
