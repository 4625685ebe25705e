"""Dependencies of routes: their process, the caller, the parts behind them, and the media type that the caller prefers.

They are coroutines because FastAPI calls plain functions in threads, which takes time and loses the order of arrival.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from starlette import types
from starlette.convertors import PathConvertor, StringConvertor, register_url_convertor
from starlette.routing import BaseRoute, Match

from boundarymorph.access.access import Access
from boundarymorph.access.callers import Caller, Scope
from boundarymorph.api.schemas import Ready
from boundarymorph.errors import InvalidInput
from boundarymorph.inference.concurrency import CALLER, ON_BEHALF_OF
from boundarymorph.retrieval.document import Retriever
from boundarymorph.retrieval.interfaces import CalibrationSource, MemorySource
from boundarymorph.scoring.scorer import BatchingScorer, Scorer
from boundarymorph.selector.selector import Selector

if TYPE_CHECKING:  # a gateway loads neither FAISS nor ONNX
    from boundarymorph.retrieval.encoders import Encoder
    from boundarymorph.retrieval.interfaces import Catalog

JSON = "application/json"


def prefers(request: Request, kind: str) -> bool:
    """Whether the Accept header gives this media type a higher quality than JSON, which is sent otherwise."""
    accept = ",".join(request.headers.getlist("accept")).lower()
    qualities = dict(map(_quality, accept.split(",")))
    return _of(kind, qualities) > _of(JSON, qualities)


def _quality(part: str) -> tuple[str, float]:
    """Return the media range of one part of the header, and its quality."""
    media_range, *parameters = (piece.strip() for piece in part.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return media_range, float(value)
            except ValueError:
                return media_range, 0.0
    return media_range, 1.0


def _of(kind: str, qualities: dict[str, float]) -> float:
    """Return the quality of the most specific range that includes the media type; 0 if none does."""
    ranges = (kind, f"{kind.partition('/')[0]}/*", "*/*")
    return next((qualities[one] for one in ranges if one in qualities), 0.0)


ENCODED_SLASH = "%2F"


class _IndexName(StringConvertor):
    """The name of an index: one segment of the path, in which a slash of the name, STORE/TABLE, is encoded."""

    def convert(self, value: str) -> str:
        return value.replace(ENCODED_SLASH, "/")


class _AnyText(PathConvertor):
    """The rest of a path, line ends included: Starlette's `path` ends there, and would find another document."""

    regex = "(?s:.*)"


register_url_convertor("text", _AnyText())
register_url_convertor("index", _IndexName())


class WithSlash:
    """ASGI middleware that answers a path with a slash at its end as the path without, if only that has a route.

    Not for DELETE: some clients resolve /indexes/a/documents/.. to /indexes/a/ and would delete the index.
    """

    def __init__(self, app: types.ASGIApp, routes: Sequence[BaseRoute]) -> None:
        self._app, self._routes = app, routes

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        if scope["type"] == "http" and scope["path"].endswith("/") and scope["method"] != "DELETE":
            without = {**scope, "path": scope["path"].removesuffix("/")}
            if not self._has(scope) and self._has(without):
                scope["path"] = without["path"]
        await self._app(scope, receive, send)

    def _has(self, scope: types.Scope) -> bool:
        return any(route.matches(scope)[0] is not Match.NONE for route in self._routes)


class Service(Protocol):
    """The process of a route, and its parts once they are ready."""

    def health(self) -> Ready: ...
    def require(self, *, probed: bool = True) -> Any: ...


class Learning(CalibrationSource, MemorySource, Protocol):
    """Where what was learned of indexes and pools is."""


class HasSelector(Protocol):
    """Parts that include a selector."""

    @property
    def selector(self) -> Selector: ...
    @property
    def scorer(self) -> Scorer: ...
    @property
    def retriever(self) -> Learning: ...


class HasIndexes(Protocol):
    """Parts that include indexes in this process."""

    @property
    def catalog(self) -> Catalog: ...
    @property
    def encoder(self) -> Encoder: ...
    @property
    def retriever(self) -> Retriever: ...


COUNTED = "counted"  # attribute of the state of a request that is part of another one
BEARER = HTTPBearer(auto_error=False, description="an API key, if the service has keys")  # for the description alone


async def access(request: Request) -> Access:
    found: Access = request.app.state.access
    return found


async def service(request: Request) -> Service:
    found: Service = request.app.state.lifecycle
    return found


def allowed(scope: Scope) -> Callable[..., Awaitable[str]]:
    """Return a dependency that checks for a key of this scope and its rate limit, and gives the caller's name.

    If the path of the route has the `name` of an index, the key must be for that index.
    """

    async def caller(request: Request, _: Annotated[object, Security(BEARER)]) -> str:
        found = await access(request)
        identified = identify(request, found)
        request.state.permitted = permitted = identified.within(scope)
        await count(request, found, permitted)
        _refuse_unknown_parameters(request)
        _refuse_compressed(request)
        if (index := request.path_params.get("name")) is not None:
            permitted.require(index)
        return permitted.name

    return caller


async def count(request: Request, access: Access, caller: Caller) -> None:
    """Count a request in the caller's rate limits, unless it is part of one that was counted. Raises RateLimited."""
    if not getattr(request.state, COUNTED, False):
        request.state.decision = decision = await access.rates.take(caller.name)
        decision.check()


def identify(request: Request, access: Access) -> Caller:
    """Return who sends a request, for the access log too, and note on whose behalf its work is done: a key or, if there
    are none, the address that the request comes from; behind gateways, what they tell. Raises Unauthenticated."""
    caller = access.keys.caller(request.headers.get("authorization"))
    request.state.caller = caller.name
    if caller.keys:
        CALLER.set(caller.name)
    elif request.client is not None:  # within the process, a tool has the address of its own caller
        CALLER.set(_network(request.client.host))
    if access.behind_gateways and (told := request.headers.get(ON_BEHALF_OF)):
        CALLER.set(f"{caller.name}/{told}")
    return caller


def _network(host: str) -> str:
    """Return an address; of IPv6 the first half, since one machine has all of the second."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    return host if address.version == 4 else str(ip_network((int(address) >> 64 << 64, 64)))


def _refuse_unknown_parameters(request: Request) -> None:
    """Raises InvalidInput for an unknown query parameter."""
    route = request.scope["route"]
    described = (route.openapi_extra or {}).get("parameters", ())
    known = {field.alias for field in route.dependant.query_params}
    known |= {parameter["name"] for parameter in described if parameter["in"] == "query"}
    if unknown := sorted(set(request.query_params) - known):
        raise InvalidInput(
            f"there is no query parameter {unknown[0]!r} here; "
            + (f"there is {', '.join(sorted(known))}" if known else "there are none")
        )


def _refuse_compressed(request: Request) -> None:
    """Raises InvalidInput for a compressed body."""
    if (encoding := request.headers.get("content-encoding", "identity").lower()) != "identity":
        raise InvalidInput(f"the body has the content encoding {encoding!r}, which is not read here; send it as it is")


def permitted(request: Request) -> Caller:
    """Return the caller of a request that `allowed` has admitted, which knows the indexes that it may use."""
    found: Caller = request.state.permitted
    return found


async def ready(request: Request) -> Any:
    """Return the parts of the process, which have answered a probe."""
    return (await service(request)).require()


async def built(request: Request) -> Any:
    """Return the parts of the process, for what needs no model, and no other process."""
    return (await service(request)).require(probed=False)


async def scorer(parts: Annotated[Any, Depends(ready)]) -> BatchingScorer:
    found: BatchingScorer = parts.scorer
    return found


AccessOf = Annotated[Access, Depends(access)]
ServiceOf = Annotated[Service, Depends(service)]
CallerOf = Annotated[str, Depends(allowed(Scope.SELECT))]
BuiltOf = Annotated[HasSelector, Depends(built)]
SelectingOf = Annotated[HasSelector, Depends(ready)]
IndexesOf = Annotated[HasIndexes, Depends(built)]
RetrievingOf = Annotated[HasIndexes, Depends(ready)]
ScorerOf = Annotated[BatchingScorer, Depends(scorer)]
