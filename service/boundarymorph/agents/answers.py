"""The answers of the tools, described for the language models that read them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class SelectedText(BaseModel):
    id: str = Field(description="For fetch, and to cite.")
    title: str | None = Field(None, description="If it has one.")
    text: str = Field(description="All of it, or its beginning if cut.")
    cut: bool | None = Field(None, description="True if the text is cut; use fetch to read all of it.")
    relevance: float = Field(description="From 0 to 1.")
    url: str | None = Field(None, description="Where a person can read it. Detailed answers only.")
    judged: bool = Field(
        description="Whether the relevance is the accurate model's judgement, or inferred from others."
    )
    uncertainty: float | None = Field(
        None, description="Standard deviation of an inferred relevance. Detailed answers only."
    )
    retrieval_rank: int | None = Field(None, description="Its rank in plain retrieval. Detailed answers only.")
    metadata: dict[str, Any] | None = Field(None, description="Fields to filter by. Detailed answers only.")


class Costs(BaseModel):
    budget: int = Field(description="The most judgements allowed.")
    judgements: int = Field(description="Judgements made for this call.")
    reused: int = Field(description="Judgements known from earlier calls with the same query, at no cost.")
    expected_loss: float = Field(description="Share of relevance that a larger budget may still gain.")


class SelectedTexts(BaseModel):
    documents: list[SelectedText] = Field(description="The most relevant first.")
    notes: list[str] = Field(description="What to know about this answer, and what to do about it.")
    answerable: float | None = Field(
        None, description="Probability that anything that was searched, returned or not, answers the query."
    )
    costs: Costs | None = Field(None, description="Detailed answers only.")


class Extended(BaseModel):
    id: str = Field(description="The id in the arguments, or the position of the text, from 0.")
    relevance: float = Field(description="From 0 to 1.")
    judged: bool = Field(description="Whether it has a score of yours, or its relevance is inferred from your scores.")
    uncertainty: float | None = Field(None, description="Standard deviation of an inferred relevance.")


class ExtendedScores(BaseModel):
    documents: list[Extended] = Field(description="The most relevant first.")
    notes: list[str] = Field(description="What to know about this answer.")
    answerable: float | None = Field(None, description="Probability that any of the texts answers the query.")


class ListedField(BaseModel):
    type: str = Field(description="Of its values: string, number, boolean, array, object, null.")
    examples: list[Any] = Field(description="Some of its values.")


class ListedIndex(BaseModel):
    name: str = Field(description="Value for the argument index.")
    description: str | None = Field(None, description="What its documents are. Not there: nobody has said it.")
    documents: int = Field(description="Number of documents.")
    fields: dict[str, ListedField] | None = Field(
        None, description="Fields of the metadata in a sample, for filter and distinct. Not there: not looked at."
    )


class ListedIndexes(BaseModel):
    indexes: list[ListedIndex] = Field(description="The indexes that you may use.")
    notes: list[str] = Field(description="What to know about this answer.")


class Hit(BaseModel):
    id: str = Field(description="For fetch.")
    title: str = Field(description="Of the document, or the beginning of its text.")
    url: str = Field(description="For citations.")


class Hits(BaseModel):
    results: list[Hit] = Field(description="The most relevant first.")


class FetchedDocument(BaseModel):
    id: str = Field(description="The id in the arguments.")
    title: str = Field(description="Of the document, or the beginning of its text.")
    text: str = Field(description="The text from the offset on.")
    url: str = Field(description="For citations.")
    metadata: dict[str, Any] = Field(description="Fields of the document.")
    next_offset: int | None = Field(None, description="If there is more: call fetch again with this offset.")
