"""Memories in one SQLite file, shared by all processes of a machine, and what each learned, in numbers and words."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import orjson
from pydantic import BaseModel, Field

from boundarymorph.database import Database
from boundarymorph.errors import StorageUnavailable
from boundarymorph.memory.memory import LEAST_AHEAD, REQUESTS, Audited, Memory, Observation
from boundarymorph.reading import counted
from boundarymorph.selection.promise import Promise, certified
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
        before, changed = self._change(key, lambda memory: memory.record(observations, most))
        if before.in_force and not changed.in_force:
            metrics.memory_out_of_force.inc()
        if changed.due:
            learned = changed.learn()
            self._change(key, lambda memory: memory.taking(learned))

    def record_audit(self, key: str, audited: Audited) -> None:
        """Add an audit to a memory."""
        self._change(key, lambda memory: memory.record_audit(audited))

    def forget(self, name: str | None = None) -> int:
        """Delete all memories, or those of the pools of a name, and return how many there were. A damaged file is
        deleted as a whole."""
        forgetting = "delete from memories where ?1 is null or json_extract(key, '$[0]') = ?1"  # see MemoryKey
        try:
            with self._database.opened() as database:
                return 0 if database is None else database.execute(forgetting, (name,)).rowcount
        except StorageUnavailable as error:
            if type(error.__cause__) is not sqlite3.DatabaseError:  # but locked, or not to be written
                raise
            self._database.remove()
            return 0

    def _change(self, key: str, change: Callable[[Memory], Memory]) -> tuple[Memory, Memory]:
        """Return the memory before and after a change."""
        with self._database.writing() as database:
            row = database.execute("select state from memories where key = ?", (key,)).fetchone()
            before = Memory() if row is None else _read(row[0])
            changed = change(before)
            used = database.execute("select coalesce(max(used), 0) + 1 from memories").fetchone()[0]
            state = orjson.dumps(changed.to_json())
            database.execute("insert or replace into memories values (?, ?, ?)", (key, used, state))
            if row is None:
                database.execute(
                    "delete from memories where key not in (select key from memories order by used desc limit ?)",
                    (MEMORIES,),
                )
        return before, changed


def _read(state: bytes, observations: bool = True) -> Memory:
    try:
        values = orjson.loads(state)
        return Memory.of_json(values if observations else values | {"observations": [], "gained": []})
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError):
        return Memory()


PROMISE = Promise(0.05, 0.9)  # of which it is said whether it is certified


class AuditedSelections(BaseModel):
    """Selections of one kind that were scored to the end, for what they would have lost."""

    kind: str = Field(description="of the selections: the size of their set, and what relevance is")
    audits: int = Field(description="of the recent ones that are kept")
    real_loss: float = Field(description="mean after all calls of a selection that stops by itself")
    certified: bool = Field(description="whether a loss of .05 at most, in .9 of all selections, can be promised")


class LearnedMemory(BaseModel):
    """What selections have learned of a scorer. Slopes and amplitude are in log-odds of its scores."""

    scorer: str = Field(description="its name")
    vectors: str = Field(description="what made the vectors: the encoder's name, or 'words'")
    tenant: str = Field(description="of the keys whose selections they are; empty without tenants")
    requests: int = Field(description="that were learned from, of all times")
    remembered: int = Field(description="the recent ones of these that are kept")
    in_force: bool = Field(description="whether selections use it: while it predicts scores better than the default")
    ahead: float | None = Field(description="nats a request by which it does, of late; in force from 1 on")
    level: float | None = Field(description="log-odds expected of an average candidate")
    by_rank: float | None = Field(description="more log-odds for each standard deviation along the ranking")
    by_similarity: float | None = Field(description="the same, of the similarity")
    by_words: float | None = Field(description="the same, of the root of BM25")
    amplitude: float | None = Field(description="standard deviation of what none of these explains")
    audited: list[AuditedSelections] = Field(default_factory=list, description="selections that were scored to the end")


def described(memories: Memories, name: str = "") -> list[LearnedMemory]:
    """Return all of an index, or of the pools of a name. Raises as `Memories.all` does."""
    return [_described(key, memory) for key, memory in memories.all().items() if orjson.loads(key)[0] == name]


def _described(key: str, memory: Memory) -> LearnedMemory:
    _, scorer, vectors, tenant = orjson.loads(key)
    learned = dict.fromkeys(("level", "by_rank", "by_similarity", "by_words", "amplitude"))
    if (prior := memory.prior) is not None:
        amplitude = math.sqrt(prior.scale)
        learned = dict(zip(learned, (prior.level, *(amplitude * prior.slopes).tolist(), amplitude), strict=True))
    return LearnedMemory(
        scorer=scorer,
        vectors=vectors,
        tenant=tenant,
        requests=memory.requests,
        remembered=len(memory.observations),
        in_force=memory.in_force,
        ahead=memory.ahead / memory.weight if memory.weight else None,
        audited=_audited(memory),
        **learned,
    )


def _audited(memory: Memory) -> list[AuditedSelections]:
    found = []
    for kind in sorted({one.kind for one in memory.audits}):
        audits = [one.audit for one in memory.audits if one.kind == kind]
        most = max(look.calls for audit in audits for look in audit.looks)
        found.append(
            AuditedSelections(
                kind=kind,
                audits=len(audits),
                real_loss=fmean(audit.looks[-1].real for audit in audits),
                certified=certified(audits, PROMISE, most).threshold is not None,
            )
        )
    return found


def in_words(learned: LearnedMemory) -> str:
    """Return a paragraph."""
    return "\n".join([_of_prior(learned), *map(_of_audits, learned.audited)])


def _of_audits(audited: AuditedSelections) -> str:
    said = "can be promised" if audited.certified else "cannot be promised"
    count = counted(audited.audits, "selection", "selections")
    return (
        f"  {count} with {audited.kind}, scored to the end: the mean loss is {audited.real_loss:.1%}, "
        f"and at most {PROMISE.loss:.0%} in {PROMISE.probability:.0%} {said}"
    )


def _of_prior(learned: LearnedMemory) -> str:
    lines = [f"{learned.scorer}, vectors of {learned.vectors}{f', tenant {learned.tenant}' if learned.tenant else ''}"]
    if learned.level is None or learned.by_rank is None or learned.ahead is None:
        return f"{lines[0]}\n  {learned.requests:,} requests, too few to learn from"
    lines.append(f"  learned from the last {learned.remembered:,} of {learned.requests:,} requests")
    state = "in force" if learned.in_force else f"not in force, for which {LEAST_AHEAD:g} is needed"
    lines.append(f"  predicts scores better than the default by {learned.ahead:+.1f} nats a request: {state}")
    lines.append(f"  an average candidate is expected to score {1 / (1 + math.exp(-learned.level)):.2g}")
    slopes = {"rank": learned.by_rank, "similarity": learned.by_similarity, "words (BM25)": learned.by_words}
    lines.append("  one standard deviation more multiplies the odds of a score by")
    most = max(1e-9, *(abs(slope or 0.0) for slope in slopes.values()))
    for what, slope in slopes.items():
        bar = "█" * round(20 * abs(slope or 0.0) / most)
        lines.append(f"    {what:<13}{math.exp(slope or 0.0):5.2f}  {bar}")
    return "\n".join(lines)
