"""Memories in one SQLite file, shared by all processes of a machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import orjson

from boundarymorph.database import Database
from boundarymorph.memory.memory import REQUESTS, Audited, Memory, Observation
from boundarymorph.telemetry import metrics

SCHEMA = ("create table if not exists memories (key text primary key, used integer not null, state blob not null)",)
MEMORIES = 1_000  # in a file; the one that has not learned for longest makes room


class Memories:
    """The memories of an index or of pools, by key. Methods block and raise as those of `Database`. A memory that
    cannot be read counts as new."""

    def __init__(self, path: Path, prepare: Callable[[], None]) -> None:
        """path: of the file, which need not exist; prepare: makes the folder of a new file."""
        self._database = Database(path, SCHEMA, prepare)
        self.copy_to = self._database.copy_to

    def get(self, key: str, *, observations: bool = True) -> Memory:
        """Return the memory of this key, which may be new. observations: whether these are needed, too."""
        with self._database.opened() as database:
            if database is None:
                return Memory()
            row = database.execute("select state from memories where key = ?", (key,)).fetchone()
        return Memory() if row is None else _read(row[0], observations)

    def all(self) -> Mapping[str, Memory]:
        """Return all memories by key."""
        with self._database.opened() as database:
            rows = [] if database is None else database.execute("select key, state from memories").fetchall()
        return {key: _read(state) for key, state in sorted(rows)}

    def record(self, key: str, observations: Sequence[Observation], most: int = REQUESTS) -> None:
        """Add requests to a memory, and have it learn where that is due."""
        was_in_force = False

        def record(memory: Memory) -> Memory:
            nonlocal was_in_force
            was_in_force = memory.in_force
            return memory.record(observations, most)

        changed = self._change(key, record)
        if was_in_force and not changed.in_force:
            metrics.memory_out_of_force.inc()
        if changed.due:
            learned = changed.learn()
            self._change(key, lambda memory: memory.taking(learned))

    def record_audit(self, key: str, audited: Audited) -> None:
        """Add an audit to a memory."""
        self._change(key, lambda memory: memory.record_audit(audited))

    def forget(self) -> int:
        """Delete all memories, and return how many there were."""
        with self._database.opened() as database:
            return 0 if database is None else database.execute("delete from memories").rowcount

    def _change(self, key: str, change: Callable[[Memory], Memory]) -> Memory:
        with self._database.writing() as database:
            row = database.execute("select state from memories where key = ?", (key,)).fetchone()
            changed = change(Memory() if row is None else _read(row[0]))
            used = database.execute("select coalesce(max(used), 0) + 1 from memories").fetchone()[0]
            state = orjson.dumps(changed.to_json())
            database.execute("insert or replace into memories values (?, ?, ?)", (key, used, state))
            if row is None:
                database.execute(
                    "delete from memories where key not in (select key from memories order by used desc limit ?)",
                    (MEMORIES,),
                )
        return changed


def _read(state: bytes, observations: bool = True) -> Memory:
    try:
        values = orjson.loads(state)
        return Memory.of_json(values if observations else values | {"observations": []})
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError):
        return Memory()
