"""What routes ask for: the process that they are of, the caller, and the parts behind them.

They are coroutines because FastAPI calls plain functions in threads, which costs time and the order of arrival.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer

from boundarymorph.access.keys import Caller, Scope
from boundarymorph.errors import InvalidInput
from boundarymorph.retrieval.retriever import Retriever
from boundarymorph.scoring.batching import BatchingScorer
from boundarymorph.selector.selector import Selector
from boundarymorph.server.composition import Gateway, Retrieval, Rooms
from boundarymorph.server.lifecycle import Part, State
from boundarymorph.server.observed import ObservedRetriever

BEARER = HTTPBearer(auto_error=False, description="an API key, where there are any")  # for the description alone


async def state(request: Request) -> State[Part]:
    found: State[Part] = request.app.state.boundarymorph
    return found


def allowed(scope: Scope) -> Callable[..., Awaitable[str]]:
    """The dependency of a route that only keys of this scope may use, and only so often: the caller's name.

    Where the path of the route has the `name` of an index, only keys for that index may.
    """

    async def caller(request: Request, _: Annotated[object, Security(BEARER)]) -> str:
        found = await state(request)
        identified = found.keys.caller(request.headers.get("authorization"))
        request.state.caller = identified.name  # for the access log, whatever becomes of the request
        request.state.permitted = permitted = identified.within(scope)
        request.state.decision = decision = await found.rates.take(permitted.name)
        decision.check()
        _refuse_unknown_parameters(request)
        if (index := request.path_params.get("name")) is not None:
            permitted.require(index)
        return permitted.name

    return caller


def _refuse_unknown_parameters(request: Request) -> None:
    """Raises InvalidInput for a query parameter that the route does not have."""
    route = request.scope["route"]
    described = (route.openapi_extra or {}).get("parameters", ())
    known = {field.alias for field in route.dependant.query_params} | {parameter["name"] for parameter in described}
    if unknown := sorted(set(request.query_params) - known):
        raise InvalidInput(
            f"there is no query parameter {unknown[0]!r} here; "
            + (f"there is {', '.join(sorted(known))}" if known else "there are none")
        )


def permitted(request: Request) -> Caller:
    """The caller of a request that `allowed` has let through, and so what it may see."""
    found: Caller = request.state.permitted
    return found


async def selector(request: Request) -> Selector:
    found: State[Rooms] | State[Gateway] = request.app.state.boundarymorph
    return found.require().selector


async def indexes(request: Request) -> Retrieval:
    found: State[Retrieval] = request.app.state.boundarymorph
    return found.require()


async def scorer(request: Request) -> BatchingScorer:
    found: State[BatchingScorer] = request.app.state.boundarymorph
    return found.require()


async def retriever(request: Request) -> Retriever:
    found: State[Retrieval] = request.app.state.boundarymorph
    return ObservedRetriever(found.require().retriever)


async def gateway(request: Request) -> Gateway:
    found: State[Gateway] = request.app.state.boundarymorph
    return found.require()


StateOf = Annotated[State[Part], Depends(state)]
CallerOf = Annotated[str, Depends(allowed(Scope.SELECT))]
SelectorOf = Annotated[Selector, Depends(selector)]
IndexesOf = Annotated[Retrieval, Depends(indexes)]
ScorerOf = Annotated[BatchingScorer, Depends(scorer)]
RetrieverOf = Annotated[Retriever, Depends(retriever)]
GatewayOf = Annotated[Gateway, Depends(gateway)]
