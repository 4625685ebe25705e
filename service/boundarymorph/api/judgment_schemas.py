"""The wire format of judgements."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, Field, model_validator

from boundarymorph.api.schemas import Array, Id, Message

HIGHEST, DEEPEST = 100.0, 1_000_000


class Judgment(Message):
    """What a person said of a document: a grade, or whether it was clicked where it was shown."""

    document: Id = Field(description="its id in the index")
    grade: float | None = Field(None, ge=0, le=HIGHEST, description="0 for not relevant, as for a dismissed document")
    clicked: bool | None = Field(None, description="instead: whether it was chosen from what was shown")
    rank: int | None = Field(None, ge=1, le=DEEPEST, description="where it was shown, from 1; with 'clicked'")
    relevance: float | None = Field(
        None, ge=0, le=1, description="what the answer said of it: by this the metrics show when a calibration drifts"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.grade is None) == (self.clicked is None):
            raise ValueError("give either 'grade' or 'clicked'")
        if (self.clicked is None) != (self.rank is None):
            raise ValueError("'clicked' and 'rank' go together")
        return self


class Judgments(Message):
    """What people said of the answer to one query."""

    query: str = Field(min_length=1, pattern=r"\S", description="as in the request that was answered")
    index: str = Field(description="the index that it was about")
    calibration: str | None = Field(None, max_length=64, description="the one that the answer named, for the metrics")
    judgments: Array[Judgment] = Field(min_length=1, description="of any of its documents")


class Kept(BaseModel):
    """What is kept now."""

    kept: int = Field(description="judgements of the index")


class Deleted(BaseModel):
    """What was deleted."""

    deleted: int = Field(description="judgements")
