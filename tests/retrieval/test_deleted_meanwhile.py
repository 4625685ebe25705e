"""An index that is deleted while it is described, and an upload that a full disk ends."""

from pathlib import Path
from typing import Any

import pytest

from boundarymorph.database import bytes_of
from boundarymorph.errors import StorageFull, UnknownIndex
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.local import catalog as module
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.retrieval.uploads import ParsedDocument, ingest

pytestmark = pytest.mark.strangers


def test_describing_an_index_while_it_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, other = LocalCatalog(tmp_path), LocalCatalog(tmp_path)
    catalog.create("texts", encoder=None, dimension=2)

    def deleted_first(folder: Path) -> Any:
        other.delete("texts")
        return bytes_of(folder)

    monkeypatch.setattr(module, "bytes_of", deleted_first)
    with pytest.raises(UnknownIndex):
        catalog.describe("texts")
    assert bytes_of(tmp_path / "texts") == 0


@pytest.mark.parametrize(
    ("batches", "told"), [(0, "nothing of this upload was written"), (2, "6 documents of this upload")]
)
async def test_an_upload_that_ends_says_how_far_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int, told: str
) -> None:
    index = LocalCatalog(tmp_path).create("texts", encoder=None, dimension=0, kind="words")
    write, written = index.upsert, list[object]()

    def until_full(*arguments: Any) -> None:
        if len(written) == batches:
            raise StorageFull("no space left")
        written.append(write(*arguments))

    monkeypatch.setattr(index, "upsert", until_full)

    async def entries() -> Any:
        for number in range(9):
            yield ParsedDocument(number + 1, Document(str(number), f"text {number}", None, {}), None, number + 1)

    with pytest.raises(StorageFull) as caught:
        await ingest(index, None, entries(), batch_size=3)
    assert told in caught.value.public and told in str(caught.value)
    assert index.count() == 3 * batches
