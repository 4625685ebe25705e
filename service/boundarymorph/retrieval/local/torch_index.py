"""Exact search with PyTorch on any of its devices."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.retrieval.local.flat import FlatView, rounding_error
from boundarymorph.retrieval.local.mirror import MirroredIndex

_BLOCK = 65_536  # rows converted to float32 at a time


@dataclass(frozen=True, slots=True)
class TorchMirror:
    """Rows on a device.

    matrix: (capacity, d) float16; alive: (n,); loss: largest distance by which storage moved a row.
    """

    matrix: torch.Tensor
    alive: torch.Tensor
    loss: float

    def nominate(self, view: FlatView, query: NDArray[np.float32], depth: int) -> NDArray[np.int64]:
        """See `Mirror.nominate`. Works at any depth: the scores of all rows fit on the device, and so does sorting."""
        with torch.inference_mode():
            vector = torch.from_numpy(query.copy()).to(self.matrix.device)
            scores = torch.empty(view.rows.count, dtype=torch.float32, device=self.matrix.device)
            for start in range(0, view.rows.count, _BLOCK):
                block = slice(start, min(start + _BLOCK, view.rows.count))
                torch.mv(self.matrix[block].float(), vector, out=scores[block])
            scores.masked_fill_(~self.alive, -torch.inf)
            last = torch.topk(scores, depth, sorted=False).values.min()
            rows = torch.nonzero(scores >= last - 2 * self._error(query.size))[:, 0].cpu()
        found: NDArray[np.int64] = rows.numpy()
        return found

    def extended(self, view: FlatView, kept: int) -> TorchMirror:
        """See `Mirror.extended`. The mirrors share the rows as long as there is room for more."""
        matrix, loss = self.matrix, self.loss
        if view.rows.count > len(matrix):
            matrix = matrix.new_empty((max(view.rows.count, 2 * kept), matrix.shape[1]))
            matrix[:kept] = self.matrix[:kept]
        for start in range(kept, view.rows.count, _BLOCK):
            rows = torch.from_numpy(view.matrix[start : min(start + _BLOCK, view.rows.count)])
            stored = rows.to(torch.float16)
            matrix[start : start + len(rows)] = stored.to(matrix.device)
            loss = max(loss, float(torch.linalg.vector_norm(rows.double() - stored.double(), dim=1).max()))
        alive = torch.from_numpy(view.rows.alive.copy()).to(matrix.device)
        return replace(self, matrix=matrix, alive=alive, loss=loss)

    def _error(self, dimension: int) -> float:
        """Return a bound on the error of a score, from storage and from summation in float32 or TF32 factors."""
        error = self.loss + rounding_error(dimension)
        if self.matrix.is_cuda and torch.get_float32_matmul_precision() != "highest":
            error += 2.0**-9
        return error


class TorchIndex(MirroredIndex):
    """A `VectorIndex` on a PyTorch device, exact at any depth.

    Besides 4d bytes per document in this process, it takes 2d on the device, in float16, and up to twice that while the
    index grows. A search temporarily needs 10 bytes per document there.
    """

    def __init__(self, dimension: int, *, device: str = "cpu") -> None:
        """device: PyTorch's name for it. Raises InvalidConfiguration."""
        try:
            self._device = torch.empty(0, device=device).device
        except (RuntimeError, AssertionError) as error:
            raise InvalidConfiguration(f"PyTorch has no device {device!r} here: {error}") from error
        super().__init__(dimension)

    def _empty(self) -> TorchMirror:
        matrix = torch.empty((0, self._dimension), dtype=torch.float16, device=self._device)
        return TorchMirror(matrix, torch.empty(0, dtype=torch.bool, device=self._device), 0.0)
