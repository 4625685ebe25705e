"""Give routes the process and its parts, the caller, and the preferred media type.

Dependencies are coroutines because FastAPI calls plain functions in threads, which takes time and loses the order of
arrival.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from ipaddress import ip_address, ip_network
from typing import Annotated, Any, cast

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer

from boundarymorph.access.callers import Caller, Scope
from boundarymorph.access.limits import Access
from boundarymorph.api.lifecycle import Lifecycle, Parts
from boundarymorph.api.visit import visit_of
from boundarymorph.errors import InvalidInput
from boundarymorph.inference.concurrency import ON_BEHALF_OF
from boundarymorph.scoring.scorer import BatchingScorer

JSON = "application/json"


def prefers_media_type(request: Request, kind: str) -> bool:
    """Return whether the Accept header gives this media type a higher quality than JSON."""
    accept = ",".join(request.headers.getlist("accept")).lower()
    qualities = dict(map(_parsed_quality, accept.split(",")))
    return _quality_of(kind, qualities) > _quality_of(JSON, qualities)


def _parsed_quality(part: str) -> tuple[str, float]:
    """Return the media range of a part of the header, and its quality."""
    media_range, *parameters = (piece.strip() for piece in part.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return media_range, float(value)
            except ValueError:
                return media_range, 0.0
    return media_range, 1.0


def _quality_of(kind: str, qualities: dict[str, float]) -> float:
    """Return the quality of the most specific range that includes the media type, else 0."""
    ranges = (kind, f"{kind.partition('/')[0]}/*", "*/*")
    return next((qualities[one] for one in ranges if one in qualities), 0.0)


BEARER = HTTPBearer(auto_error=False, description="An API key, if the service has keys.")  # only for OpenAPI


async def access(request: Request) -> Access:
    found: Access = request.app.state.access
    return found


async def service(request: Request) -> Lifecycle:
    found: Lifecycle = request.app.state.lifecycle
    return found


def allowed(scope: Scope) -> Callable[..., Awaitable[str]]:
    """Return a dependency that requires a key with this scope, and gives the caller's name.

    It checks the caller's rate limits, too. If the path of the route has the `name` of an index, the key must be for
    that index.
    """

    async def caller(request: Request, _: Annotated[object, Security(BEARER)]) -> str:
        found = await access(request)
        identified = identify(request, found)
        visit_of(request).permitted = permitted = identified.restrict(scope)
        await count(request, found, permitted)
        _refuse_unknown_parameters(request)
        if (index := request.path_params.get("name")) is not None:
            permitted.require(index)
        return permitted.name

    return caller


async def count(request: Request, access: Access, caller: Caller) -> None:
    """Count a request in the caller's rate limits and among the requests in progress.

    A request that is part of another one is not counted again.

    Raises:
        RateLimited: If the caller has reached a limit.
        Overloaded: If too many requests are in progress.
    """
    visit = visit_of(request)
    if not visit.counted:
        visit.decision = await access.rates.take(caller.name)
        visit.decision.check()
        access.enter(visit.caller, visit.until_end)


def identify(request: Request, access: Access) -> Caller:
    """Return the caller of a request, and note in its visit on whose behalf the work is done.

    That is the name of the key or, if the service has no keys, the address of the client. Behind gateways, it is the
    caller that the gateway names.

    Raises:
        Unauthenticated: If the key is missing or unknown.
    """
    caller, visit = access.keys.caller(request.headers.get("authorization")), visit_of(request)
    visit.name = caller.name
    if caller.keys:
        visit.caller = caller.name
    elif request.client is not None:  # within the process, a tool has the address of its own caller
        visit.caller = _network(request.client.host)
    if access.behind_gateways and (behalf := request.headers.get(ON_BEHALF_OF)):
        visit.caller = f"{caller.name}/{behalf}"
    return caller


def _network(host: str) -> str:
    """Return an address; of IPv6 the first half, as one machine has the whole second half."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    return host if address.version == 4 else str(ip_network((int(address) >> 64 << 64, 64)))


def _refuse_unknown_parameters(request: Request) -> None:
    """Raise InvalidInput for an unknown query parameter."""
    route = request.scope["route"]
    known = {field.alias for field in route.dependant.query_params}
    if getattr(route, "takes_any_parameter", False):
        return
    if unknown := sorted(set(request.query_params) - known):
        raise InvalidInput(
            f"there is no query parameter {unknown[0]!r} here; "
            + (f"there is {', '.join(sorted(known))}" if known else "there are none")
        )


def permitted_caller(request: Request) -> Caller:
    """Return the caller of a request that `allowed` has admitted."""
    found = visit_of(request).permitted
    assert found is not None, "the route has no dependency on `allowed`"
    return found


async def caller_name(request: Request) -> str:
    """Return on whose behalf an identified request is answered."""
    return visit_of(request).caller


async def ready_parts(request: Request) -> Parts:
    """Return the parts of the process after they have answered a first probe."""
    return (await service(request)).require()


async def built_parts(request: Request) -> Parts:
    """Return the parts of the process for work that needs neither a model nor another process."""
    return (await service(request)).require(probed=False)


async def scorer(parts: Annotated[Parts, Depends(ready_parts)]) -> BatchingScorer:
    return cast("BatchingScorer", parts.scorer)


AccessOf = Annotated[Access, Depends(access)]
ServiceOf = Annotated[Lifecycle, Depends(service)]
KeyOf = Annotated[str, Depends(allowed(Scope.SELECT))]
CallerName = Annotated[str, Depends(caller_name)]
PartsOf = Annotated[Parts, Depends(built_parts)]
ReadyPartsOf = Annotated[Parts, Depends(ready_parts)]
ScorerOf = Annotated[Any, Depends(scorer)]
