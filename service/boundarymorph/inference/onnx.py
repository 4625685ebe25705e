"""Models in ONNX, on the CPU."""

from collections.abc import Sequence

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.inference.models import Weights, available_cores
from boundarymorph.inference.tokenization import encode_pairs, encode_texts, plain


class OnnxTextModel:
    """An ONNX transformer that reads one text, or one pair of texts, at a time; batching `Model`s derive from it.

    Inputs are never batched: dynamic int8 quantisation takes its ranges from the whole batch, so a batched answer would
    depend on its neighbours. A run is single-threaded, and runs are meant to be concurrent: on two cores that is as
    fast as splitting each run, and does not slow down when the cores are shared.

    max_length: tokens, special ones included; longer inputs are truncated. threads: how many concurrent runs keep the
    cores busy, by default one per core.
    Raises ModelUnavailable, or InvalidConfiguration for a length that the model does not support.
    """

    backend = "onnx-cpu"
    batch_tokens = 1
    parallel = True
    pads = False

    def __init__(self, weights: Weights, *, max_length: int | None = None, threads: int | None = None) -> None:
        self.max_length = weights.positions if max_length is None else max_length
        self.workers = available_cores() if threads is None else threads
        if not 8 <= self.max_length <= weights.positions:
            raise InvalidConfiguration(f"{weights.model} takes a max_length of 8 to {weights.positions} tokens")
        weights.verify()
        self.name = f"{weights.name}/{self.max_length}"
        self._tokenizer = plain(Tokenizer.from_file(str(weights.tokenizer)))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            str(weights.onnx), sess_options=options, providers=["CPUExecutionProvider"]
        )
        self._inputs = {node.name for node in self._session.get_inputs()}
        self._output = self._session.get_outputs()[0].name

    def infer(self, ids: NDArray[np.int64], type_ids: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """Return the model's first output for (n,) token ids and their segments (all 0 if None), without a batch axis.

        Blocks for the time of one forward pass; thread-safe.
        """
        segments = np.zeros_like(ids) if type_ids is None else type_ids
        features = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": segments}
        feed = {name: values[None] for name, values in features.items() if name in self._inputs}
        (output,) = self._session.run([self._output], feed)
        first: NDArray[np.float32] = np.asarray(output, dtype=np.float32)[0]
        return first

    def encode_texts(self, texts: Sequence[str]) -> list[tuple[Encoding, bool]]:
        """Tokenize n texts for `infer`; returns for each whether it was truncated."""
        return encode_texts(self._tokenizer, self.max_length, texts)

    def encode_pairs(self, query: str, texts: Sequence[str]) -> list[tuple[Encoding, bool]]:
        """Tokenize n pairs for `infer`; returns for each whether it was truncated."""
        return encode_pairs(self._tokenizer, self.max_length, query, texts)

    def close(self) -> None:
        """Do nothing: the model has no threads of its own."""
