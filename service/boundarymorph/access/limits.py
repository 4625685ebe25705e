"""Check requests before a process works for a caller, and own the threads that do the work."""

from __future__ import annotations

from contextlib import ExitStack

from boundarymorph.access.admission import Admission, refusal
from boundarymorph.access.callers import KeyRing, Origins, Policies
from boundarymorph.access.rates import RateLimits
from boundarymorph.calibration.calibration import Calibration
from boundarymorph.errors import Overloaded
from boundarymorph.inference.concurrency import FairExecutor, Shares
from boundarymorph.settings import Settings

PARSING_THREADS, READ_THREADS, WRITE_THREADS = 4, 4, 4


class Work:
    """The threads of a process for kinds of blocking work.

    Attributes:
        parsing: Parses large bodies and writes large answers.
        read: Reads descriptions and documents of indexes.
        write: Parses and stores uploads, and makes other changes to indexes.
    """

    def __init__(self, share: float) -> None:
        """Create the threads; one caller gets at most `share` of them, as in `Shares`."""
        self.parsing = FairExecutor("parsing", threads=PARSING_THREADS, share=share)
        self.read = FairExecutor("read", threads=READ_THREADS, share=share)
        self.write = FairExecutor("write", threads=WRITE_THREADS, share=share)

    async def close(self) -> None:
        for executor in (self.parsing, self.read, self.write):
            await executor.close()


class Access:
    def __init__(self, settings: Settings, *, behind_gateways: bool = False) -> None:
        """Read keys, policies, rate limits and calibrations.

        Args:
            settings: The settings of the service.
            behind_gateways: Whether callers name the caller that they call for.

        Raises:
            InvalidConfiguration: If any of these is malformed.
        """
        limits = settings.limits
        self.settings = settings
        self.calibration = None if settings.calibration is None else Calibration.from_file(settings.calibration)
        self.behind_gateways = behind_gateways
        self.keys = KeyRing(settings.keys)
        self.policies = Policies(settings, self.keys.callers)
        self.origins = Origins(settings.allowed_hosts, with_keys=bool(settings.keys))
        self.rates = RateLimits(settings.rate_limits, self.keys.callers, url=settings.counters_url)
        self.requests = Shares(limits.requests, limits.key_share, what="requests (limits.requests)")
        self.bytes_in_flight = Shares(limits.bytes_in_flight, limits.key_share, what="bytes (limits.bytes_in_flight)")
        self.admission = Admission(settings.sessions, limits.key_share)
        self.work = Work(limits.key_share)

    def enter(self, caller: str, until_end: ExitStack) -> None:
        """Count a request as in progress until `until_end` is closed.

        Raises:
            Overloaded: If the caller, or all callers together, have too many.
        """
        most, own = self.settings.limits.key_requests, self.requests.amount_of(caller)
        if most is not None and own >= most:
            raise refusal("key", f"this key has {own} requests in progress (limits.key_requests); try again later")
        try:
            until_end.enter_context(self.requests.reserve(caller))(1)
        except Overloaded as error:
            raise refusal("full" if self.requests.total == self.requests.most else "share", str(error)) from None

    async def close(self) -> None:
        await self.work.close()
        await self.rates.close()
