"""Adapting an ONNX text model to batching: one sequence at a time, as many concurrently as there are cores."""

from boundarymorph.inference.models import OnnxTextModel


class OnnxModel:
    """The part of a batching `Model` that all ONNX models share.

    Each sequence is run separately, so that its result never depends on its batch.
    """

    backend = "onnx-cpu"
    batch_tokens = 1
    parallel = True
    pads = False

    def __init__(self, model: OnnxTextModel) -> None:
        self._model = model
        self.name = model.name
        self.max_length = model.max_length
        self.workers = model.threads

    def close(self) -> None:
        """Do nothing: the model has no threads of its own."""
