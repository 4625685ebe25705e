"""How a request says which documents have something in common."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from boundarymorph.api.schemas import Message


class Distinct(Message):
    """At most so many documents that have something in common."""

    by: str = Field(
        "text",
        min_length=1,
        max_length=1_024,
        description="'text': title and text; or a field of the metadata, dots lead into objects. A document without "
        "the field has nothing in common with any other",
    )
    at_most: int = Field(1, ge=1, description="documents with the same value")
    k_counts: Literal["documents", "groups"] = Field(
        "documents",
        description="'groups': return k groups, ranked by their best document, each with its best 'at_most' documents",
    )


def _shortly(value: object) -> object:
    return {"by": value} if isinstance(value, str) else {} if value is True else None if value is False else value


DistinctBy = Annotated[Distinct | None, BeforeValidator(_shortly, json_schema_input_type=bool | str | Distinct | None)]
