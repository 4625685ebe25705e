"""Define catalogs of the tables of a store, and of several stores at once."""

from __future__ import annotations

import logging
import re
import shutil
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import orjson

from boundarymorph import errors
from boundarymorph.retrieval import interfaces
from boundarymorph.retrieval.artifacts import ArtifactFile
from boundarymorph.retrieval.stores.index import StoreIndex
from boundarymorph.retrieval.stores.table import Store, Table, created_table, guess_columns
from boundarymorph.settings import AttachedTable

log = logging.getLogger(__name__)
_ESCAPED = {"_": "__", ".": "_d", "-": "_h"}  # so that every store accepts the name of a table
_PLAIN = {escaped: plain for plain, escaped in _ESCAPED.items()}


class StoreCatalog(interfaces.Catalog):
    """A `Catalog` of the tables of a store.

    Tables made here have names that begin with `prefix`. The settings describe the others, or their columns can be
    guessed. Also raises RetrieverUnavailable and RetrieverFailed.
    """

    def __init__(
        self,
        store: Store,
        described: Mapping[str, AttachedTable] | None = None,
        *,
        encoder: str | None = None,
        prefix: str = "boundarymorph_",
        schema_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        directory: Path = Path(".artifacts"),
    ) -> None:
        """Open nothing yet.

        Args:
            store: The store.
            described: The tables that the settings describe.
            encoder: The encoder of guessed tables.
            prefix: The beginning of the names of tables made here.
            schema_seconds: Seconds until a table is described again.
            clock: Returns the time in seconds.
            directory: The folder for artifacts.
        """
        self._directory = directory
        self._store, self._described, self._encoder, self._prefix = store, dict(described or {}), encoder, prefix
        self._seconds, self._clock = schema_seconds, clock
        self._lock = threading.Lock()
        self._open: dict[str, tuple[StoreIndex, float]] = {}
        self._there: tuple[frozenset[str], Mapping[str, AttachedTable], float] = (frozenset(), {}, -float("inf"))

    @property
    def described(self) -> frozenset[str]:
        return frozenset(self._described)

    def check(self) -> None:
        self._store.names()

    def exists(self, name: str) -> bool:
        made, others = self._tables()
        return name in self._described or name in made or name in others

    def ensure(
        self, name: str, *, encoder: str | None, dimension: int, kind: str | None = None, lexical: bool = True
    ) -> bool:
        store, created = self._store, None
        made, others = self._tables(fresh=True)
        if name not in {*self._described, *made, *others}:
            interfaces.check_name(name)
            if kind is not None and kind not in store.kinds:
                raise errors.InvalidInput(
                    f"an index in {store.name} is of kind {' or '.join(store.kinds)}, not {kind!r}"
                )
            if dimension not in store.dimensions:
                least, most = store.dimensions[0], store.dimensions[-1]
                raise errors.InvalidInput(
                    f"vectors in {store.name} have {least} to {most:,} dimensions, not {dimension}"
                )
            created = datetime.now(UTC).isoformat()
            kind = kind or store.kinds[0]
            about = {"encoder": encoder, "created": created, "kind": kind, "lexical": lexical}
            try:
                store.create(self._table(name), dimension, kind, orjson.dumps(about).decode(), lexical=lexical)
            except (errors.RetrieverFailed, errors.RetrieverUnavailable):
                if name not in self._tables(fresh=True)[0]:  # else another process was faster
                    raise
            self._forget(name)
        info = self._reopened(name).info
        interfaces.check_same(name, info, encoder=encoder, dimension=dimension, kind=kind)
        return info.created == created

    def get(self, name: str, caller: str = "") -> StoreIndex:
        """Return an index as `Catalog.get` does.

        An index that was just deleted elsewhere may still be returned; its calls then fail.
        """
        with self._lock:
            index, until = self._open.get(name, (None, 0.0))
        if index is not None and not index.table.stale and self._clock() < until:
            return index
        return self._reopened(name)

    def describe(self, name: str) -> interfaces.IndexDescription:
        index = self._reopened(name)
        return index.info.describe(name, index.count(), self._artifacts(index))

    def list(self, wanted: Callable[[str], bool] = interfaces.accept_all) -> interfaces.IndexListing:
        made, others = self._tables(fresh=True)
        names = sorted(filter(wanted, {*self._described, *made, *others}))
        return interfaces.describe_indexes(names, self.describe, named=True)

    def artifacts(self, name: str) -> ArtifactFile:
        """Return the artifacts as `Catalog.artifacts` does.

        A later index of the same name has others.
        """
        return self._artifacts(self.get(name))

    def _artifacts(self, index: StoreIndex) -> ArtifactFile:
        created = index.info.created
        folder = quote(index.name, safe="") + (f"@{quote(created, safe='')}" if created else "")
        return ArtifactFile(self._directory / folder, index.name, create=True)

    def delete(self, name: str) -> None:
        """Remove an index as `Catalog.delete` does. Raises InvalidInput if the table is not ours."""
        if name in self._described or name not in self._tables(fresh=True)[0]:
            self.get(name)
            raise errors.InvalidInput(f"the index {name!r} is a table of your own; delete it in {self._store.name}")
        self._store.drop(self._table(name))
        self._forget(name)
        for folder in self._directory.glob(f"{quote(name, safe='')}@*"):
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        self._store.close()

    def _reopened(self, name: str) -> StoreIndex:
        with self._lock:
            known, _ = self._open.pop(name, (None, 0.0))
        index = self._opened(name)
        if known is not None and known.info == index.info and not known.table.stale and index.info.created:
            index = known
        with self._lock:
            self._open[name] = (index, self._clock() + self._seconds)
        return index

    def _opened(self, name: str) -> StoreIndex:
        attached = self._described.get(name)
        if attached is None and interfaces.NAME.fullmatch(name):
            with suppress(errors.UnknownIndex):
                table = self._store.open(created_table(self._store, self._table(name)))
                return StoreIndex(name, _information(table), table, self._store.name)
        attached = attached or self._tables()[1].get(name)
        if attached is None:
            raise interfaces.unknown(name)
        try:
            table = self._store.open(attached)
        except errors.UnknownIndex as error:
            raise errors.UnknownIndex(f"there is no table {attached.table!r} in {self._store.name}") from error
        info = interfaces.IndexConfiguration(attached.encoder, table.dimension, "", lexical=attached.words)
        return StoreIndex(name, info, table, self._store.name)

    def _table(self, name: str) -> str:
        return self._prefix + "".join(_ESCAPED.get(letter, letter) for letter in name)

    def _forget(self, name: str) -> None:
        with self._lock:
            self._open.pop(name, None)
            self._there = (frozenset(), {}, -float("inf"))

    def _tables(self, *, fresh: bool = False) -> tuple[Collection[str], Mapping[str, AttachedTable]]:
        """Return the names of the indexes made here and, unless tables are described, the others."""
        with self._lock:
            made, others, until = self._there
        if fresh or self._clock() >= until:
            rests = [name.removeprefix(self._prefix) for name in self._store.names() if name.startswith(self._prefix)]
            names = [re.sub("_[_dh]", lambda escaped: _PLAIN[escaped[0]], rest) for rest in rests]
            made = frozenset(
                name for name, rest in zip(names, rests, strict=True) if self._table(name) == self._prefix + rest
            )
            others = {
                name: found.model_copy(update={"encoder": self._encoder})
                for name, columns in (() if self._described else self._store.columns())
                if not name.startswith(self._prefix)
                and (found := guess_columns(self._store.reference(name), columns, self._store.own_id)) is not None
            }
            with self._lock:
                self._there = (made, others, self._clock() + self._seconds)
        return made, others


def _information(table: Table) -> interfaces.IndexConfiguration:
    """Return the configuration with which an index was created.

    Raises:
        CorruptIndex: If its table was not made here.
    """
    try:
        about = orjson.loads(table.about)
        return interfaces.IndexConfiguration(
            about["encoder"], table.dimension, about["created"], about["kind"], lexical=about["lexical"]
        )
    except (KeyError, TypeError, orjson.JSONDecodeError) as error:
        raise errors.CorruptIndex(
            "a table whose name begins with the prefix of this service was not made by it; choose another "
            "stores.NAME.prefix, or describe the table in stores.NAME.indexes"
        ) from error


class Catalogs(interfaces.Catalog):
    """A `Catalog` over a base catalog for new indexes and the catalogs of stores.

    An index is `STORE/NAME`, or found by its name among the described, the base, then other stores. It is called
    `STORE/NAME` unless only one is described by that name or it is in the base.
    """

    def __init__(self, base: interfaces.Catalog, stores: Mapping[str, StoreCatalog]) -> None:
        """Combine catalogs.

        Args:
            base: The catalog for indexes without a store in their name; may be one of the stores.
            stores: The catalogs by the name of the store.
        """
        self._base, self._stores = base, stores
        self._away: set[str] = set()

    def check(self) -> None:
        """Check the base alone: a store that is away fails only its own requests."""
        self._base.check()

    def exists(self, name: str) -> bool:
        try:
            catalog, inner = self._resolve(name)
        except errors.UnknownIndex:
            return False
        return catalog.exists(inner)

    def ensure(
        self, name: str, *, encoder: str | None, dimension: int, kind: str | None = None, lexical: bool = True
    ) -> bool:
        catalog, inner = self._resolve(name)
        return catalog.ensure(inner, encoder=encoder, dimension=dimension, kind=kind, lexical=lexical)

    def get(self, name: str, caller: str = "") -> interfaces.Index:
        catalog, inner = self._resolve(name)
        return catalog.get(inner, caller)

    def describe(self, name: str) -> interfaces.IndexDescription:
        catalog, inner = self._resolve(name)
        return catalog.describe(inner).model_copy(update={"name": self._called(catalog, inner)})

    def artifacts(self, name: str) -> ArtifactFile:
        catalog, inner = self._resolve(name)
        found = catalog.artifacts(inner)
        found.index = self._called(catalog, inner)
        return found

    def list(self, wanted: Callable[[str], bool] = interfaces.accept_all) -> interfaces.IndexListing:
        """List the indexes as `Catalog.list` does, and a store that is away by its name."""
        described = frozenset().union(*(catalog.described for catalog in self._stores.values()))
        shown = [*self._base.list(lambda name: name not in described and wanted(name))]
        for catalog in self._stores.values():
            if catalog is self._base:
                continue
            try:
                found = catalog.list(lambda name, catalog=catalog: wanted(self._called(catalog, name)))  # type: ignore[misc]
            except errors.BoundaryMorphError as error:
                found = [interfaces.UnreadableIndex("", error)]
            for info in found:
                info.name = self._called(catalog, info.name)
                shown.append(info)
        return sorted(shown, key=lambda info: info.name)

    def totals(self) -> Mapping[str, interfaces.IndexTotals]:
        """Return the totals of the base, and log when another store is away or back."""
        for name, catalog in self._stores.items():
            try:
                if catalog is not self._base:
                    catalog.check()
            except errors.BoundaryMorphError as error:
                if name not in self._away:
                    log.warning("stores.%s: not ready; requests for its indexes fail meanwhile: %s", name, error)
                self._away.add(name)
            else:
                if name in self._away:
                    log.info("stores.%s: ready again", name)
                self._away.discard(name)
        return self._base.totals()

    def delete(self, name: str) -> None:
        catalog, inner = self._resolve(name)
        catalog.delete(inner)

    def close(self) -> None:
        for catalog in self._stores.values():
            catalog.close()
        self._base.close()

    def _called(self, catalog: interfaces.Catalog, inner: str) -> str:
        holders = [store for store, of_store in self._stores.items() if inner in of_store.described]
        if catalog is self._base:
            return inner
        store = next(store for store, of_store in self._stores.items() if of_store is catalog)
        return inner if holders == [store] else f"{store}/{inner}"

    def _resolve(self, name: str) -> tuple[interfaces.Catalog, str]:
        """Return the catalog with an index, and its name there.

        An index that does not exist belongs to the base.
        """
        store, slash, inner = name.partition("/")
        if slash:
            if store not in self._stores:
                raise interfaces.unknown(name)
            return self._stores[store], inner
        interfaces.check_name(name)
        holders: Sequence[interfaces.Catalog] = [
            catalog for catalog in self._stores.values() if name in catalog.described
        ]
        others = [catalog for catalog in self._stores.values() if catalog is not self._base]
        if not holders and others and not self._base.exists(name):
            holders = [catalog for catalog in others if _has_index(catalog, name)]
        if len(holders) > 1:
            raise errors.InvalidInput(f"several stores have a table {name!r}; say STORE/{name}")
        return (holders[0] if holders else self._base), name


def _has_index(catalog: interfaces.Catalog, name: str) -> bool:
    try:
        return interfaces.NAME.fullmatch(name) is not None and catalog.exists(name)
    except errors.BoundaryMorphError:  # a store that is away hides no other
        return False
