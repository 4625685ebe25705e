"""Arguments and answers of the tools, described for the language models that read them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from boundarymorph.api.schemas import Array, Message, QueryText

DEFAULT_K = 10
LONGEST_QUERY = 10_000  # characters; the service may allow less


class SelectDocuments(Message):
    query: QueryText = Field(max_length=LONGEST_QUERY, description="What the documents should be about.")
    further_queries: Array[str] | None = Field(
        None,
        description="Other questions that the documents may answer instead, for one set with one budget. Not together "
        "with max_tokens, min_relevance, distinct, diversity or an automatic budget.",
    )
    index: str | None = Field(
        None, min_length=1, description="The index to search; needed if there are several. list_indexes names them."
    )
    k: int | None = Field(None, ge=1, description=f"How many documents you want; {DEFAULT_K} by default.")
    max_tokens: int | None = Field(
        None,
        ge=200,
        description="Instead of k: as many documents as fit into this many tokens, the limit of the answer.",
    )
    min_relevance: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Only documents that are likely at least so relevant, from 0 to 1: k of them at most, or none.",
    )
    distinct: bool | str | None = Field(
        None,
        description="true: no two documents with the same text. The name of a metadata field: only the best document "
        'for each of its values, such as "url" where an index holds parts of pages.',
    )
    diversity: float | None = Field(
        None,
        ge=0,
        le=1,
        description="How much the documents should differ from each other: 0, the default, is by relevance alone.",
    )
    budget: int | Literal["auto"] | None = Field(
        None,
        description="How many documents may be judged by the accurate model; more are better and slower. "
        '"auto" stops when more would hardly help. The service has a default.',
    )
    instruction: str | None = Field(
        None,
        min_length=1,
        max_length=LONGEST_QUERY,
        description="What counts as relevant beyond the query, in a sentence. Not every service takes it.",
    )
    filter: dict[str, Any] | None = Field(
        None,
        description='Only documents whose metadata match it: {"year": {"gte": 2020}, "kind": "review"}. Operators: eq, '
        'ne, in, nin, gt, gte, lt, lte, exists; combine with {"and": [...]}, {"or": [...]}, {"not": {...}}.',
    )
    exclude_ids: Array[str] | None = Field(
        None, description="Ids of documents that you have already, unchanged: they are not returned again."
    )
    response_format: Literal["concise", "detailed"] = Field(
        "concise",
        description="concise: titles and texts. detailed: also metadata, how certain each relevance is, and costs.",
    )


class ListIndexes(Message):
    pass


class Search(Message):
    query: QueryText = Field(max_length=LONGEST_QUERY, description="What the documents should be about.")
    index: str | None = Field(None, description="The index to search; needed if there are several.")


class Fetch(Message):
    id: str = Field(min_length=1, description="An id that search or select_documents gave you, unchanged.")
    offset: int = Field(
        0, ge=0, description="Characters of the text to skip: the next_offset of an answer that was cut."
    )


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
    costs: Costs | None = Field(None, description="Detailed answers only.")


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


def type_of(value: object) -> str:
    """Return JSON's name of a value's type."""
    kinds: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (bool, "boolean"),
        ((int, float), "number"),
        (str, "string"),
        (list, "array"),
        (dict, "object"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), "null")


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
