"""Define models that run sequences of tokens, tokenize texts, and load embedded ONNX models."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from boundarymorph.database import checksum
from boundarymorph.errors import BoundaryMorphError, InvalidConfiguration, ModelUnavailable
from boundarymorph.inference.concurrency import available_cores, check_awaited
from boundarymorph.reading import has_words
from boundarymorph.telemetry.metrics import BatchMetrics

if TYPE_CHECKING:  # imported with the first model, because the library and gateways have none
    from tokenizers import Tokenizer


def identity_of(model: Any) -> str | None:
    """Return the name under which the results of a model, or of a client of one, may be cached.

    It is the model's `identity` if its name may change, and None while it is unknown.
    """
    identity: str | None = model.identity if hasattr(model, "identity") else model.name
    return identity


class OutOfMemory(Exception):
    """The device has too little memory for this batch; a smaller one may fit."""


class DeviceLost(Exception):
    """The device or its context is lost for good; only a new process may help."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenSequence:
    """A text or pair as a model reads it.

    Attributes:
        ids: (n,) token ids, including special ones.
        truncated: Whether anything was cut.
        type_ids: (n,) segments, if the model distinguishes them.
        unknown: Whether the model knows no word of the document.
    """

    ids: NDArray[np.int64]
    truncated: bool
    type_ids: NDArray[np.int64] | None = None
    unknown: bool = False

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class ModelRole:
    """What a model is used for, in messages and errors.

    Attributes:
        item: The input, such as a pair.
        result: The output for an item.
        done: The verb for it, such as scored.
        unavailable: The error if the model cannot work now.
        failed: The error if another try will not help.
        shape: The shape of one result.
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
    """Results of a request.

    Attributes:
        values: (n, ...) in the order of the items.
        truncated: Number of items that were truncated.
    """

    values: NDArray[Any]
    truncated: int


class Model(Protocol):
    """A model that runs batches; its calls block and are thread-safe.

    The result for a sequence does not depend on its batch, up to rounding.

    Attributes:
        name: Models of the same name give the same results.
        backend: The program that runs it, for the metrics.
        max_length: Most tokens of a sequence, including special ones.
        workers: Concurrent calls of `run` that keep the device busy.
        parallel: Whether these compute at the same time, as on cores.
        batch_tokens: Most tokens of a batch of several sequences, including padding.
        pads: Whether every sequence of a batch costs as much as the longest.
    """

    name: str
    backend: str
    max_length: int
    workers: int
    parallel: bool
    batch_tokens: int
    pads: bool

    def run(self, items: Sequence[TokenSequence], /) -> NDArray[Any]:
        """Return (n, ...), one result per sequence, in order. Raises OutOfMemory or DeviceLost."""

    def close(self) -> None:
        """Release threads and memory. Only called when no `run` is underway."""


# The cores are busy with models; the tokenizers' own threads would only get in their way.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

TEXTS = 64  # tokenized at a time

# A model reads a prefix of a text: this many characters for each token that fits, at least
# LEAST_CHARACTERS, or MOST_CHARACTERS_A_TOKEN where these make too few tokens, as in a table with many blanks.
CHARACTERS_A_TOKEN, LEAST_CHARACTERS, MOST_CHARACTERS_A_TOKEN = 8, 1_024, 64


def plain_tokenizer(tokenizer: Tokenizer, also: set[str] | None = None) -> Tokenizer:
    """Copy a tokenizer so that it neither pads nor truncates, and reads special tokens as text.

    `also` names further tokens that it reads as text.
    """
    state = json.loads(tokenizer.to_str())
    for token in state["added_tokens"]:
        token["special"] |= token["content"] in (also or ())
    plain = type(tokenizer).from_str(json.dumps(state))
    plain.no_padding()
    plain.no_truncation()
    plain.encode_special_tokens = True
    return plain


class Head(NamedTuple):
    """The first tokens of a text.

    Attributes:
        ids: Token ids without special ones.
        truncated: Whether there are more.
    """

    ids: NDArray[np.int64]
    truncated: bool


def tokens_with_words(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Return which tokens of the vocabulary have a letter or digit.

    Unknown and special tokens have none.
    """
    special = tokenizer.get_added_tokens_decoder()
    known = {number: text for text, number in tokenizer.get_vocab().items()}
    found = np.zeros(max(known, default=-1) + 1, np.bool_)
    found[[number for number, text in known.items() if number not in special and has_words(text)]] = True
    unknown = (getattr(tokenizer.model, "unk_token", None), "<unk>", "[UNK]")
    found[[number for text in unknown if text and (number := tokenizer.token_to_id(text)) is not None]] = False
    return found


def encode_pairs(
    tokenizer: Tokenizer, max_length: int, query: str, texts: Sequence[str], words: NDArray[np.bool_] | None = None
) -> list[TokenSequence]:
    """Tokenize n pairs with their special tokens, truncated to max_length.

    The query stays whole if the document has half of the tokens, or all that it needs. `words` comes from
    `tokens_with_words`; without it no text is unknown.
    """
    room = max(0, max_length - tokenizer.num_special_tokens_to_add(True))
    [asked], around = encode_heads(tokenizer, [query], room), _framing(tokenizer, 2)
    pairs = []
    for document in encode_heads(tokenizer, texts, room):
        first = asked.ids[: max(room // 2, room - len(document.ids))]
        second = document.ids[: room - len(first)]
        cut = len(first) < len(asked.ids) or len(second) < len(document.ids)
        unknown = words is not None and not words[document.ids].any()
        ids, types = around(first, second)
        pairs.append(TokenSequence(ids, cut or asked.truncated or document.truncated, types, unknown))
    return pairs


def encode_texts(tokenizer: Tokenizer, max_length: int, texts: Sequence[str]) -> list[TokenSequence]:
    room, around = max(0, max_length - tokenizer.num_special_tokens_to_add(False)), _framing(tokenizer, 1)
    framed = [(*around(head.ids), head.truncated) for head in encode_heads(tokenizer, texts, room)]
    return [TokenSequence(ids, truncated, types) for ids, types, truncated in framed]


def encode_heads(tokenizer: Tokenizer, texts: Sequence[str], tokens: int) -> list[Head]:
    """Tokenize prefixes of n texts, at most `tokens` tokens each, so that the work is bounded.

    Raises:
        CallerGone: If the caller has gone.
    """
    bound = max(CHARACTERS_A_TOKEN * tokens, LEAST_CHARACTERS)
    most = max(MOST_CHARACTERS_A_TOKEN * tokens, LEAST_CHARACTERS)
    heads: list[Head] = []
    for start in range(0, len(texts), TEXTS):
        heads += _heads(tokenizer, texts[start : start + TEXTS], tokens, bound)
    for place, text in enumerate(texts):
        if len(text) > bound and len(heads[place].ids) < tokens:
            [heads[place]] = _heads(tokenizer, [text], tokens, most)
    return heads


def _heads(tokenizer: Tokenizer, texts: Sequence[str], tokens: int, characters: int) -> list[Head]:
    check_awaited()
    encodings = tokenizer.encode_batch_fast([text[:characters] for text in texts], add_special_tokens=False)
    return [
        Head(np.array(encoding.ids[:tokens], np.int64), len(encoding) > tokens or len(text) > characters)
        for text, encoding in zip(texts, encodings, strict=True)
    ]


def _framing(tokenizer: Tokenizer, count: int) -> Callable[..., tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return a function that puts special tokens around the tokens of one or two texts.

    It returns the token ids, and for each the text that it belongs to.
    """
    some = tokenizer.encode("a", add_special_tokens=False)
    if not some:  # a vocabulary without this letter
        vocabulary = tokenizer.get_vocab()
        some = next(found for text in vocabulary if (found := tokenizer.encode(text, add_special_tokens=False)))
    framed = tokenizer.post_process(some, some if count > 1 else None)
    ids, types = np.array(framed.ids, np.int64), np.array(framed.type_ids, np.int64)
    starts = [place for place, special in enumerate(framed.special_tokens_mask) if not special][:: len(some)]
    between = [0, *(start + len(some) for start in starts)], [*starts, len(ids)]

    def around(*texts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        all_ids, all_types = [], []
        for begin, end, text in zip(*between, [*texts, ids[:0]], strict=True):
            all_ids += [ids[begin:end], text]
            all_types += [types[begin:end], np.full(len(text), types[end] if len(text) else 0)]
        return np.concatenate(all_ids), np.concatenate(all_types)

    return around


_PACKAGE = "boundarymorph_models"
_REMEDY = (
    "install the embedded models with: pip install --force-reinstall --no-deps --find-links dist boundarymorph-models "
    "(make model-wheels leaves their wheel in dist/)"
)


@dataclass(frozen=True, slots=True)
class Weights:
    """An ONNX model in a directory with model.onnx and tokenizer.json.

    Attributes:
        sha256: The hash of model.onnx.
        positions: Most tokens of an input.
    """

    model: str
    precision: str
    directory: Path
    sha256: str
    positions: int = 512

    @property
    def name(self) -> str:
        """Model, revision, and precision, which identify these weights in caches and indexes."""
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
    return _embedded("BAAI/bge-small-en-v1.5", "68807e3ff2abb83cdd708d8243fd398246e397bfee2ba611c2bad728e27df743")


def embedded_cross_encoder() -> Weights:
    """Return cross-encoder/ms-marco-MiniLM-L-12-v2 in int8: one logit per pair, Apache-2.0."""
    sha256 = "1225ccd6afd0f1b43a1b08bf67cd1cb68c05aafb443e9d8450015b8b3837ffd1"
    return _embedded("cross-encoder/ms-marco-MiniLM-L-12-v2", sha256)


def _embedded(model: str, sha256: str) -> Weights:
    package = find_spec(_PACKAGE)  # finding the distribution does not run its code
    if package is None or not package.submodule_search_locations:
        raise ModelUnavailable(f"{model} is not installed; {_REMEDY}")
    folder = Path(package.submodule_search_locations[0]) / model.partition("/")[2]
    return Weights(model, "int8", folder, sha256)


@lru_cache(maxsize=32)
def _sha256(path: Path, size: int, modified_ns: int) -> str:
    """Return the hash of a file; size and modification time are part of the key of the cache."""
    return checksum(path)


class OnnxTextModel:
    """An ONNX transformer that reads one text, or one pair of texts, at a time.

    `Model`s derive from it. Inputs are never batched: dynamic int8 takes its ranges from the whole batch. Runs are
    single-threaded and concurrent, as fast as splitting each run, and no slower where cores are shared.
    """

    backend = "onnx-cpu"
    batch_tokens = 1
    parallel = True
    pads = False

    def __init__(self, weights: Weights, *, max_length: int | None = None, threads: int | None = None) -> None:
        """Load the model.

        Args:
            weights: The files of the model.
            max_length: Most tokens of an input, including special ones.
            threads: Concurrent runs, by default one per core.

        Raises:
            ModelUnavailable: If the files are missing or not the expected ones.
            InvalidConfiguration: For a length that the model cannot read.
        """
        import onnxruntime
        from tokenizers import Tokenizer

        self.max_length = weights.positions if max_length is None else max_length
        self.workers = available_cores() if threads is None else threads
        if not 8 <= self.max_length <= weights.positions:
            raise InvalidConfiguration(f"{weights.model} takes a max_length of 8 to {weights.positions} tokens")
        weights.verify()
        self.name = f"{weights.name}/{self.max_length}"
        self._tokenizer = plain_tokenizer(Tokenizer.from_file(str(weights.tokenizer)))
        self._words = tokens_with_words(self._tokenizer)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(weights.onnx), options, providers=["CPUExecutionProvider"])
        self._inputs = {node.name for node in self._session.get_inputs()}
        self._output = self._session.get_outputs()[0].name

    def infer(self, ids: NDArray[np.int64], type_ids: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """Return the first output for (n,) token ids and segments (0 if None), without a batch axis.

        Thread-safe.
        """
        segments = np.zeros_like(ids) if type_ids is None else type_ids
        features = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": segments}
        feed = {name: values[None] for name, values in features.items() if name in self._inputs}
        (output,) = self._session.run([self._output], feed)
        first: NDArray[np.float32] = np.asarray(output, dtype=np.float32)[0]
        return first

    def encode_texts(self, texts: Sequence[str]) -> list[TokenSequence]:
        return encode_texts(self._tokenizer, self.max_length, texts)

    def encode_pairs(self, query: str, texts: Sequence[str]) -> list[TokenSequence]:
        return encode_pairs(self._tokenizer, self.max_length, query, texts, self._words)

    def close(self) -> None:
        """Do nothing: the model has no threads of its own."""
