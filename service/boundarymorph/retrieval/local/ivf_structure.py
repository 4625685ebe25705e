"""The structure of an ivf index: its training, and its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import faiss
import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import StorageUnavailable
from boundarymorph.retrieval.catalog import StructureDescription
from boundarymorph.retrieval.local.clusters import clusters_of, sample_size, trained
from boundarymorph.retrieval.local.ivf import Effort, InvertedFile, IvfIndex
from boundarymorph.retrieval.local.rows import RowBook
from boundarymorph.retrieval.local.store import DocumentStore

QUERIES = 64  # of the index's own vectors, to measure recall
_faiss: Any = faiss
_FILE = "vectors.faiss"


class IvfFormat:
    """A `Format` of FAISS's own file."""

    suffix: ClassVar[str] = ".ivf"
    mapped: ClassVar[bool] = False

    def save(self, index: IvfIndex, folder: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """See `Format.save`."""
        file = index.file
        assert file.effort is not None
        try:
            _faiss.write_index(file.index, str(folder / _FILE))
        except RuntimeError as error:
            raise StorageUnavailable(f"FAISS could not write {folder / _FILE}: {error}") from error
        exact = np.array(list(file.exact.values()), "<f4").reshape(len(file.exact), file.index.d)
        effort = {"depths": file.effort.depths, "probes": file.effort.probes, "recalls": file.effort.recalls}
        arrays = {"places": np.array(list(file.exact), "<i8"), "exact": exact}
        return effort | {"loss": file.loss, "clusters": file.clusters}, arrays

    def load(
        self, folder: Path, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], book: RowBook
    ) -> IvfIndex:
        """See `Format.load`."""
        index = _faiss.read_index(str(folder / _FILE))
        exact = dict(zip(arrays["places"].tolist(), arrays["exact"], strict=True))
        effort = Effort(tuple(facts["depths"]), tuple(facts["probes"]), tuple(facts["recalls"]))
        return IvfIndex(InvertedFile(index, effort, exact, facts["loss"]), book=book)


def trained_index(
    store: DocumentStore, fill: Callable[[IvfIndex], None], checkpoint: Callable[[], None], seed: int = 0
) -> IvfIndex | None:
    """Return an index trained with a sample of the store, None if the store is empty. fill: adds all its documents."""
    count = store.count()
    sample = store.sample(sample_size(count), seed)
    if not len(sample):
        return None
    index = IvfIndex(InvertedFile(trained(sample, min(len(sample), clusters_of(count)), seed, checkpoint)))
    fill(index)
    index.changed = 0
    index.file.measure(sample[:QUERIES], checkpoint)
    return index


def described(manifest: Mapping[str, Any]) -> StructureDescription:
    """Return the description of a structure in files."""
    recall = dict(zip(manifest["depths"], manifest["recalls"], strict=True))
    return StructureDescription(**{name: manifest[name] for name in ("count", "sequence", "clusters")}, recall=recall)
