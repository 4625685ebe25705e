"""The weights of the embedded models, and loading and running ONNX text models."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from boundarymorph.errors import InvalidConfiguration, ModelUnavailable
from boundarymorph.inference.tokenization import encode_pairs, encode_texts, plain

_PACKAGE = "boundarymorph_models"
_REMEDY = (
    "install the embedded models with: pip install --force-reinstall --no-deps --find-links dist boundarymorph-models "
    "(make model-wheels leaves their wheel in dist/)"
)


@dataclass(frozen=True, slots=True)
class Weights:
    """An ONNX model and its tokenizer on disk.

    model: its public name; directory: contains model.onnx and tokenizer.json; sha256: of model.onnx;
    positions: the most tokens that the model reads.
    """

    model: str
    precision: str
    directory: Path
    sha256: str
    positions: int = 512

    @property
    def name(self) -> str:
        """Model, revision and precision, which distinguish these weights from others in caches and indexes."""
        return f"{self.model}@{self.sha256[:12]}/{self.precision}"

    @property
    def onnx(self) -> Path:
        return self.directory / "model.onnx"

    @property
    def tokenizer(self) -> Path:
        return self.directory / "tokenizer.json"

    def verify(self) -> None:
        """Raise ModelUnavailable unless both files exist and model.onnx is the expected one."""
        for path in (self.onnx, self.tokenizer):
            if not path.is_file():
                raise ModelUnavailable(f"{path}, part of {self.model}, is missing; {_REMEDY}")
        status = self.onnx.stat()
        found = _sha256(self.onnx, status.st_size, status.st_mtime_ns)
        if found != self.sha256:
            raise ModelUnavailable(f"{self.onnx} has sha256 {found}, but {self.model} needs {self.sha256}; {_REMEDY}")


def embedded_encoder() -> Weights:
    """Return BAAI/bge-small-en-v1.5 in int8: 384 dimensions, MIT."""
    return _embedded(
        "BAAI/bge-small-en-v1.5",
        "bge-small-en-v1.5",
        "68807e3ff2abb83cdd708d8243fd398246e397bfee2ba611c2bad728e27df743",
    )


def embedded_cross_encoder() -> Weights:
    """Return cross-encoder/ms-marco-MiniLM-L-12-v2 in int8: one logit per pair, Apache-2.0."""
    return _embedded(
        "cross-encoder/ms-marco-MiniLM-L-12-v2",
        "ms-marco-MiniLM-L-12-v2",
        "1225ccd6afd0f1b43a1b08bf67cd1cb68c05aafb443e9d8450015b8b3837ffd1",
    )


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class OnnxTextModel:
    """An ONNX transformer that reads one text, or one pair of texts, at a time.

    Inputs are never batched: dynamic int8 quantisation takes its ranges from the whole batch, so a batched answer would
    depend on its neighbours. A run is single-threaded, and runs are meant to be concurrent: on two cores that is as
    fast as splitting each run, and does not slow down when the cores are shared.

    max_length: tokens, special ones included; longer inputs are truncated. threads: how many concurrent runs keep the
    cores busy, by default one per core.
    Raises ModelUnavailable, or InvalidConfiguration for a length or count that the model does not support.
    """

    def __init__(self, weights: Weights, *, max_length: int | None = None, threads: int | None = None) -> None:
        self.weights = weights
        self.max_length = weights.positions if max_length is None else max_length
        self.threads = available_cores() if threads is None else threads
        if not 8 <= self.max_length <= weights.positions:
            raise InvalidConfiguration(f"{weights.model} takes a max_length of 8 to {weights.positions} tokens")
        if self.threads < 1:
            raise InvalidConfiguration(f"{weights.model} needs at least one thread")
        weights.verify()
        self._tokenizer = plain(Tokenizer.from_file(str(weights.tokenizer)))
        import onnxruntime  # here, since a process with remote models does not need it

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            str(weights.onnx), sess_options=options, providers=["CPUExecutionProvider"]
        )
        self._inputs = {node.name for node in self._session.get_inputs()}
        self._output = self._session.get_outputs()[0].name

    def run(self, text: str) -> tuple[NDArray[np.float32], bool]:
        """Return the model's first output for one text, and whether the text was truncated. Blocks like `infer`."""
        [(encoding, truncated)] = self.encode_texts([text])
        return self.infer(np.array(encoding.ids)), truncated

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

    @property
    def name(self) -> str:
        """Weights and max_length, which determine its results."""
        return f"{self.weights.name}/{self.max_length}"

    def encode_texts(self, texts: Sequence[str]) -> list[tuple[Encoding, bool]]:
        """Tokenize n texts for `infer`; returns for each whether it was truncated."""
        return encode_texts(self._tokenizer, self.max_length, texts)

    def encode_pairs(self, query: str, texts: Sequence[str]) -> list[tuple[Encoding, bool]]:
        """Tokenize n pairs for `infer`; returns for each whether it was truncated."""
        return encode_pairs(self._tokenizer, self.max_length, query, texts)


def _embedded(model: str, folder: str, sha256: str) -> Weights:
    package = find_spec(_PACKAGE)  # which does not run it
    if package is None or not package.submodule_search_locations:
        raise ModelUnavailable(f"{model} is not installed; {_REMEDY}")
    return Weights(model, "int8", Path(package.submodule_search_locations[0]) / folder, sha256)


@lru_cache(maxsize=32)
def _sha256(path: Path, size: int, modified_ns: int) -> str:
    """Return the hash of a file; size and modification time are part of the key of the cache."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
