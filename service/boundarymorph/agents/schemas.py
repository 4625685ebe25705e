"""Arguments and answers of the tools, described for the language models that read them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from boundarymorph.api.schemas import Message

DEFAULT_K = 10
LONGEST_QUERY = 10_000  # characters; the service may allow less


class SelectDocuments(Message):
    query: str = Field(min_length=1, max_length=LONGEST_QUERY, description="What the documents are to be about.")
    index: str = Field(min_length=1, description="Where to look; list_indexes names the indexes.")
    k: int | None = Field(
        None, ge=1, description=f"How many documents you want: {DEFAULT_K}, unless you say otherwise."
    )
    max_tokens: int | None = Field(
        None,
        ge=200,
        description="Instead of k: as many documents as fit into so many tokens. The answer then has no more tokens.",
    )
    budget: int | Literal["auto"] | None = Field(
        None,
        description="How many documents may be judged by the accurate model; more are better and slower. "
        '"auto" stops when more would hardly help. The service has a default.',
    )
    filter: dict[str, Any] | None = Field(
        None,
        description='Only documents whose metadata pass it: {"year": {"gte": 2020}, "kind": "review"}. Operators: eq, '
        'ne, in, nin, gt, gte, lt, lte, exists; combine with {"and": [...]}, {"or": [...]}, {"not": {...}}.',
    )
    response_format: Literal["concise", "detailed"] = Field(
        "concise",
        description="concise: titles and texts. detailed: also metadata, how certain each relevance is, and costs.",
    )


class ListIndexes(Message):
    pass


class Search(Message):
    query: str = Field(min_length=1, max_length=LONGEST_QUERY, description="What the documents are to be about.")
    index: str | None = Field(None, description="Where to look; needed if there are several indexes.")


class Fetch(Message):
    id: str = Field(min_length=1, description="An id that search or select_documents gave you, unchanged.")
    offset: int = Field(
        0, ge=0, description="Characters of the text to skip: the next_offset of an answer that was cut."
    )


class SelectedText(BaseModel):
    id: str = Field(description="For fetch, and to cite.")
    title: str | None = Field(None, description="If it has one.")
    text: str = Field(description="All of it, or its beginning if cut.")
    cut: bool | None = Field(None, description="True if there is more of the text: fetch has the whole.")
    relevance: float = Field(description="From 0 to 1.")
    url: str | None = Field(None, description="Where a person can read it. Detailed answers only.")
    judged: bool | None = Field(
        None, description="Judged by the accurate model, or inferred from others. Detailed answers only."
    )
    uncertainty: float | None = Field(
        None, description="Standard deviation of an inferred relevance. Detailed answers only."
    )
    retrieval_rank: int | None = Field(None, description="Where plain retrieval had it. Detailed answers only.")
    metadata: dict[str, Any] | None = Field(None, description="Fields to filter by. Detailed answers only.")


class Costs(BaseModel):
    budget: int = Field(description="Judgements that were allowed.")
    judgements: int = Field(description="Made for this call.")
    reused: int = Field(description="Known from earlier calls with the same query; they cost nothing again.")
    expected_loss: float = Field(description="Share of relevance that a larger budget may still bring.")


class SelectedTexts(BaseModel):
    documents: list[SelectedText] = Field(description="The most relevant first.")
    notes: list[str] = Field(description="What to know about this answer, and what to do about it.")
    costs: Costs | None = Field(None, description="Detailed answers only.")


class Index(BaseModel):
    name: str = Field(description="For the argument index.")
    documents: int = Field(description="How many it holds.")


class Indexes(BaseModel):
    indexes: list[Index] = Field(description="Those that you may use.")
    notes: list[str] = Field(description="What to know about this answer.")


class Hit(BaseModel):
    id: str = Field(description="For fetch.")
    title: str = Field(description="Of the document, or the beginning of its text.")
    url: str = Field(description="To cite it by.")


class Hits(BaseModel):
    results: list[Hit] = Field(description="The most relevant first.")


class FetchedDocument(BaseModel):
    id: str = Field(description="As it was asked for.")
    title: str = Field(description="Of the document, or the beginning of its text.")
    text: str = Field(description="From the offset on.")
    url: str = Field(description="To cite it by.")
    metadata: dict[str, Any] = Field(description="Fields of the document.")
    next_offset: int | None = Field(None, description="If there is more: call fetch again with this offset.")


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a model without references, titles, and null as the type of optional fields, which mean
    nothing to a language model."""
    schema = model.model_json_schema()
    plain = _plain(schema, schema.pop("$defs", {}))
    plain.pop("description", None)
    assert isinstance(plain, dict)
    plain.setdefault("properties", {})
    return plain


def _plain(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_plain(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _plain(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    rest = {name: part for name, part in schema.items() if name not in ("title", "default", "anyOf")}
    if schema.get("default") is not None:
        rest["default"] = schema["default"]
    kinds = [part for part in schema.get("anyOf", ()) if part != {"type": "null"}]
    if len(kinds) == 1:
        rest = {**_plain(kinds[0], definitions), **rest}
    elif kinds:
        rest["anyOf"] = kinds
    properties = rest.pop("properties", None)
    plain = {name: _plain(part, definitions) for name, part in rest.items()}
    if properties is not None:  # a property may be called title
        plain["properties"] = {name: _plain(part, definitions) for name, part in properties.items()}
    return plain
