"""Register and run the checks of clients.

This runs in an environment that has only the client, so it needs nothing but the standard library. `clients` registers
the checks of an environment, and `main` prints their results.
"""

import json
import math
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any
from urllib.request import Request, urlopen

QUERY = "How are coral reefs damaged by warm water?"
DOCUMENTS = [
    "Bleaching happens when corals under heat stress expel the algae that live in their tissue.",
    "The violin has four strings, tuned in fifths, and is played with a bow.",
    "A marine heatwave can kill a large part of a reef within weeks.",
    "Sea temperatures that stay one degree above the summer maximum for a month bleach most branching corals.",
    "Reef fish depend on living coral for shelter; their numbers fall after a bleaching event.",
    "The recipe asks for warm water, flour, yeast and a pinch of salt.",
    "Coral reefs cover less than one percent of the sea floor.",
    "Concrete sets faster in warm weather.",
    "Repeated bleaching leaves corals too weak to resist disease.",
    "Trains between the two cities run every hour.",
]
TOO_MANY = [f"document {number}" for number in range(51)]  # `servers` refuses more than 50
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Servers:
    """The URLs of three services.

    Attributes:
        whole: A service that works.
        away: One whose scorer is unavailable.
        late: One whose scorer never answers within a deadline.
        key: The Bearer token for all of them.
    """

    whole: str
    away: str
    late: str
    key: str


@dataclass(frozen=True)
class Check:
    """A check of a client.

    Attributes:
        package: The client's package.
        endpoint: The route that it calls.
    what: The property to check.
        run: Raises if the check fails.
    """

    package: str
    endpoint: str
    what: str
    run: Callable[[Servers], None]


CHECKS: list[Check] = []


def check(package: str, endpoint: str, what: str) -> Callable[[Callable[[Servers], None]], Callable[[Servers], None]]:
    """Register a function that raises unless the client gets what its users expect."""

    def register(run: Callable[[Servers], None]) -> Callable[[Servers], None]:
        CHECKS.append(Check(package, endpoint, what, run))
        return run

    return register


@dataclass(frozen=True)
class Call:
    """A call that ranks documents; `top` is the number of results, None for all."""

    url: str
    key: str
    documents: Sequence[Any] = field(default_factory=lambda: DOCUMENTS)
    top: int | None = None


def calling(servers: Servers, url: str | None = None, key: str | None = None, **more: Any) -> Call:
    """Return a call of the working service with its key, unless given otherwise."""
    return Call(url or servers.whole, key or servers.key, **more)


Kinds = type[BaseException] | Sequence[type[BaseException]]
MESSAGES = "50 documents: 51", "key", "no scorer", "deadline"


def check_client(
    package: str,
    endpoint: str,
    rank: Callable[[Call], list[tuple[int, float]]],
    kinds: Kinds | None,
    messages: Sequence[str] = MESSAGES,
    what: str = "",
) -> None:
    """Register the checks of every client: all documents, the first three, a budget, errors.

    Args:
        package: The package of the client.
        endpoint: Its route.
        rank: Returns the index and the score of each document, best first.
        kinds: Its errors for too many documents, a wrong key, an unavailable scorer and a late one. One type stands for
            all four; None means that it raises none.
        messages: The messages of these errors.
        what: Distinguishes several clients of a package.
    """

    @check(package, endpoint, what + "order")
    def ranks(servers: Servers) -> None:
        expected = ranking(servers)
        check_same(rank(calling(servers)), expected)
        check_same(rank(calling(servers, top=3)), expected[:3])

    @check(package, endpoint, what + "budget")
    def saves(servers: Servers) -> None:
        new = [f"{document} ({package} {endpoint} {what})" for document in DOCUMENTS]  # their scores are not cached yet
        found = rank(calling(servers, f"{servers.whole}/p/default@0.2", documents=new))
        exact = dict(ranking(servers, new))
        assert sorted(index for index, _ in found) == list(range(len(new))), found
        assert sum(abs(score - exact[index]) <= TOLERANCE for index, score in found) == 2, (found, exact)

    if kinds is None:
        return
    expected = (kinds,) * 4 if isinstance(kinds, type) else kinds

    @check(package, endpoint, what + "errors")
    def refusals(servers: Servers) -> None:
        calls = (
            calling(servers, documents=TOO_MANY),
            calling(servers, key="wrong"),
            calling(servers, servers.away),
            calling(servers, servers.late),
        )
        for call, kind, part in zip(calls, expected, messages, strict=True):
            check_raises(kind, lambda call=call: rank(call), part)  # type: ignore[misc]


def sigmoids(pairs: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return scores in place of log-odds."""
    return [(index, 1 / (1 + math.exp(-logit))) for index, logit in pairs]


def ranking(servers: Servers, documents: list[str] | None = None, **fields: Any) -> list[tuple[int, float]]:
    """Return the index and the score of each document, best first, from the service itself."""
    body = {"query": QUERY, "documents": DOCUMENTS if documents is None else documents, **fields}
    headers = {"Authorization": f"Bearer {servers.key}", "Content-Type": "application/json"}
    request = Request(f"{servers.whole}/v2/rerank", json.dumps(body).encode(), headers)
    with urlopen(request) as response:
        results = json.load(response)["results"]
    return [(result["index"], result["relevance_score"]) for result in results]


def check_same(found: Iterable[tuple[int, float]], expected: list[tuple[int, float]]) -> None:
    """Check that the documents, their order, and their scores are equal."""
    given = list(found)
    assert [index for index, _ in given] == [index for index, _ in expected], (given, expected)
    for (_, score), (_, wanted) in zip(given, expected, strict=True):
        assert abs(score - wanted) <= TOLERANCE, (given, expected)


def check_raises(
    kind: type[BaseException] | tuple[type[BaseException], ...], call: Callable[[], Any], *messages: str
) -> Any:
    """Return the exception of this kind that a call raises, after checking its message."""
    try:
        answer = call()
    except kind as error:
        message = f"{error} {getattr(error, 'body', '')} {getattr(error, 'message', '')}"
        assert all(part in message for part in messages), f"the message lacks {messages}: {message}"
        return error
    raise AssertionError(f"nothing was raised; the answer is {answer!r}")


def main(servers: Servers) -> None:
    """Run the checks, and print their results as a JSON array."""
    results = []
    for case in CHECKS:
        problem = None
        try:
            case.run(servers)
        except Exception:
            problem = traceback.format_exc()
        what = {"package": case.package, "version": version(case.package)}
        what |= {"endpoint": case.endpoint, "what": case.what}
        results.append({**what, "problem": problem})
    print(json.dumps(results))
