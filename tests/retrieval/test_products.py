"""Products that are shared between threads."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.retrieval.local.products import MOST, SharedProducts
from tests.patience import PATIENCE


class Held:
    """A matrix whose products wait until they are let go, and that counts how many queries each had."""

    def __init__(self, matrix: NDArray[np.float32]) -> None:
        self.matrix = matrix
        self.let_go = threading.Event()
        self.begun = threading.Semaphore(0)
        self.together: list[int] = []

    @property
    def T(self) -> "Held":  # noqa: N802
        return self

    def __getitem__(self, rows: slice) -> "Held":
        assert rows == slice(300)
        return self

    __array_ufunc__ = None  # so that NumPy leaves the product to us

    def __rmatmul__(self, queries: NDArray[np.float32]) -> Any:
        self.together.append(len(queries))
        self.begun.release()
        assert self.let_go.wait(20)
        if np.isnan(queries).any():
            raise FloatingPointError("nan")
        return queries @ self.matrix.T


def queries(count: int) -> NDArray[np.float32]:
    return np.random.default_rng(1).standard_normal((count, 8), dtype=np.float32)


@pytest.fixture
def held() -> Held:
    return Held(np.random.default_rng(0).standard_normal((300, 8), dtype=np.float32))


def waiting(products: SharedProducts, count: int) -> None:
    limit = threading.Event()
    for _ in range(2000):
        if len(products._waiting) == count:
            return
        limit.wait(0.01)
    pytest.fail("they never came")


@pytest.mark.parametrize("slots", [1, 3])
def test_every_query_gets_its_own(slots: int) -> None:
    matrix = np.random.default_rng(0).standard_normal((500, 8), dtype=np.float32)
    products = SharedProducts(matrix, slots=slots)
    asked, counts = queries(400), np.random.default_rng(2).integers(0, 501, 400).tolist()
    with ThreadPoolExecutor(24) as threads:
        for query, count, found in zip(asked, counts, threads.map(products, asked, counts), strict=True):
            np.testing.assert_allclose(found, matrix[:count] @ query, atol=1e-5)
            assert found.flags.writeable


def test_those_that_wait_go_together(held: Held) -> None:
    products = SharedProducts(held, slots=2)  # type: ignore[arg-type]
    asked = queries(2 + MOST + 3)
    with ThreadPoolExecutor(len(asked)) as threads:
        first = [threads.submit(products, query, 300) for query in asked[:2]]
        assert held.begun.acquire(timeout=PATIENCE) and held.begun.acquire(timeout=PATIENCE)
        assert held.together == [1, 1]  # neither waited for the other
        rest = [threads.submit(products, query, 300) for query in asked[2:]]
        waiting(products, MOST + 3)
        held.let_go.set()
        for query, future in zip(asked, first + rest, strict=True):
            np.testing.assert_allclose(future.result(timeout=PATIENCE), held.matrix @ query, atol=1e-5)
    assert sorted(held.together) == [1, 1, 3, MOST]


def test_what_goes_wrong_is_told_to_all_that_went_together(held: Held) -> None:
    products = SharedProducts(held, slots=1)  # type: ignore[arg-type]
    asked = queries(4)
    asked[2] = np.nan
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(products, asked[0], 300)
        assert held.begun.acquire(timeout=PATIENCE)
        rest = [threads.submit(products, query, 300) for query in asked[1:]]
        waiting(products, 3)
        held.let_go.set()
        np.testing.assert_allclose(first.result(timeout=PATIENCE), held.matrix @ asked[0], atol=1e-5)
        for future in rest:
            with pytest.raises(FloatingPointError):
                future.result(timeout=PATIENCE)
    np.testing.assert_allclose(products(asked[1], 300), held.matrix @ asked[1], atol=1e-5)
