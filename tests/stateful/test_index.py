"""Test an index with two readers, as in two processes, against a dictionary.

Limits are tiny: changes are read three at a time, two deletions are recorded, matches of few filters are kept, and an
index of kind `ivf` is trained with a few documents, which are one cluster. Some reads are interrupted: another process
writes just before one of their SQL statements. The answer must then be that from before the write or from after it.
"""

import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from boundarymorph.errors import EmptyIndex, InvalidInput
from boundarymorph.retrieval.document import Document, Search
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.local import blocks as backups
from boundarymorph.retrieval.local import metadata as module
from boundarymorph.retrieval.local.catalog import LocalIndex
from boundarymorph.retrieval.local.sqlite_file import _LOG_PATIENCE
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.retrieval.local.vectors import TrainingPolicy
from boundarymorph.retrieval.ranking import fuse, unit_rows_of
from boundarymorph.retrieval.words import PoolWords
from boundarymorph.selection.pool import unit_rows
from tests.contract.vector_index import unit
from tests.retrieval.bm25 import literal_bm25
from tests.retrieval.test_vector_indexes import mirror
from tests.stateful.profile import draws

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # fsync costs nothing there
DIMENSION = 4
IDS = [f"d{number}" for number in range(12)]
GIVEN = unit(6, DIMENSION)
VECTORS = unit_rows_of(unit_rows(GIVEN, IDS[:6]).astype("<f2"))[0]  # the vectors as the index returns them
QUERIES = unit(3, DIMENSION, seed=1)
WORDS = ["tram", "trams", "violin", "rain", "the"]
POLICIES = [TrainingPolicy(least=4, share=0.2, pause=0), TrainingPolicy(least=10**9)]

texts = st.lists(st.sampled_from(WORDS), max_size=3).map(" ".join)
values = st.sampled_from([0, 1, 1.0, True, None, "a", "b", ["a", 1], {"c": "a"}, [0, 1, 2, 3, 4, 5, "a"]])
metadata = st.dictionaries(st.sampled_from(["x", "y"]), values, max_size=2)
leaves = st.one_of(
    st.fixed_dictionaries({"x": st.sampled_from([0, 1, True, None, "a", "b"])}),
    st.fixed_dictionaries({"y": st.sampled_from([0, 1, "a"]), "x": st.sampled_from([0, 1, "a"])}),
    st.fixed_dictionaries({"x.c": st.sampled_from(["a", "b"])}),
    st.fixed_dictionaries(
        {"y": st.fixed_dictionaries({"in": st.lists(st.sampled_from([0, 2, "a", True]), max_size=3)})}
    ),
    st.fixed_dictionaries({"y": st.sampled_from([{"gte": 1}, {"ne": 1}, {"exists": True}])}),
)
filters = st.one_of(
    leaves,
    st.fixed_dictionaries({"or": st.lists(leaves, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"and": st.lists(leaves, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"not": leaves}),
)
batches = st.lists(
    st.builds(lambda id, text, metadata: Document(id, text, None, metadata), st.sampled_from(IDS), texts, metadata),
    min_size=1,
    max_size=8,
)
vectors = st.lists(st.integers(0, len(VECTORS) - 1), min_size=8, max_size=8)
some_ids = st.lists(st.sampled_from([*IDS, "unknown"]), max_size=4)
readers = st.integers(0, 1)


@dataclass(frozen=True)
class Question:
    query: int
    words: str
    depth: int
    wanted: dict[str, Any] | None
    hybrid: bool

    @property
    def filter(self) -> Filter | None:
        return None if self.wanted is None else Filter(self.wanted)


questions = st.builds(
    Question,
    st.integers(0, len(QUERIES) - 1),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=2, unique=True).map(" ".join),
    st.sampled_from([1, 3, 6, 100]),
    st.none() | filters,
    st.booleans(),
)

Answer = tuple[list[str], list[list[float]], dict[str, Any]]
NOTHING: Answer = ([], [], {})
Model = dict[str, tuple[Document, int]]
"""Documents and the numbers of their vectors, in the order of writing."""


def expected(model: Model, question: Question, lexical: bool) -> Answer:
    ids, query = list(model), QUERIES[question.query].astype(np.float64)
    rows = VECTORS[[vector for _, vector in model.values()]]
    similar = dict(zip(ids, np.einsum("nd,d->n", rows, query).tolist(), strict=True))
    by_words = dict(zip(ids, literal_bm25(question.words, [d.text for d, _ in model.values()]), strict=True))
    met = [id for id in ids if question.filter is None or question.filter.matches(model[id][0].metadata)]
    found = sorted(met, key=lambda id: -similar[id])[: question.depth]
    features: dict[str, Any] = {}
    if question.hybrid and lexical:
        best = sorted((id for id in met if by_words[id]), key=lambda id: -by_words[id])
        found = fuse([found, best[: question.depth]]).ids[: question.depth]
        features["similarity"] = [similar[id] for id in found]
    if lexical:
        features["bm25"] = [by_words[id] for id in found]
        features["terms"] = PoolWords.from_texts(model[id][0].text for id in found).terms(question.words).tolist()
    return (found, VECTORS[[model[id][1] for id in found]].tolist(), features) if found else NOTHING


def same(one: Answer, other: Answer) -> bool:
    if one[:2] != other[:2] or one[2].keys() != other[2].keys():
        return False
    return all(np.allclose(one[2][name], other[2][name], rtol=1e-9, atol=1e-12) for name in one[2])


class InterruptedIndex(LocalIndex):
    """An index that runs `interrupt` before one of its SQL statements.

    `after` is the number of statements before that. The index also limits their number.
    """

    interrupt: Callable[[], None] | None = None
    after = 0
    asked = 0
    tombstones_kept, page_rows, log_bytes, filter_bytes = 2, 3, 2**16, 4_000

    def _connection(self) -> Any:
        connection = super()._connection()
        connection.set_trace_callback(self._before)
        return connection

    def _connect(self, patience: float) -> Any:
        """Connect with little patience for readers of the log.

        The interrupted read is one of them, and does not end before the write.
        """
        return super()._connect(0.001 if patience == _LOG_PATIENCE else patience)

    def _before(self, statement: str) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # the thread that makes blocks
        self.after -= 1
        if self.interrupt is not None and self.after < 0:
            interrupt, self.interrupt = self.interrupt, None
            interrupt()

    def changes(self, *arguments: Any, **options: Any) -> Any:
        self.asked += 1
        assert self.asked < 200, "it reads the changes for ever"
        return super().changes(*arguments, **options)


class IndexMachine(RuleBasedStateMachine):
    @initialize(lexical=st.booleans(), device=st.booleans(), kind=st.sampled_from(["flat", "ivf"]))
    def make(self, lexical: bool, device: bool, kind: str) -> None:
        """Make an index with two readers; with `device`, the second one has a mirror of the vectors."""
        self.folder = Path(tempfile.mkdtemp(prefix="index-", dir=MEMORY))
        self.path = self.folder / "index.sqlite3"
        DocumentStore.create(self.path, encoder=None, dimension=DIMENSION, kind=kind, lexical=lexical).close()
        self.device = device
        self.patches = pytest.MonkeyPatch()
        self.patches.setattr(module, "_FIRST_LIMIT", 2)
        self.patches.setattr(module, "FEW", 5)
        self.lexical = lexical
        self.model: Model = {}
        self.copies: list[tuple[Path, Model, bool]] = []
        self.made = 0
        self.indexes = [self.open(0), self.open(1)]
        self.write(self.indexes[0], [Document(id, WORDS[0]) for id in IDS], [0] * len(IDS))

    def open(self, reader: int) -> InterruptedIndex:
        make_mirror = (lambda dimension: mirror(dimension, 4)) if reader and self.device else None
        return InterruptedIndex("index", self.path, make_mirror, policy=POLICIES[reader])

    def teardown(self) -> None:
        for index in getattr(self, "indexes", []):
            index.close()
        if hasattr(self, "patches"):
            self.patches.undo()
        shutil.rmtree(getattr(self, "folder", ""), ignore_errors=True)

    @rule(reader=readers, documents=batches, numbers=vectors)
    def upsert(self, reader: int, documents: list[Document], numbers: list[int]) -> None:
        self.write(self.indexes[reader], documents, numbers)

    @rule(reader=readers, ids=some_ids)
    def delete(self, reader: int, ids: list[str]) -> None:
        self.remove(self.indexes[reader], ids)

    @rule(reader=readers, asked=st.lists(questions, min_size=1, max_size=3))
    def retrieve(self, reader: int, asked: list[Question]) -> None:
        for question in asked:
            answer = self.ask(reader, question)
            assert same(answer, expected(self.model, question, self.lexical)), answer

    @rule(
        reader=readers,
        question=questions,
        documents=batches,
        numbers=vectors,
        ids=some_ids,
        change=st.sampled_from(["write", "delete", "write all again"]),
        compacting=st.booleans(),
        after=st.integers(0, 20),
    )
    def retrieve_while_another_writes(
        self,
        reader: int,
        question: Question,
        documents: list[Document],
        numbers: list[int],
        ids: list[str],
        change: str,
        compacting: bool,
        after: int,
    ) -> None:
        """Retrieve while another process writes, which then makes the first reader refresh."""
        index, other = self.indexes[reader], self.indexes[1 - reader]
        before, failures = dict(self.model), []

        def interrupt() -> None:
            try:
                if change == "delete":
                    self.remove(other, ids)
                elif change == "write" or not self.model:
                    self.write(other, documents, numbers)
                else:
                    self.write(other, *zip(*self.model.values(), strict=True))
                if compacting:
                    other.compact()
                if self.model and not index._catching_up.locked():
                    index.refresh()
            except BaseException as failure:  # SQLite would swallow it
                failures.append(failure)

        index.after, index.interrupt = after, interrupt
        answer = self.ask(reader, question)
        index.interrupt = None
        assert not failures
        either = [expected(model, question, self.lexical) for model in (before, self.model)]
        assert same(answer, either[0]) or same(answer, either[1]), (answer, *either)

    @rule(reader=readers)
    def count_and_texts(self, reader: int) -> None:
        index = self.indexes[reader]
        assert index.count() == len(self.model)
        assert index.documents(IDS) == {id: self.model[id][0] for id in IDS if id in self.model}
        lengths = {id: len(document.text) for id, (document, _) in self.model.items()}
        assert index.characters(IDS) == lengths

    @rule(reader=readers)
    def await_training(self, reader: int) -> None:
        self.indexes[reader].await_training()

    @rule(reader=readers)
    def compact(self, reader: int) -> None:
        self.indexes[reader].compact()

    @rule(reader=readers)
    def restart(self, reader: int) -> None:
        self.indexes[reader].close()
        self.indexes[reader] = self.open(reader)

    @precondition(lambda self: not self.lexical)
    @rule(reader=readers)
    def index_words(self, reader: int) -> None:
        assert self.indexes[reader].index_words()
        self.lexical = True

    @precondition(lambda self: len(self.copies) < 3)
    @rule(reader=readers)
    def back_up(self, reader: int) -> None:
        target = self.folder / f"copy-{len(self.copies)}"
        assert self.indexes[reader].back_up(target).count == len(self.model)
        self.copies.append((target, dict(self.model), self.lexical))

    @precondition(lambda self: self.copies)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        """Continue both indexes with an older copy in another folder."""
        target, model, lexical = data.draw(st.sampled_from(self.copies))
        for index in self.indexes:
            index.close()
        self.made += 1
        self.path = self.folder / f"restored-{self.made}" / "index.sqlite3"
        backups.unpack(target, self.path.parent, self.path.name)
        self.model, self.lexical = dict(model), lexical
        self.indexes = [self.open(0), self.open(1)]

    @invariant()
    def blocks_are_usable(self) -> None:
        assert not any(index._trainer.files._refused for index in getattr(self, "indexes", []))

    @invariant()
    def values_belong_to_documents(self) -> None:
        """Check that no metadata of deleted documents remain."""
        for index in getattr(self, "indexes", [])[:1]:
            with index.transaction() as connection:
                (stale,) = connection.execute(
                    "SELECT count(*) FROM field_values WHERE sequence NOT IN "
                    "(SELECT sequence FROM documents WHERE embedding IS NOT NULL)"
                ).fetchone()
            assert stale == 0

    def ask(self, reader: int, question: Question) -> Answer:
        self.indexes[reader].asked = 0
        query, hybrid = QUERIES[question.query], question.hybrid and self.lexical
        try:
            pool = (
                self.indexes[reader]
                .retrieve(Search(question.words, question.depth, query, question.wanted, hybrid))
                .pool
            )
        except EmptyIndex:
            return NOTHING
        except InvalidInput as error:
            if "passes the filter" not in str(error):
                raise
            return NOTHING
        features: dict[str, Any] = {name: list(map(float, values)) for name, values in pool.features.items()}
        if pool.terms is not None:
            features["terms"] = pool.terms.tolist()
        return list(pool.ids), pool.embeddings.tolist(), features

    def write(self, index: LocalIndex, documents: Sequence[Document], numbers: Sequence[int]) -> None:
        numbers = numbers[: len(documents)]
        index.upsert(documents, GIVEN[list(numbers)])
        for document, number in zip(documents, numbers, strict=True):
            self.model.pop(document.id, None)
            self.model[document.id] = document, number

    def remove(self, index: LocalIndex, ids: Sequence[str]) -> None:
        assert index.delete(ids) == len(set(ids) & self.model.keys())
        for id in ids:
            self.model.pop(id, None)


TestIndex = IndexMachine.TestCase
TestIndex.settings = draws(14, 40)
