"""The wire format of boosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from boundarymorph.api.schemas import Message
from boundarymorph.retrieval.boosts import LEAST, MOST, Decay, FieldValueFactor, Modifier, Rule, Shape
from boundarymorph.retrieval.filters import Filter, read_path

Weight = Annotated[float, Field(ge=LEAST, le=MOST)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
SHAPES: tuple[Shape, ...] = ("gauss", "exp", "linear")


class DecayFunction(Message):
    """A boost of 1 up to 'offset' away from the origin, and of 'decay' at 'scale' beyond that."""

    field: str = Field(description="A field of the metadata: a number, or a date in ISO 8601 or in seconds since 1970.")
    origin: Finite | str = Field(description='The value with the boost 1: a number, a date in ISO 8601, or "now".')
    scale: Finite | str = Field(
        description="The distance at which the boost is 'decay', above 0. For dates it is a duration in ms, s, m, h, "
        'or d, such as "30d".'
    )
    offset: Finite | str = Field(
        0, description="The distance within which the boost is 1, 0 or more. For dates it is a duration."
    )
    decay: float = Field(0.5, gt=0, lt=1, description="The boost at the distance 'scale'.")

    @model_validator(mode="before")
    @classmethod
    def _of_elasticsearch(cls, value: object) -> object:
        """Take the form of Elasticsearch, too: {"day": {"origin": "now", "scale": "30d"}}."""
        if isinstance(value, dict) and len(value) == 1:
            ((name, inner),) = value.items()
            return {"field": name, **inner} if isinstance(inner, dict) else value
        return value


class FactorFunction(Message):
    """A boost that follows a number of the metadata: 'factor' times it, with a 'modifier'."""

    field: str = Field(description="A field of the metadata that holds a number.")
    factor: Finite = Field(1, gt=0, description="A factor by which the number is multiplied first.")
    modifier: Modifier = Field(
        "none",
        description="The function of the number. The base of log, log1p, and log2p is 10, and that of the others is e.",
    )
    missing: Finite | None = Field(
        None, description="The value in place of a missing number. Without it, the boost is then 1."
    )


class BoostRule(Message):
    """A weight, a function, or their product, for the documents that match the filter."""

    filter: dict[str, Any] | None = Field(
        None, description="The documents that the rule applies to, in the language of the request's 'filter'."
    )
    weight: Weight | None = Field(None, description="The factor. 1 changes nothing.")
    gauss: DecayFunction | None = Field(None, description="A boost that falls as a normal distribution does.")
    exp: DecayFunction | None = Field(None, description="A boost that falls fastest at the origin.")
    linear: DecayFunction | None = Field(None, description="A boost that falls steadily.")
    field_value_factor: FactorFunction | None = Field(
        None, description="A boost that follows a number, such as the number of clicks."
    )

    @model_validator(mode="after")
    def _one_function(self) -> Self:
        given = [name for name in (*SHAPES, "field_value_factor") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"'{given[0]}' and '{given[1]}' are two rules; put each into an object of its own")
        if not given and self.weight is None:
            raise ValueError("give a 'weight', 'gauss', 'exp', 'linear' or 'field_value_factor'")
        return self


def rules_of(given: Sequence[BoostRule], now: float) -> list[Rule]:
    """Return the rules of a request.

    Args:
        given: The rules as sent.
        now: The present time in seconds since 1970.

    Raises:
        InvalidInput: If a rule is malformed.
        LimitExceeded: If a filter is too large.
    """
    rules = []
    for number, one in enumerate(given):
        place = f"boost.{number}"
        function: Decay | FieldValueFactor | None = None
        for shape in SHAPES:
            if (decay := getattr(one, shape)) is not None:
                function = Decay.from_fields(f"{place}.{shape}", shape, now=now, **dict(decay))
        if (factor := one.field_value_factor) is not None:
            path = read_path(factor.field, f"{place}.field_value_factor.field")
            function = FieldValueFactor(path, factor.factor, factor.modifier, factor.missing)
        filter = None if one.filter is None else Filter(one.filter, f"{place}.filter")
        rules.append(Rule(1.0 if one.weight is None else one.weight, function, filter))
    return rules
