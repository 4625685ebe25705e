"""An index as a collection to evaluate on, with the judgements that `calibrate` reads, and the vectors that it has."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from boundarymorph.calibration.judgments import judgments_of
from boundarymorph.cli import source as sources
from boundarymorph.errors import InvalidInput
from boundarymorph.evaluation.datasets import Collection
from boundarymorph.retrieval.build import build_indexes
from boundarymorph.retrieval.interfaces import Search
from boundarymorph.settings import Settings

PAGE = 1_000  # documents read at a time
NAMED = 10  # documents that are not in the index


class Indexed(NamedTuple):
    """vectors: by the text that was encoded; encoder: the name of what made them."""

    collection: Collection
    vectors: Mapping[str, NDArray[np.floating]]
    encoder: str


def load(settings: Settings, name: str, judgments: Path) -> Indexed:
    """Read an index of this machine, and judgements of its documents.

    Raises InvalidInput for an index without an encoder or pages, and for judgements that say nothing about it.
    """
    given = judgments_of(sources.records(judgments))
    with closing(build_indexes(settings)) as catalog:
        index = catalog.get(name)
        encoder, page = index.info.encoder, getattr(index, "page", None)
        if encoder is None or page is None:
            raise InvalidInput(f"the index {name!r} has no vectors of an encoder, or cannot be read as a whole")
        contents: dict[str, str] = {}
        while found := page(next(reversed(contents), ""), PAGE):
            contents |= {document.id: document.content for document in found}
        every = Search("", max(1, len(contents)), embedding=np.ones(index.info.dimension))
        pool = index.retrieve(every).pool
    if unknown := sorted({document for grades in given.values() for document in grades} - contents.keys()):
        more = ", ..." if len(unknown) > NAMED else ""
        named = ", ".join(map(repr, unknown[:NAMED]))
        raise InvalidInput(f"{sources.named(judgments)}: the index {name!r} has no document {named}{more}")
    grades = {query: {id: round(grade) for id, grade in of.items() if round(grade) > 0} for query, of in given.items()}
    relevant = {query: of for query, of in grades.items() if of}
    if not relevant:
        raise InvalidInput(f"{sources.named(judgments)}: no line has a grade above 0 yet")
    vectors = {contents[id]: row for id, row in zip(pool.ids, pool.embeddings, strict=True) if id in contents}
    return Indexed(Collection(name, contents, {query: query for query in relevant}, relevant), vectors, encoder)
