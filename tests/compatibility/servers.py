"""Run services for clients as processes, with fakes for failing scorers."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from boundarymorph.access import callers
from boundarymorph.access.callers import Scope
from tests.compatibility.check import Servers
from tests.fakes.upstream import Reply, Request, Upstream, in_a_thread
from tests.system.service import service

DEADLINE_SECONDS = "1"  # for requests to the service whose scorer is late


async def only_probes(request: Request) -> Reply:
    """Answer as a scorer that answers probes and hangs on other requests."""
    if request.method == "GET":
        return Reply({"model": "slow", "max_texts": 512})
    body = request.json()
    if body["query"] != "probe":
        await asyncio.Event().wait()
    return Reply({"model": "slow", "scores": [0.5] * len(body["texts"]), "truncated": 0})


@contextmanager
def servers(directory: Path, *, embedded: bool) -> Iterator[Servers]:
    """Yield the services once they are ready.

    Args:
        directory: The folder for their data.
        embedded: Whether they use the embedded weights, not the tiny ones.
    """
    secret, key = callers.make_key("client", [Scope.SELECT])
    environment = {"BOUNDARYMORPH_KEYS": str(key), "BOUNDARYMORPH_LIMITS__POOL": "50", "BOUNDARYMORPH_DEPTH": "50"}
    environment["BOUNDARYMORPH_RELEVANCE"] = "scorer"  # the relevance of a scored document equals its score
    late = environment | {"BOUNDARYMORPH_DEADLINE_SECONDS": DEADLINE_SECONDS}
    with ExitStack() as stack:
        slow = stack.enter_context(in_a_thread(Upstream(only_probes)))

        def start(name: str, *options: str, environment: dict[str, str] = environment) -> str:
            running = service(directory / name, *options, environment=environment, embedded=embedded)
            return stack.enter_context(running).url

        whole = start("whole")
        slowed = start("late", "--scorer-url", slow.url, environment=late)
        with in_a_thread(Upstream(only_probes)) as gone:
            away = start("away", "--scorer-url", gone.url)
        yield Servers(whole, away, slowed, secret)
