"""Cost ceilings of language models: per request, per key and day, and per day. Days are in UTC."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from boundarymorph.access.shared import SharedCounters
from boundarymorph.errors import CostCeiling
from boundarymorph.scoring.bill import NANO, Amount, Bill, Reservation
from boundarymorph.settings import JudgeSettings
from boundarymorph.telemetry import metrics

DAY = 86_400
KEPT = 2 * DAY  # seconds for which a day's sum stays in Redis
CEILINGS = ("request_tokens", "request_cost", "key_day_tokens", "key_day_cost", "day_tokens", "day_cost")


@dataclass(frozen=True, slots=True)
class _Ceiling:
    """name: of the setting; key: of the sum that it limits; most, added: in tokens, or billionths of the currency."""

    name: str
    key: str
    most: int
    added: int

    @property
    def _in_money(self) -> bool:
        return self.name.endswith("_cost")

    def shown(self, sum_: int) -> str:
        return f"{max(0, sum_) / NANO:.6g}" if self._in_money else f"{max(0, sum_):,} tokens"


class Spending:
    """A `Ledger` that keeps its sums in Redis for all processes together, else in this process.

    If Redis does not answer in time, only what this process has spent on the day counts, and a ceiling then applies to
    each process separately.
    """

    def __init__(
        self, chosen: JudgeSettings, *, url: str | None, timeout: float, clock: Callable[[], float] = time.time
    ) -> None:
        """url: of Redis, in the format of cache.url; timeout: seconds to wait for it. Does not connect yet.

        Raises InvalidConfiguration for a malformed url.
        """
        self._chosen, self._clock = chosen, clock
        for name in CEILINGS:
            if getattr(chosen, name) is not None:
                metrics.cost_refused.labels(name)  # from 0 on: what a series begins with is no increase
        self._own: Counter[str] = Counter()
        self._today = ""
        self._counters: SharedCounters | None = None
        if url is not None:
            self._counters = SharedCounters(
                url, "boundarymorph:spending", timeout, "costs of language models", metrics.spending_unshared
            )

    async def reserve(self, bill: Bill, most: Amount) -> Reservation:
        self._within_request(bill, most)
        day = time.strftime("%Y-%m-%d", time.gmtime(self._clock()))
        bill.reserved = bill.reserved.plus(most)
        taken: list[_Ceiling] = []
        try:
            for ceiling in self._of_day(day, bill.caller, most):
                taken.append(ceiling)
                total = await self._add(ceiling.key, ceiling.added)
                if total > ceiling.most:
                    self._refuse(ceiling, total - ceiling.added, math.ceil(DAY - self._clock() % DAY))
        except BaseException:
            bill.reserved = bill.reserved.minus(most)
            for ceiling in taken:
                await self._add(ceiling.key, -ceiling.added)
            raise
        return Reservation(most, day)

    async def settle(self, bill: Bill, reservation: Reservation, spent: Amount) -> None:
        most, day = reservation
        bill.reserved, bill.spent = bill.reserved.minus(most), bill.spent.plus(spent)
        for ceiling in self._of_day(day, bill.caller, spent.minus(most)):
            await self._add(ceiling.key, ceiling.added)

    async def close(self) -> None:
        """Release the connections."""
        if self._counters is not None:
            await self._counters.close()

    def _within_request(self, bill: Bill, most: Amount) -> None:
        if not bill.caller:
            return
        chosen, so_far = self._chosen, bill.spent.plus(bill.reserved)
        for name, ceiling, had, added in (
            ("request_tokens", chosen.request_tokens, so_far.tokens, most.tokens),
            ("request_cost", _nanos(chosen.request_cost), so_far.nanos, most.nanos),
        ):
            if ceiling is not None and had + added > ceiling:
                self._refuse(_Ceiling(name, "", ceiling, added), had, math.inf)

    def _of_day(self, day: str, caller: str, amount: Amount) -> Iterator[_Ceiling]:
        """Yield the day's ceilings that are set, with the amount to add. Work without a request counts for no key."""
        chosen = self._chosen
        for name, scope, ceiling, added in (
            ("key_day_tokens", f"key:{caller}", chosen.key_day_tokens, amount.tokens),
            ("key_day_cost", f"key:{caller}", _nanos(chosen.key_day_cost), amount.nanos),
            ("day_tokens", "all", chosen.day_tokens, amount.tokens),
            ("day_cost", "all", _nanos(chosen.day_cost), amount.nanos),
        ):
            if ceiling is not None and (caller or scope == "all"):
                yield _Ceiling(name, f"{day}:{name}:{scope}", ceiling, added)

    def _refuse(self, ceiling: _Ceiling, had: int, again: float) -> None:
        metrics.cost_refused.labels(ceiling.name).inc()
        scope = {"request": "this request has", "key": "this key has"}.get(ceiling.name.split("_")[0], "all keys have")
        when = "" if math.isinf(again) else " today; its day ends at 00:00 UTC"
        raise CostCeiling(
            f"{scope} {ceiling.shown(had)} of {ceiling.shown(ceiling.most)} for the language model spent or reserved"
            f"{when}, and the next document may take {ceiling.shown(ceiling.added)} (scorer.judge.{ceiling.name})",
            retry_after=again,
        )

    async def _add(self, key: str, amount: int) -> int:
        """Add an amount, which may be negative; return the sum of all processes, or of this one if that is more.

        The sum contains what others add at the same time only if Redis counted it before: the first ones fit under a
        ceiling, and the later ones do not.
        """
        if (day := key[:10]) > self._today:
            self._today = day
            self._own = Counter({kept: spent for kept, spent in self._own.items() if kept >= day})
        before = self._own[key]
        try:
            shared = None
            if (counters := self._counters) is not None:
                shared = await counters.ask(lambda: counters.storage.incr(key, KEPT, amount))
        finally:
            self._own[key] += amount
        return self._own[key] if shared is None else max(shared, before + amount)


def _nanos(cost: float | None) -> int | None:
    return None if cost is None else int(cost * NANO)
