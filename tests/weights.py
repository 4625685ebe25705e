"""Weights that replace the embedded ones in tests of other things.

As a program, `python -m tests.weights ARGUMENTS` is `boundarymorph ARGUMENTS` with them.

The embedded models cost a second of CPU at each start of a service. These are ONNX models too and run through the same
code, in no time. The encoder's vector is the mean of random vectors of the tokens, and the cross-encoder's logit is the
product of such means of the query and of the document. So texts that share words are alike.
"""

import atexit
import hashlib
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.inference import models
from boundarymorph.inference.models import Weights

TOKENS = 6_000  # the first tokens of the embedded vocabulary: frequent words, and pieces of others

_FLOAT, _INTEGER = 1, 7
VARIABLE = "TINY_WEIGHTS"
_embedded = models._embedded


@cache
def written() -> Path:
    """Return the folder of the weights, which exists as long as this process."""
    made = Path(mkdtemp(prefix="tiny-weights-"))
    atexit.register(rmtree, made)
    for original, model in (
        (models.embedded_encoder(), _encoder()),
        (models.embedded_cross_encoder(), _cross_encoder()),
    ):
        directory = made / original.directory.name
        directory.mkdir()
        (directory / "model.onnx").write_bytes(model)
        tokenizer = orjson.loads(original.tokenizer.read_bytes())
        vocabulary = tokenizer["model"]["vocab"]
        tokenizer["model"]["vocab"] = {piece: number for piece, number in vocabulary.items() if number < TOKENS}
        (directory / "tokenizer.json").write_bytes(orjson.dumps(tokenizer))
    return made


def tiny(model: str, sha256: str) -> Weights:
    """Return tiny weights in place of those that `models._embedded` returns."""
    directory = Path(os.environ.get(VARIABLE) or written()) / model.partition("/")[2]
    return Weights(model, "int8", directory, hashlib.sha256((directory / "model.onnx").read_bytes()).hexdigest())


def adopt() -> None:
    """Use the tiny weights in this process, if its environment says where they are."""
    models._embedded = tiny if VARIABLE in os.environ else _embedded


def _encoder() -> bytes:
    """Return a model from (1, n) tokens to (1, 1, 384)."""
    nodes = [
        _node("Gather", ["table", "input_ids"], "vectors"),
        _node("ReduceMean", ["vectors", "tokens"], "last_hidden_state"),
    ]
    return _model(nodes, {"table": _table(384), "tokens": np.array([1])}, ["input_ids"], "last_hidden_state")


def _cross_encoder() -> bytes:
    """Return a model from (1, n) tokens and segments to (1, 1)."""
    nodes = [
        _node("Gather", ["table", "input_ids"], "vectors"),
        _node("Cast", ["token_type_ids"], "segments", _field(1, b"to") + _field(3, _FLOAT) + _field(20, 2)),
        _node("Unsqueeze", ["segments", "width"], "second"),
        _node("Sub", ["one", "second"], "first"),
        _node("Mul", ["vectors", "first"], "query"),
        _node("Mul", ["vectors", "second"], "document"),
        _node("ReduceMean", ["query", "tokens"], "query_mean"),
        _node("ReduceSum", ["document", "tokens"], "document_sum"),
        _node("Mul", ["query_mean", "document_sum"], "products"),
        _node("ReduceMean", ["products", "width"], "mean"),
        _node("Squeeze", ["mean", "width"], "logits"),
    ]
    constants = {"table": _table(32), "one": np.ones(1, np.float32), "tokens": np.array([1]), "width": np.array([-1])}
    return _model(nodes, constants, ["input_ids", "token_type_ids"], "logits")


def _table(width: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((TOKENS, width), np.float32)


def _model(nodes: list[bytes], constants: Mapping[str, NDArray[np.generic]], inputs: list[str], output: str) -> bytes:
    """Return an ONNX model as its protocol buffer; the numbers are those of onnx.proto."""
    graph = [_field(1, node) for node in nodes] + [_field(2, b"tiny")]
    for name, values in constants.items():
        dimensions = b"".join(_field(1, size) for size in values.shape)
        kind = _FLOAT if values.dtype == np.float32 else _INTEGER
        graph.append(_field(5, dimensions + _field(2, kind) + _field(8, name.encode()) + _field(9, values.tobytes())))
    graph += [_field(11, _value(name, _INTEGER)) for name in inputs] + [_field(12, _value(output, _FLOAT))]
    return _field(1, 8) + _field(7, b"".join(graph)) + _field(8, _field(2, 18))


def _node(operator: str, inputs: list[str], output: str, attribute: bytes = b"") -> bytes:
    names = b"".join(_field(1, name.encode()) for name in inputs) + _field(2, output.encode())
    return names + _field(4, operator.encode()) + (_field(5, attribute) if attribute else b"")


def _value(name: str, kind: int) -> bytes:
    return _field(1, name.encode()) + _field(2, _field(1, _field(1, kind)))


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    head = b""
    while value >= 128:
        head += bytes([value % 128 + 128])
        value //= 128
    return head + bytes([value])


adopt()  # at import, for the processes that a service starts
if __name__ == "__main__":
    from boundarymorph.cli.main import main

    main()
