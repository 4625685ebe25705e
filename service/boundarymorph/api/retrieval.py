"""Define the retriever's own routes, for gateways and commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import orjson
from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from boundarymorph.access.callers import Scope
from boundarymorph.access.limits import Access
from boundarymorph.api import bodies, openapi
from boundarymorph.api.dependencies import JSON, AccessOf, CallerName, ReadyPartsOf, allowed, permitted_caller
from boundarymorph.api.schemas import Array, Message
from boundarymorph.reading import check_bound
from boundarymorph.retrieval import frame
from boundarymorph.retrieval.document import Search, size_of_all
from boundarymorph.retrieval.encoders import Embeddings

FEW_NUMBERS = 2**17  # numbers in the vectors of a pool that is written in less than a millisecond
Route = TypeVar("Route", bound=Callable[..., Any])
router = APIRouter(tags=["retrieval"])


class Retrieve(Message):
    """A request for the `depth` documents of an index that are nearest to a query."""

    index: str = Field(description="The name of the index.")
    query: str = Field(description="The query, in plain words.")
    depth: Annotated[int, Field(ge=1)] = Field(description="The number of documents.")
    query_embedding: Array[float] | None = Field(
        None, description="The vector of the query, in place of the encoder's."
    )
    filter: dict[str, Any] | None = Field(None, description="Only documents whose metadata match it.")
    hybrid: bool = Field(False, description="Whether to rank candidates by vectors and words together.")
    documents: int = Field(
        0,
        ge=0,
        description="The number of documents that are likely to be read and come with the pool, without long ones.",
    )
    directions: bool = Field(False, description="Whether the main directions of the vectors suffice.")
    query_precision: Literal["float32", "float64"] = Field(
        "float64", description="The precision in which the query is normalised."
    )


class Ids(Message):
    """Documents of an index."""

    index: str = Field(description="The name of the index.")
    ids: Array[str] = Field(description="The ids of documents, which need not exist.")
    texts: bool = Field(
        True, description="Whether documents are read with text and title. Otherwise, these may be empty."
    )


class Query(Message):
    """A query to encode."""

    query: str = Field(description="The query, in plain words.")


class Texts(Message):
    """Documents to encode, each with its title."""

    texts: Array[str] = Field(description="The title and text of each document.")


def _post(
    path: str, summary: str, model: type[Message], *statuses: int, scope: Scope = Scope.SELECT, media_type: str = JSON
) -> Callable[[Route], Route]:
    """Return the decorator of a route.

    Args:
        path: The path.
        summary: The route in a few words.
        model: The model of the body.
        statuses: The status codes of errors beside those of every route.
        scope: The scope that a key needs.
        media_type: The type of the response.
    """
    schema = {"type": "string", "format": "binary"} if media_type != JSON else {"type": "object"}
    good = {"description": "Successful Response", "content": {media_type: {"schema": schema}}}
    return router.post(
        path,
        summary=summary,
        dependencies=[Depends(allowed(scope))],
        openapi_extra=openapi.body(model),
        response_class=Response,
        responses={200: good, **openapi.problems(413, 422, 503, *statuses)},
    )


@_post("/retrieve", "Retrieve a pool", Retrieve, 404, 409, media_type=frame.POOL_TYPE)
async def retrieve(request: Request, access: AccessOf, caller: CallerName, parts: ReadyPartsOf) -> Response:
    """Return ids, unit embeddings and scores, best first, in the safetensors format."""
    limits = access.settings.limits
    wanted = await bodies.read_model(request, access, Retrieve)
    permitted_caller(request).require(wanted.index)
    embedding = wanted.query_embedding
    check_bound("query", len(wanted.query), limits.query_characters, "characters")
    check_bound("depth", wanted.depth, limits.pool, "candidates")
    check_bound("documents", wanted.documents, limits.pool, "documents")
    check_bound("query_embedding", len(embedding or ()), limits.dimension, "numbers")
    vector = None if embedding is None else np.array(embedding, dtype=wanted.query_precision)
    search = Search(
        wanted.query,
        wanted.depth,
        vector,
        wanted.filter,
        wanted.hybrid,
        wanted.documents,
        wanted.directions,
    )
    retrieved = await bodies.while_connected(request, parts.retriever.retrieve(wanted.index, search, caller=caller))
    encode = partial(frame.encode_pool, retrieved)
    small = retrieved.pool.embeddings.size <= FEW_NUMBERS
    return Response(
        encode() if small else await access.work.parsing.run(encode, caller=caller), media_type=frame.POOL_TYPE
    )


@_post("/documents", "Read documents", Ids, 404)
async def documents(request: Request, access: AccessOf, caller: CallerName, parts: ReadyPartsOf) -> Response:
    """Return the text, title, and metadata of existing documents, in the order of the ids.

    If they are large, only the first of them are returned.
    """
    wanted = await _ids(request, access)
    read = parts.retriever.documents(wanted.index, wanted.ids, texts=wanted.texts, caller=caller)
    found = await bodies.while_connected(request, read)
    encode = partial(orjson.dumps, {"documents": list(found.values())})
    small = size_of_all(found.values()) < bodies.LARGE
    return Response(encode() if small else await access.work.parsing.run(encode, caller=caller), media_type=JSON)


@_post("/characters", "Measure documents", Ids, 404)
async def characters(request: Request, access: AccessOf, caller: CallerName, parts: ReadyPartsOf) -> Response:
    """Return the lengths of title and text together, in the order of the ids.

    The length of a missing document is null.
    """
    wanted = await _ids(request, access)
    found = await bodies.while_connected(request, parts.retriever.characters(wanted.index, wanted.ids, caller=caller))
    counts = [found.get(id) for id in wanted.ids]
    return Response(orjson.dumps({"characters": counts}), media_type=JSON)


@_post("/embed/query", "Encode a query", Query, media_type=frame.EMBEDDINGS_TYPE)
async def embed_query(request: Request, access: AccessOf, caller: CallerName, parts: ReadyPartsOf) -> Response:
    """Return a float32 unit vector in the safetensors format, and the name of its encoder."""
    limits = access.settings.limits
    wanted = await bodies.read_model(request, access, Query)
    check_bound("query", len(wanted.query), limits.query_characters, "characters")
    vector = await bodies.while_connected(request, parts.retriever.embed_query(wanted.query, caller=caller))
    encoded = Embeddings(vector[None], encoder=parts.encoder.name)
    return Response(frame.encode_embeddings(encoded), media_type=frame.EMBEDDINGS_TYPE)


@_post("/embed/documents", "Encode documents", Texts, media_type=frame.EMBEDDINGS_TYPE)
async def embed_documents(request: Request, access: AccessOf, caller: CallerName, parts: ReadyPartsOf) -> Response:
    """Return float32 unit vectors in the safetensors format, and the name of their encoder.

    They are in the order of the texts.
    """
    limits = access.settings.limits
    wanted = await bodies.read_model(request, access, Texts)
    check_bound("texts", len(wanted.texts), limits.pool, "texts")
    check_bound("texts", max(map(len, wanted.texts), default=0), limits.text_characters, "characters")
    encoded = await bodies.while_connected(request, parts.retriever.embed_documents(wanted.texts, caller=caller))
    named = replace(encoded, encoder=parts.encoder.name)
    return Response(
        await access.work.parsing.run(frame.encode_embeddings, named, caller=caller), media_type=frame.EMBEDDINGS_TYPE
    )


async def _ids(request: Request, access: Access) -> Ids:
    wanted = await bodies.read_model(request, access, Ids)
    permitted_caller(request).require(wanted.index)
    check_bound("ids", len(wanted.ids), access.settings.limits.pool, "ids")
    return wanted
