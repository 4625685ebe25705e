"""Test that documents are read in pieces, and that none is lost between two pieces."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from boundarymorph.retrieval import document as module
from boundarymorph.retrieval.document import FEW, STOP, Document, in_awaited_pieces, in_pieces, size_of_all
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.retrieval.words import truncate_texts

pytestmark = pytest.mark.strangers
LARGE = 3 * 2**20


def document(number: int, characters: int) -> Document:
    return Document(f"{number:03}", "t" * characters, metadata={"n": number})


@pytest.mark.parametrize("characters", [1, LARGE])
async def test_pieces_contain_all_documents_in_order(characters: int, tmp_path: Path) -> None:
    catalog = LocalCatalog(tmp_path)
    index = catalog.create("i", encoder=None, dimension=2, lexical=False)
    index.upsert([document(number, characters) for number in range(12)], np.ones((12, 2)))
    ids = [id for number in (7, 3, 11, 0, 1, 2, 4, 5, 6, 8, 9, 10) for id in (f"{number:03}", f"unknown {number}")]
    known = [id for id in ids if not id.startswith("unknown")]

    async def awaited(left: Sequence[str]) -> Mapping[str, Document]:
        return index.documents(left)

    found = list(in_pieces(index.documents, ids))
    assert [id for piece in found for id in piece] == known
    assert [[*piece] for piece in found] == [[*piece] async for piece in in_awaited_pieces(awaited, ids)]
    assert (len(found) > 1) == (characters == LARGE)
    assert all(size_of_all(piece.values()) < STOP + FEW * (LARGE + 100) for piece in found)
    without = index.documents(ids, texts=False)
    assert list(without) == known
    assert all(not each.text and each.metadata == {"n": int(each.id)} for each in without.values())
    catalog.close()


async def test_documents_that_are_all_read_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring writes their metadata as JSON, on the event loop."""
    monkeypatch.setattr(module, "size_of_all", lambda documents: pytest.fail("measured"))
    pool = {f"{number:03}": document(number, 1) for number in range(3)}

    async def read(left: Sequence[str]) -> Mapping[str, Document]:
        return {id: pool[id] for id in left}

    assert [piece async for piece in in_awaited_pieces(read, list(pool))] == [pool]


def test_beginnings_share_a_bound_on_characters() -> None:
    texts = ["a" * 10, "b" * 100, "c" * 50]
    assert truncate_texts(texts, 3, most=160) == texts
    assert truncate_texts(texts, 3, most=159) == ["a" * 10, "b" * 53, "c" * 50]
    assert truncate_texts(iter(texts), 3, most=30) == ["a" * 10, "b" * 10, "c" * 10]
