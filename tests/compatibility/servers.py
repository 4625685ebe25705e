"""The services that clients are tried against, as processes, whose scorers are well, away or late."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from boundarymorph.access import callers
from boundarymorph.access.callers import Scope
from tests.compatibility.check import Servers
from tests.faults import stand_in
from tests.scoring.remote.servers import Reply, hang, well
from tests.system.service import service

DEADLINE_SECONDS = "1"  # of a request to the service whose scorer is late


@contextmanager
def servers(directory: Path, *, embedded: bool) -> Iterator[Servers]:
    """The services, ready. embedded: with the embedded weights, or with tiny ones in their place."""
    secret, key = callers.make_key("client", [Scope.SELECT])
    environment = {"BOUNDARYMORPH_KEYS": str(key), "BOUNDARYMORPH_LIMITS__POOL": "50", "BOUNDARYMORPH_DEPTH": "50"}
    late = environment | {"BOUNDARYMORPH_DEADLINE_SECONDS": DEADLINE_SECONDS}
    with ExitStack() as stack:
        slow = stack.enter_context(stand_in.running())

        async def only_probes(reply: Reply) -> Reply:
            return await (well if slow.asked[-1]["query"] == "probe" else hang)(reply)

        slow.behaviour = only_probes

        def start(name: str, *options: str, environment: dict[str, str] = environment) -> str:
            running = service(directory / name, *options, environment=environment, embedded=embedded)
            return stack.enter_context(running).url

        whole = start("whole")
        slowed = start("late", "--scorer-url", slow.endpoint().base, environment=late)
        with stand_in.running() as gone:
            away = start("away", "--scorer-url", gone.endpoint().base)
        yield Servers(whole, away, slowed, secret)
