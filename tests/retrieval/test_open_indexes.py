"""How many local indexes are open at a time, and what becomes of those that make room."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path

import numpy as np
import pytest

from boundarymorph.inference.concurrency import CALLER
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.local.catalog import LocalCatalog, LocalIndex
from tests.retrieval.fakes import nearest

MOST_OPEN = 4
NAMES = [f"i{number}" for number in range(12)]
QUERY = [1.0, 0.0]


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[LocalCatalog]:
    """Twelve indexes, each with a document of its own name."""
    catalog = LocalCatalog(tmp_path / "indexes", most_open=MOST_OPEN)
    for name in NAMES:
        index = catalog.create(name, encoder=None, dimension=2)
        index.upsert([Document(name, f"text of {name}")], np.array([[1.0, 1.0]]))
    yield catalog
    catalog.close()


def get(catalog: LocalCatalog, name: str, caller: str = "a") -> LocalIndex:
    """Use an index on behalf of a caller."""

    def used() -> LocalIndex:
        CALLER.set(caller)
        return catalog.get(name)

    return copy_context().run(used)


def files(catalog: LocalCatalog) -> set[str]:
    """The indexes that this process has files of open."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            links.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
    return {link.parent.name for link in links if catalog._directory in link.parents}


def test_so_many_and_no_more(catalog: LocalCatalog) -> None:
    for name in NAMES:
        assert list(nearest(get(catalog, name), QUERY, 1).ids) == [name]
    assert files(catalog) == set(NAMES[-MOST_OPEN:])
    nearest(get(catalog, NAMES[-MOST_OPEN]), QUERY, 1)
    nearest(get(catalog, NAMES[0]), QUERY, 1)
    assert files(catalog) == {NAMES[0], NAMES[-MOST_OPEN], *NAMES[2 - MOST_OPEN :]}, "the least recently used went"


def test_a_list_of_all_closes_none(catalog: LocalCatalog) -> None:
    used = {name: catalog.get(name) for name in NAMES[:MOST_OPEN]}
    assert [found.name for found in catalog.list()] == sorted(NAMES)
    assert all(catalog.get(name) is index for name, index in used.items())
    assert len(files(catalog)) <= MOST_OPEN


def test_whoever_uses_most_makes_room(catalog: LocalCatalog) -> None:
    mine = get(catalog, "i0", "modest")
    for name in NAMES[1:]:
        get(catalog, name, "greedy")
    assert get(catalog, "i0", "modest") is mine
    get(catalog, "i1", "modest")
    assert get(catalog, "i0", "modest") is mine


def test_a_search_that_is_going_on_does_not_notice(catalog: LocalCatalog) -> None:
    index = get(catalog, "i0")
    with index.one_state():
        for name in NAMES[1:]:
            nearest(get(catalog, name), QUERY, 1)
        assert index.documents(["i0"])["i0"].text == "text of i0"
        assert list(nearest(index, QUERY, 1).ids) == ["i0"]
    assert "i0" not in files(catalog), "its files are closed at its end"
    index.upsert([Document("new", "new")], np.array([[1.0, 0.0]]))
    assert list(nearest(index, QUERY, 2).ids) == ["new", "i0"], "who kept it goes on using it"
    assert list(nearest(get(catalog, "i0"), QUERY, 2).ids) == ["new", "i0"]


def test_many_at_a_time(catalog: LocalCatalog) -> None:
    def use(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(60):
            name = rng.choice(NAMES)
            index = get(catalog, name, rng.choice("ab"))
            assert list(nearest(index, QUERY, 1).ids) == [name]
            assert index.documents([name])[name].text == f"text of {name}"

    with ThreadPoolExecutor(6) as threads:
        for done in [threads.submit(use, seed) for seed in range(6)]:
            done.result()
    assert len(files(catalog)) <= MOST_OPEN
