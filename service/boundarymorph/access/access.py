"""The checks that every request passes: keys, rate limits, admission, bounded memory and bounded threads."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from boundarymorph.access.callers import Calibrations, KeyRing, Origins, Policies
from boundarymorph.access.learned import Audits, MemoriesInUse
from boundarymorph.access.limits import Admission, RateLimits
from boundarymorph.inference.concurrency import CALLER, BoundedExecutor, Shares, Turns
from boundarymorph.selector.documents import Room
from boundarymorph.settings import Settings, WorkSettings


@dataclass(frozen=True, slots=True)
class Work:
    """The thread pools for each kind of blocking work in a process; a retriever has its own for searches.

    parsing: large bodies of requests and answers; read: descriptions of indexes, and their documents; write: uploads,
    including the parsing of their documents, and other changes to indexes.
    """

    parsing: BoundedExecutor
    read: BoundedExecutor
    write: BoundedExecutor

    @classmethod
    def of(cls, settings: WorkSettings, share: float) -> Work:
        def executor(kind: str, threads: int, waiting: int) -> BoundedExecutor:
            return BoundedExecutor(kind, threads=threads, waiting=waiting, share=share)

        return cls(
            executor("parsing", settings.parsing_threads, settings.parsing_waiting),
            executor("read", settings.read_threads, settings.read_waiting),
            executor("write", settings.write_threads, settings.write_waiting),
        )

    async def close(self) -> None:
        """Wait for running calls, then release the threads."""
        for executor in (self.parsing, self.read, self.write):
            await executor.close()


class Access:
    """The limits on requests to one process, from its settings."""

    def __init__(self, settings: Settings, *, behind_gateways: bool = False) -> None:
        """behind_gateways: whether its callers are gateways, which tell on whose behalf they call.

        Raises InvalidConfiguration for malformed keys, policies and rate limits.
        """
        limits = settings.limits
        self.settings = settings
        self.behind_gateways = behind_gateways
        self.keys = KeyRing(settings.keys)
        self.calibrations = Calibrations(settings.calibration.keys)
        self.memories = MemoriesInUse()
        self.policies = Policies(settings, self.keys.callers)
        self.origins = Origins(settings.allowed_hosts, with_keys=bool(settings.keys))
        self.rates = RateLimits(settings.rate_limits, self.keys.callers, url=settings.counters_url)
        self.admission = Admission(
            running=settings.sessions, waiting=limits.waiting, share=limits.key_share, of_caller=limits.key_sessions
        )
        self.audits = Audits(settings, lambda: self.admission.inside > 0, self.room)
        self.background = Turns(settings.batch_sessions)
        self.bytes_in_hand = Shares(limits.bytes_in_hand, limits.key_share, what="bytes (limits.bytes_in_hand)")
        self.selections = Shares(
            limits.selection_bytes, limits.key_share, what="bytes for selections (limits.selection_bytes)"
        )
        self.forwarded = Shares(
            max(1, settings.retriever.connections * 3 // 4),  # the others are for selections
            limits.key_share,
            what="connections for forwarded requests (retriever.connections)",
        )
        self.work = Work.of(settings.work, limits.key_share)

    def room(self, until_end: ExitStack) -> Room:
        """Return the room for a selection of the present caller, until the end of its request."""
        return Room(
            texts=until_end.enter_context(self.bytes_in_hand.holding(CALLER.get())),
            selection=until_end.enter_context(self.selections.holding(CALLER.get())),
            answer=self.settings.limits.answer_bytes,
        )

    async def close(self) -> None:
        """Release threads and connections, but for memories, which are closed before their retriever is."""
        await self.work.close()
        await self.rates.close()
