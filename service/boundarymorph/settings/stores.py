"""The settings of stores: servers and folders in which others keep documents with vectors."""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr

SERVICE = "service"  # stands for the name of the encoder that a service runs


class Attached(BaseModel):
    """An existing table or collection in a store, and the names of its columns."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, frozen=True)

    table: str = Field(
        min_length=1, validation_alias=AliasChoices("table", "collection"), description="its name in the store"
    )
    id: str = Field("id", description="the primary key: strings or integers")
    vector: str = "vector"
    text: str = "text"
    title: str | None = None
    metadata: tuple[str, ...] | None = Field(
        None, description="columns that are metadata, or one of JSON with all of them; all other columns if unset"
    )
    encoder: str | None = Field(
        None, description='full name of what made its vectors, or "service"; if unset queries bring theirs'
    )
    words: bool = Field(True, description="BM25 over the texts of each pool, which are fetched for it")
    distance: Literal["cosine", "inner product", "l2"] = Field("cosine", description="of the index of its vectors")
    full_text: str | None = Field(None, description="a column of words that the store searches, for hybrid")
    writable: bool = Field(False, description="take uploads and deletions; needs one column of JSON for all metadata")
    digest: str | None = Field(None, description="a column for fingerprints, by which uploads know what has changed")
    search: dict[str, int | float | str | bool] = Field(
        default_factory=dict, description="search parameters of its index, such as nprobe"
    )


class StoreSettings(BaseModel, extra="forbid"):
    """A store of indexes: those that this service makes there, and tables of others, which are searched and read."""

    url: SecretStr = Field(
        SecretStr(""), description="pgvector://, lancedb://, qdrant://, elasticsearch://, opensearch:// or milvus://"
    )
    prefix: str = Field(
        "boundarymorph_",
        pattern=r"^[a-z][a-z0-9_]{0,39}$",
        description="of the tables that this service makes, fills and deletes",
    )
    api_key: SecretStr | None = None
    timeout_seconds: float = Field(10.0, gt=0, description="one call")
    connections: int = Field(16, ge=1, description="connections to it")
    schema_seconds: float = Field(5.0, ge=0, description="time until a table in use is described again")
    encoder: str | None = Field(
        SERVICE,
        description='of tables not in `indexes`: the full name of what made their vectors, or "service"',
    )
    indexes: dict[str, Attached] = Field(
        default_factory=dict, description="tables by index name; if empty, those whose columns can be guessed"
    )
