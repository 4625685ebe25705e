"""What is tried with a client, in an environment that has that client and this: only the standard library is used.

A module of `clients` registers its checks; run as a program, with the servers as JSON, it tells what became of each.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
    """Where the services are: one that works, one whose scorer is away, one whose scorer is late for any deadline.

    key: what they want as a Bearer token.
    """

    whole: str
    away: str
    late: str
    key: str


@dataclass(frozen=True)
class Check:
    """package: the client, as it is installed; endpoint: that it calls; what: is tried."""

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


def ranking(servers: Servers, documents: list[str] | None = None, **fields: Any) -> list[tuple[int, float]]:
    """Index and score of each document, best first, as the service has them without a client between."""
    body = {"query": QUERY, "documents": DOCUMENTS if documents is None else documents, **fields}
    headers = {"Authorization": f"Bearer {servers.key}", "Content-Type": "application/json"}
    request = Request(f"{servers.whole}/v2/rerank", json.dumps(body).encode(), headers)
    with urlopen(request) as response:
        results = json.load(response)["results"]
    return [(result["index"], result["relevance_score"]) for result in results]


def same(found: Iterable[tuple[int, float]], expected: list[tuple[int, float]]) -> None:
    """Raises AssertionError unless these are the same documents in the same order, with the same scores."""
    given = list(found)
    assert [index for index, _ in given] == [index for index, _ in expected], (given, expected)
    for (_, score), (_, wanted) in zip(given, expected, strict=True):
        assert abs(score - wanted) <= TOLERANCE, (given, expected)


def raised(kind: type[BaseException] | tuple[type[BaseException], ...], call: Callable[[], Any], *said: str) -> Any:
    """The exception of this kind that the call raises. Raises AssertionError, too unless it says all of this."""
    try:
        answer = call()
    except kind as error:
        message = f"{error} {getattr(error, 'body', '')} {getattr(error, 'message', '')}"
        assert all(part in message for part in said), f"{said} is not said: {message}"
        return error
    raise AssertionError(f"nothing was raised; the answer is {answer!r}")


def main() -> None:
    """Run the checks of the program's module; a JSON array of what became of them goes to stdout."""
    servers = Servers(**json.loads(sys.argv[1]))
    results = []
    for case in CHECKS:
        problem = None
        try:
            case.run(servers)
        except Exception:
            problem = traceback.format_exc()
        installed = version(case.package.partition("[")[0])
        results.append(
            {
                "package": case.package,
                "version": installed,
                "endpoint": case.endpoint,
                "what": case.what,
                "problem": problem,
            }
        )
    print(json.dumps(results))
