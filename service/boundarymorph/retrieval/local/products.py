"""Inner products of one matrix with the queries of many threads."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST = 16  # queries per product: more would save little, and all wait for the last

_Products = NDArray[np.float32]


class _Waiting(NamedTuple):
    query: NDArray[np.float32]
    rows: int
    products: Future[_Products]


class SharedProducts:
    """Computes the products of waiting queries together, so that the rows are read once for all of them.

    A query that finds a free slot does not wait for others. Thread-safe; calls block.
    """

    def __init__(self, matrix: NDArray[np.float32], *, slots: int) -> None:
        """matrix: (n, d); slots: concurrent products, each computed in a caller's thread."""
        self._matrix = matrix
        self._free = slots
        self._changed = threading.Condition()
        self._waiting: deque[_Waiting] = deque()

    def __call__(self, query: NDArray[np.float32], count: int) -> _Products:
        """Return (count,) inner products of the first rows with a (d,) query, in float32, in any order of summation.

        Later rows may be written meanwhile. The caller may modify the result.
        """
        mine: Future[_Products] = Future()
        with self._changed:
            self._waiting.append(_Waiting(query, count, mine))
        while together := self._turn(mine):
            self._answer(together)
        return mine.result()

    def _turn(self, mine: Future[_Products]) -> list[_Waiting]:
        """Wait for a slot; return the queries to compute, or none if another thread has computed mine."""
        with self._changed:
            self._changed.wait_for(lambda: mine.running() or mine.done() or self._free)
            if mine.running() or mine.done():
                return []
            self._free -= 1
            together = [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]
            for one in together:
                one.products.set_running_or_notify_cancel()
            return together

    def _answer(self, together: list[_Waiting]) -> None:
        try:
            most = max(one.rows for one in together)
            products = np.stack([one.query for one in together]) @ self._matrix[:most].T
        except BaseException as error:
            for one in together:
                one.products.set_exception(error)
        else:
            for row, one in zip(products, together, strict=True):
                one.products.set_result(row[: one.rows])
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()
