"""The structure of an ivf index: its training, and its files."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import faiss
import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import StorageUnavailable
from boundarymorph.retrieval.catalog import StructureDescription
from boundarymorph.retrieval.local.ivf import Effort, InvertedFile, IvfIndex
from boundarymorph.retrieval.local.rows import RowBook
from boundarymorph.retrieval.local.store import DocumentStore

QUERIES = 64  # of the index's own vectors, to measure recall
_faiss: Any = faiss  # has few type hints
_SAMPLE = 40  # training vectors per cluster
_ROUNDS = 6
_BLOCK = 4_096
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
    sample = store.sample(min(count, clusters_of(count) * _SAMPLE), seed)
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


def clusters_of(count: int) -> int:
    """Return the number of clusters for this many vectors."""
    return max(1, min(count // 8, int(4 * math.sqrt(count))))


def trained(sample: NDArray[np.float32], clusters: int, seed: int, checkpoint: Callable[[], None]) -> Any:
    """Return FAISS's inverted file with half precision and inner products, trained but without vectors.

    sample: (n, d) unit rows, n at least `clusters`. checkpoint is called at least about every second; an exception from
    it aborts the training, which FAISS's own training would not allow.
    """
    centres = _centres(sample, clusters, seed, checkpoint)
    dimension = centres.shape[1]
    quantizer = _faiss.IndexFlatIP(dimension)
    quantizer.add(centres)
    index = _faiss.IndexIVFScalarQuantizer(
        quantizer, dimension, clusters, _faiss.ScalarQuantizer.QT_fp16, _faiss.METRIC_INNER_PRODUCT, False
    )
    index.own_fields = True
    quantizer.this.disown()
    index.is_trained = True
    index.set_direct_map_type(_faiss.DirectMap.Array)  # to look up the vector of a row
    return index


def _centres(
    sample: NDArray[np.float32], clusters: int, seed: int, checkpoint: Callable[[], None]
) -> NDArray[np.float32]:
    """Return (clusters, d) unit rows, by spherical k-means."""
    rng = np.random.default_rng(seed)
    centres = sample[rng.permutation(len(sample))[:clusters]].copy()
    for _ in range(_ROUNDS):
        sums = np.zeros(centres.shape, np.float64)
        for start in range(0, len(sample), _BLOCK):
            checkpoint()
            block = sample[start : start + _BLOCK]
            nearest = np.argmax(block @ centres.T, axis=1)
            order = np.argsort(nearest, kind="stable")
            members, starts = np.unique(nearest[order], return_index=True)
            sums[members] += np.add.reduceat(block[order].astype(np.float64), starts, axis=0)
        lengths = np.linalg.norm(sums, axis=1)
        lost = lengths < 1e-6
        sums[lost] = sample[rng.integers(len(sample), size=int(lost.sum()))]
        lengths[lost] = 1
        centres = (sums / lengths[:, None]).astype(np.float32)
    return centres
