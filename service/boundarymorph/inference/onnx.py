"""An ONNX text model as batches are made for it: one sequence at a time, as many side by side as there are cores."""

from boundarymorph.inference.models import OnnxTextModel


class OnnxModel:
    """The part of a batching `Model` that all ONNX models share.

    Each sequence is run on its own, so that its result never depends on what it is batched with.
    """

    backend = "onnx-cpu"
    batch_tokens = 1
    side_by_side = True
    pads = False

    def __init__(self, model: OnnxTextModel) -> None:
        self._model = model
        self.name = model.name
        self.max_length = model.max_length
        self.workers = model.threads

    def close(self) -> None:
        """Nothing to release: the model has no threads of its own."""
