"""Catalogs of attached tables, and of several stores at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote, unquote

from boundarymorph.calibration.belongings import Belongings
from boundarymorph.errors import BoundaryMorphError, InvalidInput, UnknownIndex
from boundarymorph.retrieval.catalog import (
    NAME,
    Catalog,
    Index,
    IndexConfiguration,
    IndexDescription,
    IndexTotals,
    UnreadableIndex,
    check_name,
    check_same,
    listed,
    unknown,
)
from boundarymorph.retrieval.stores.index import StoreIndex
from boundarymorph.retrieval.stores.table import Store
from boundarymorph.settings import Attached


class AttachedCatalog(Catalog):
    """A `Catalog` of tables that exist in a store: those described, or else those whose columns can be guessed.

    Tables are neither created nor deleted here. Also raises RetrieverUnavailable and RetrieverFailed.
    """

    def __init__(
        self,
        store: Store,
        described: Mapping[str, Attached],
        *,
        encoder: str | None = None,
        schema_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        directory: Path = Path(".belongings"),
    ) -> None:
        """encoder: of guessed tables. schema_seconds: how long a table in use is not described again, unless a call
        to it fails. directory: for what belongs to the tables, as the store is not ours; need not exist."""
        self._directory = directory
        self._store, self._described, self._encoder = store, dict(described), encoder
        self._seconds, self._clock = schema_seconds, clock
        self._lock = threading.Lock()
        self._open: dict[str, tuple[StoreIndex, float]] = {}
        self._guessed: tuple[Mapping[str, Attached], float] = ({}, -float("inf"))

    @property
    def described(self) -> frozenset[str]:
        """The names of the indexes that the settings describe."""
        return frozenset(self._described)

    def check(self) -> None:
        self._store.tables()

    def exists(self, name: str) -> bool:
        return name in self._tables()

    def ensure(
        self, name: str, *, encoder: str | None, dimension: int, kind: str | None = None, lexical: bool = True
    ) -> bool:
        check_same(name, self.get(name).info, encoder=encoder, dimension=dimension, kind=kind)
        return False

    def get(self, name: str) -> StoreIndex:
        with self._lock:
            index, until = self._open.get(name, (None, 0.0))
        if index is not None and not index.table.stale and self._clock() < until:
            return index
        if (attached := self._tables().get(name)) is None:
            raise unknown(name)
        try:
            table = self._store.open(attached)
        except UnknownIndex as error:
            raise UnknownIndex(f"there is no table {attached.table!r} in {self._store.name}") from error
        info = IndexConfiguration(attached.encoder, table.dimension, "", lexical=attached.words)
        index = StoreIndex(name, info, table, self._store.name)
        with self._lock:
            self._open[name] = (index, self._clock() + self._seconds)
        return index

    def describe(self, name: str) -> IndexDescription:
        index = self.get(name)
        return index.info.described(name, index.count())

    def list(self) -> Sequence[IndexDescription | UnreadableIndex]:
        return listed(sorted(self._tables()), self.describe, named=True)

    def belongings(self, name: str) -> Belongings:
        self.get(name)
        return Belongings(self._directory / quote(name, safe=""), name, within_index=False)

    def all_belongings(self) -> Iterator[Belongings]:
        for folder in sorted(self._directory.glob("*")):
            yield Belongings(folder, unquote(folder.name), within_index=False)

    def delete(self, name: str) -> NoReturn:
        """Raise InvalidInput: the table is not ours."""
        raise InvalidInput(f"the index {name!r} is a table of your own; delete it in {self._store.name}")

    def close(self) -> None:
        self._store.close()

    def _tables(self) -> Mapping[str, Attached]:
        if self._described:
            return self._described
        with self._lock:
            guessed, until = self._guessed
        if self._clock() >= until:
            guessed = {
                name: found.model_copy(update={"encoder": self._encoder})
                for name, found in self._store.tables().items()
            }
            with self._lock:
                self._guessed = (guessed, self._clock() + self._seconds)
        return guessed


class Catalogs(Catalog):
    """A `Catalog` over one for new indexes and those of stores. An index is `STORE/NAME`, or found by its name: first
    among the described, then in the base, then among the guessed. It is called by its name if that is described in one
    store or is in the base, and else `STORE/NAME`, whichever of the two it was found by."""

    def __init__(self, base: Catalog, stores: Mapping[str, AttachedCatalog]) -> None:
        """stores: by name; the indexes of "" have no other name than their own."""
        self._base, self._stores = base, stores

    def check(self) -> None:
        """See `Catalog.check`; of the base alone: a store that is away fails only its own requests."""
        self._base.check()

    def exists(self, name: str) -> bool:
        try:
            catalog, inner = self._of(name)
        except UnknownIndex:
            return False
        return catalog.exists(inner)

    def ensure(
        self, name: str, *, encoder: str | None, dimension: int, kind: str | None = None, lexical: bool = True
    ) -> bool:
        catalog, inner = self._of(name)
        return catalog.ensure(inner, encoder=encoder, dimension=dimension, kind=kind, lexical=lexical)

    def get(self, name: str) -> Index:
        catalog, inner = self._of(name)
        return catalog.get(inner)

    def describe(self, name: str) -> IndexDescription:
        catalog, inner = self._of(name)
        return catalog.describe(inner).model_copy(update={"name": self._called(catalog, inner)})

    def belongings(self, name: str) -> Belongings:
        catalog, inner = self._of(name)
        found = catalog.belongings(inner)
        found.index = self._called(catalog, inner)
        return found

    def all_belongings(self) -> Iterator[Belongings]:
        for catalog in (self._base, *self._stores.values()):
            for found in catalog.all_belongings():
                found.index = self._called(catalog, found.index)
                yield found

    def list(self) -> Sequence[IndexDescription | UnreadableIndex]:
        """See `Catalog.list`. A store that is away is listed by its name."""
        described = frozenset().union(*(catalog.described for catalog in self._stores.values()))
        shown = [info for info in self._base.list() if info.name not in described]
        for catalog in self._stores.values():
            try:
                found = catalog.list()
            except BoundaryMorphError as error:
                found = [UnreadableIndex("", error)]
            for info in found:
                info.name = self._called(catalog, info.name)
                shown.append(info)
        return sorted(shown, key=lambda info: info.name)

    def totals(self) -> Mapping[str, IndexTotals]:
        return self._base.totals()

    def delete(self, name: str) -> None:
        catalog, inner = self._of(name)
        catalog.delete(inner)

    def close(self) -> None:
        for catalog in self._stores.values():
            catalog.close()
        self._base.close()

    def _called(self, catalog: Catalog, inner: str) -> str:
        """Return the name of an index of a catalog, the only one that is given out."""
        holders = [store for store, of_store in self._stores.items() if inner in of_store.described]
        store = next((store for store, of_store in self._stores.items() if of_store is catalog), "")
        return inner if not store or holders == [store] else f"{store}/{inner}"

    def _of(self, name: str) -> tuple[Catalog, str]:
        """Return the catalog with an index, the base for one that does not exist, and its name there."""
        store, slash, inner = name.partition("/")
        if slash:
            if store not in self._stores or not store:
                raise unknown(name)
            return self._stores[store], inner
        check_name(name)
        holders: Sequence[Catalog] = [catalog for catalog in self._stores.values() if name in catalog.described]
        guessing = [catalog for catalog in self._stores.values() if not catalog.described]
        if not holders and guessing and not self._base.exists(name):
            holders = [catalog for catalog in guessing if _there(catalog, name)]
        if len(holders) > 1:
            raise InvalidInput(f"several stores have a table {name!r}; say STORE/{name}")
        return (holders[0] if holders else self._base), name


def _there(catalog: Catalog, name: str) -> bool:
    try:
        return NAME.fullmatch(name) is not None and catalog.exists(name)
    except BoundaryMorphError:  # one that is away hides no other
        return False
