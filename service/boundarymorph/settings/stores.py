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
    search: dict[str, int | float | str | bool] = Field(
        default_factory=dict, description="search parameters of its index, such as nprobe"
    )


class AttachedCollection(Attached):
    """An existing collection in Milvus, and the names of its fields."""

    words: bool = Field(False, description="BM25 over the texts of each pool, which are fetched for it")


class StoreSettings(BaseModel, extra="forbid"):
    """A store beside the indexes of this service. Its tables are searched and read, never changed."""

    url: SecretStr = Field(
        SecretStr(""), description="pgvector://, lancedb://, qdrant://, elasticsearch://, opensearch:// or milvus://"
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


MilvusKind = Literal["flat", "ivf", "hnsw", "diskann", "autoindex"]
MilvusParameters = dict[MilvusKind, dict[str, int | float | str | bool]]


class MilvusSettings(BaseModel, extra="forbid"):
    """Milvus instead of the indexes of this machine, if there is a url."""

    url: str | None = Field(None, min_length=1, description="http://, https://, or a file PATH.db: milvus-lite")
    token: SecretStr | None = Field(None, description="a token, or USER:PASSWORD")
    database: str = Field("", description="the default database if empty")
    prefix: str = Field(
        "boundarymorph_", pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$", description="of the collections that we create"
    )
    timeout_seconds: float = Field(10.0, gt=0, description="one call, retries included")
    connections: int = Field(16, ge=1, description="concurrent searches")
    consistency: Literal["strong", "session", "bounded", "eventually"] = Field(
        "strong", description="of searches: strong sees all acknowledged writes, and waits for them"
    )
    schema_seconds: float = Field(
        5.0, ge=0, description="time until an index in use is described again; 0: for every request"
    )
    half_precision: bool = Field(True, description="vectors of new indexes as float16, if the server supports it")
    build: MilvusParameters = Field(default_factory=dict, description="of indexes by kind, as in hnsw = {M = 32}")
    search: MilvusParameters = Field(default_factory=dict, description="of searches by kind, as in ivf = {nprobe = 64}")
    collections: dict[str, AttachedCollection] = Field(default_factory=dict, description="your own, by index name")
