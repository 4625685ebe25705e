"""Models that run sequences of tokens: their interface, how texts become tokens, and the embedded ones, in ONNX."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import BoundaryMorphError, InvalidConfiguration, ModelUnavailable
from boundarymorph.inference.concurrency import available_cores, check_awaited
from boundarymorph.telemetry.metrics import BatchMetrics

if TYPE_CHECKING:  # at run time with the first model, as the library and gateways have none
    from tokenizers import Encoding, Tokenizer


class Named(Protocol):
    """A model, or a client of one. It also has an `identity` if its name is not known from the start, or may change."""

    @property
    def name(self) -> str: ...


def identity_of(model: Named) -> str | None:
    """Return the full name of a model, under which its results may be kept; None while that is unknown."""
    identity: str | None = model.identity if hasattr(model, "identity") else model.name
    return identity


class OutOfMemory(Exception):
    """The device has too little memory for this batch; a smaller one may fit."""


class DeviceLost(Exception):
    """The device or its context is lost for good; only a new process may help."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenSequence:
    """A text or a pair of texts as a model reads it: tokenized and truncated to fit.

    ids: (n,) token ids, special ones included; truncated: whether anything was cut off; type_ids: (n,) segments, if the
    model distinguishes them.
    """

    ids: NDArray[np.int64]
    truncated: bool
    type_ids: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class ModelRole:
    """What a model is used for, in the words of messages and metrics.

    name: scorer or encoder; item, result: its input and output, in the singular; done: the participle for an item;
    shape, dtype: of one result; unavailable, failed: errors raised if it cannot work now, or not at all.
    """

    name: str
    item: str
    result: str
    done: str
    dtype: type[np.floating[Any]]
    unavailable: type[BoundaryMorphError]
    failed: type[BoundaryMorphError]
    metrics: BatchMetrics
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """values: (n, ...) in the order of the items; truncated: how many of them were truncated."""

    values: NDArray[Any]
    truncated: int


Item = TypeVar("Item", bound=TokenSequence)
Contra = TypeVar("Contra", bound=TokenSequence, contravariant=True)


class Model(Protocol[Contra]):
    """Blocking and thread-safe. The result for a sequence does not depend on its batch, up to rounding.

    name: models of the same name give the same results; backend: the label in the metrics, such as onnx-cpu or
    torch-cuda; max_length: most tokens of a sequence, special ones included, as longer ones are truncated; workers: how
    many concurrent calls of `run` keep the device busy; parallel: whether these compute at the same time, as on cores,
    rather than in turn on one device; batch_tokens: most of a batch, padding included, where a single sequence is
    always allowed; pads: whether every sequence of a batch costs as much as the longest of them.
    """

    name: str
    backend: str
    max_length: int
    workers: int
    parallel: bool
    batch_tokens: int
    pads: bool

    def run(self, items: Sequence[Contra], /) -> NDArray[Any]:
        """Return (n, ...), one result per sequence, in order. Raises OutOfMemory or DeviceLost."""

    def close(self) -> None:
        """Release threads and memory. Only called when no `run` is under way."""


# The cores are busy with models; the tokenizers' own threads would only get in their way.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

TEXTS = 64  # tokenized at a time

# To get the first tokens of a long text we read only its beginning: this many characters per token, at least
# LEAST_CHARACTERS, and LONGER times as many if they do not suffice.
CHARACTERS_A_TOKEN, LEAST_CHARACTERS, LONGER = 8, 1_024, 4


def plain(tokenizer: Tokenizer, also: set[str] | None = None) -> Tokenizer:
    """Copy a tokenizer so that it neither pads nor truncates, and reads special tokens and `also` as plain text."""
    state = json.loads(tokenizer.to_str())
    for token in state["added_tokens"]:
        token["special"] |= token["content"] in (also or ())
    plain = type(tokenizer).from_str(json.dumps(state))
    plain.no_padding()
    plain.no_truncation()
    plain.encode_special_tokens = True
    return plain


def encode_pairs(
    tokenizer: Tokenizer, max_length: int, query: str, texts: Sequence[str]
) -> list[tuple[Encoding, bool]]:
    """Tokenize n pairs with their special tokens; returns for each whether it was truncated to max_length.

    The query is kept whole as long as that leaves the document half of the room, or all that it needs.
    """
    room = max(0, max_length - tokenizer.num_special_tokens_to_add(True))
    whole = tokenizer.encode(query, add_special_tokens=False)
    pairs = []
    for document in encode_heads(tokenizer, texts, room):
        most = max(room // 2, room - len(document))
        first = whole
        if query_cut := len(whole) > most:
            first = tokenizer.encode(query, add_special_tokens=False)
            first.truncate(most)
        document_cut = cut(document, room - len(first))
        pairs.append((tokenizer.post_process(first, document), query_cut or document_cut))
    return pairs


def encode_texts(tokenizer: Tokenizer, max_length: int, texts: Sequence[str]) -> list[tuple[Encoding, bool]]:
    """Tokenize n texts with their special tokens; returns for each whether it was truncated to max_length."""
    room = max(0, max_length - tokenizer.num_special_tokens_to_add(False))
    read = []
    for text in encode_heads(tokenizer, texts, room):
        truncated = cut(text, room)
        read.append((tokenizer.post_process(text), truncated))
    return read


def encode_heads(tokenizer: Tokenizer, texts: Sequence[str], tokens: int) -> list[Encoding]:
    """Tokenize n texts, without special tokens, so that the first `tokens` tokens are those of the whole text.

    An encoding of at most `tokens` tokens is complete; of a longer one only the first `tokens` are valid. Only the
    beginning of a long text is read, if the tokenizer never merges across white space. Raises Abandoned once nobody
    waits for the result.
    """
    bound = max(CHARACTERS_A_TOKEN * tokens, LEAST_CHARACTERS)
    short = [text if len(text) <= bound else "" for text in texts]
    encodings: list[Encoding] = []
    for start in range(0, len(short), TEXTS):
        check_awaited()
        encodings += tokenizer.encode_batch_fast(short[start : start + TEXTS], add_special_tokens=False)
    long = [place for place, text in enumerate(texts) if len(text) > bound]
    spaces = _spaces(tokenizer) if long else ""
    for place in long:
        check_awaited()
        encodings[place] = _encode_head(tokenizer, texts[place], tokens, bound, spaces)
    return encodings


def _encode_head(tokenizer: Tokenizer, text: str, tokens: int, bound: int, spaces: str) -> Encoding:
    while spaces and (found := re.compile(rf"\S(?=[{spaces}])").search(text, bound)):  # ends a word
        head = text[: found.end()]
        encoding = tokenizer.encode(head, add_special_tokens=False)
        # Its tokens are certainly those of the text, except for those of its last word.
        certain = len(head[: max(map(head.rfind, spaces)) + 1].rstrip())
        if sum(stop <= certain for _, stop in encoding.offsets) > tokens:
            return encoding
        bound = LONGER * len(head)
    return tokenizer.encode(text, add_special_tokens=False)


def _spaces(tokenizer: Tokenizer) -> str:
    """Return the white-space characters at which the tokenizer always splits."""
    if tokenizer.pre_tokenizer is None or any(
        len(token.content.split()) > 1 for token in tokenizer.get_added_tokens_decoder().values()
    ):
        return ""
    found = ""
    for space in " \n":
        text = f"a{space}b"
        if tokenizer.normalizer is not None:
            text = tokenizer.normalizer.normalize_str(text)
        pieces = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        if not any("a" in piece and "b" in piece for piece in pieces):
            found += space
    return found


def cut(encoding: Encoding, room: int) -> bool:
    """Truncate to `room` tokens in place; return whether anything was cut off."""
    if len(encoding) <= room:
        return False
    encoding.truncate(room)
    return True


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
        import onnxruntime
        from tokenizers import Tokenizer

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
