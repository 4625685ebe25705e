"""Writes the embedded cross-encoder as a folder for any Hugging Face server, in float32.

The int8 weights of the embedded ONNX model are dequantised, so that other servers use the same numbers; only the
rounding of the activations, which ONNX does in int8 too, is missing.

python -m load_tests.weights build/minilm
"""

import argparse
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from boundarymorph.inference.models import Weights, embedded_cross_encoder

LAYERS = 12
CONFIG = {
    "architectures": ["BertForSequenceClassification"],
    "model_type": "bert",
    "attention_probs_dropout_prob": 0.1,
    "classifier_dropout": None,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 384,
    "id2label": {"0": "LABEL_0"},
    "initializer_range": 0.02,
    "intermediate_size": 1536,
    "label2id": {"LABEL_0": 0},
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": LAYERS,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    # Without it Sentence Transformers returns sigmoids instead of logits.
    "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
    "torch_dtype": "float32",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 30522,
}
TOKENIZER = {
    "tokenizer_class": "BertTokenizer",
    "model_max_length": 512,
    "do_lower_case": True,
    "strip_accents": None,
    "tokenize_chinese_chars": True,
    "clean_up_tokenization_spaces": True,
}
SPECIAL_TOKENS = {
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
    "pad_token": "[PAD]",
    "sep_token": "[SEP]",
    "unk_token": "[UNK]",
}
WEIGHTS = "model.safetensors"
FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", WEIGHTS)

# Field numbers and types of the ONNX protocol buffers.
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INITIALIZER = 1, 5
_NODE_INPUT, _NODE_NAME, _NODE_OPERATOR = 1, 3, 4
_TENSOR_DIMENSIONS, _TENSOR_TYPE, _TENSOR_FLOATS, _TENSOR_INTEGERS, _TENSOR_NAME, _TENSOR_RAW = 1, 2, 4, 5, 8, 9
_TYPES: dict[int, np.dtype[Any]] = {1: np.dtype("<f4"), 2: np.dtype("u1"), 3: np.dtype("i1")}
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5


def minilm(directory: Path, layers: int = LAYERS) -> Path:
    """Write a folder with everything that Transformers needs, unless it is complete, and return it.

    layers: keep only the first so many. The scores are then meaningless, and cost accordingly less.
    """
    if all((directory / name).is_file() for name in FILES):
        return directory
    source = embedded_cross_encoder()
    source.verify()
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(source.tokenizer))
    # The embedded file pads every text to 512 tokens.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.save(str(directory / "tokenizer.json"))
    _write(directory / "config.json", CONFIG | {"num_hidden_layers": layers})
    _write(directory / "tokenizer_config.json", TOKENIZER | SPECIAL_TOKENS)
    _write(directory / "special_tokens_map.json", SPECIAL_TOKENS)
    # Written last and atomically: a folder with weights is complete.
    partial = directory / f"{WEIGHTS}.partial"
    left_out = tuple(f"bert.encoder.layer.{layer}." for layer in range(layers, LAYERS))
    parameters = {name: value for name, value in dequantised(source).items() if not name.startswith(left_out)}
    save_file(parameters, partial, metadata={"format": "pt"})
    os.replace(partial, directory / WEIGHTS)
    return directory


def dequantised(weights: Weights) -> dict[str, NDArray[np.float32]]:
    """Return the parameters of BertForSequenceClassification under their names in Transformers.

    Raises ValueError if the ONNX file does not contain exactly these.
    """
    graph = memoryview(weights.onnx.read_bytes())
    (graph,) = (value for number, value in _delimited(graph) if number == _MODEL_GRAPH)
    tensors: dict[str, NDArray[np.generic]] = {}
    modules: dict[str, str] = {}
    for number, value in _delimited(graph):
        if number == _GRAPH_INITIALIZER:
            name, tensor = _tensor(value)
            tensors[name] = tensor
        elif number == _GRAPH_NODE:
            node = _node(value)
            if node.operator == "MatMulInteger":
                # Nodes are named after the module: /bert/encoder/layer.0/attention/self/query/MatMul_quant
                modules[node.inputs[1]] = ".".join(node.name.strip("/").split("/")[:-1])
    found: dict[str, NDArray[np.float32]] = {}
    for name, tensor in tensors.items():
        base = name.removesuffix("_quantized")
        if base == name:
            if not name.endswith(("_scale", "_zero_point")):
                found[name] = tensor.astype(np.float32)
            continue
        # A scale is one number, or one per column: both broadcast over (inputs, outputs).
        steps = tensor.astype(np.float32) - tensors[f"{base}_zero_point"].astype(np.float32)
        values = steps * tensors[f"{base}_scale"].astype(np.float32)
        if name in modules:
            # Linear keeps (outputs, inputs).
            found[f"{modules[name]}.weight"] = np.ascontiguousarray(values.T)
        else:
            found[base] = values
    shapes = {name: value.shape for name, value in found.items()}
    if shapes != (expected := _shapes()):
        differing = sorted(name for name in shapes.keys() | expected.keys() if shapes.get(name) != expected.get(name))
        raise ValueError(f"{weights.onnx} is not the expected BERT; different: {', '.join(differing)}")
    return found


@dataclass(frozen=True, slots=True)
class _Node:
    operator: str
    name: str
    inputs: tuple[str, ...]


def _shapes() -> dict[str, tuple[int, ...]]:
    width, inner = 384, 1536
    shapes: dict[str, tuple[int, ...]] = {
        "bert.embeddings.word_embeddings.weight": (30522, width),
        "bert.embeddings.position_embeddings.weight": (512, width),
        "bert.embeddings.token_type_embeddings.weight": (2, width),
    }
    linear = {"bert.pooler.dense": (width, width), "classifier": (1, width)}
    norms = ["bert.embeddings.LayerNorm"]
    for layer in range(LAYERS):
        prefix = f"bert.encoder.layer.{layer}"
        for projection in ("self.query", "self.key", "self.value", "output.dense"):
            linear[f"{prefix}.attention.{projection}"] = (width, width)
        linear[f"{prefix}.intermediate.dense"] = (inner, width)
        linear[f"{prefix}.output.dense"] = (width, inner)
        norms += [f"{prefix}.attention.output.LayerNorm", f"{prefix}.output.LayerNorm"]
    for name, (outputs, inputs) in linear.items():
        shapes |= {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
    for name in norms:
        shapes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    return shapes


def _tensor(message: memoryview) -> tuple[str, NDArray[np.generic]]:
    """Return the name and values of an initializer of float32, uint8 or int8."""
    name, kind, raw = "", 0, b""
    shape: list[int] = []
    listed: list[float] = []
    for number, value in _fields(message):
        if number == _TENSOR_NAME and isinstance(value, memoryview):
            name = bytes(value).decode()
        elif number == _TENSOR_TYPE and isinstance(value, int):
            kind = value
        elif number == _TENSOR_RAW and isinstance(value, memoryview):
            raw = bytes(value)
        elif number == _TENSOR_DIMENSIONS:
            shape += [value] if isinstance(value, int) else _varints(value)
        elif number == _TENSOR_INTEGERS:
            listed += [value] if isinstance(value, int) else _varints(value)
        elif number == _TENSOR_FLOATS and isinstance(value, memoryview):
            listed += np.frombuffer(value, "<f4").tolist()
    if kind not in _TYPES:
        raise ValueError(f"{name} has the ONNX type {kind}; only float32, uint8 and int8 are read")
    if raw:
        return name, np.frombuffer(raw, _TYPES[kind]).reshape(shape)
    return name, np.array(listed).astype(_TYPES[kind]).reshape(shape)


def _node(message: memoryview) -> _Node:
    texts: dict[int, list[str]] = {_NODE_OPERATOR: [], _NODE_NAME: [], _NODE_INPUT: []}
    for number, value in _delimited(message):
        if number in texts:
            texts[number].append(bytes(value).decode())
    return _Node("".join(texts[_NODE_OPERATOR]), "".join(texts[_NODE_NAME]), tuple(texts[_NODE_INPUT]))


def _delimited(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the fields that hold a message, a string or bytes."""
    for number, value in _fields(message):
        if isinstance(value, memoryview):
            yield number, value


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the number and value of each field: an integer, or the bytes of anything else."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        kind = key & 7
        if kind == _VARINT:
            integer, position = _varint(message, position)
            yield key >> 3, integer
            continue
        if kind == _DELIMITED:
            length, position = _varint(message, position)
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {kind} is no protocol buffer of today")
        if position + length > len(message):
            raise ValueError("the protocol buffer ends early")
        yield key >> 3, message[position : position + length]
        position += length


def _varints(message: memoryview) -> list[int]:
    values, position = [], 0
    while position < len(message):
        value, position = _varint(message, position)
        values.append(value)
    return values


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """Read a signed 64-bit integer, and return it with the position after it."""
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return struct.unpack("<q", struct.pack("<Q", value))[0], position


def _write(path: Path, content: object) -> None:
    path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    print(minilm(parser.parse_args().directory))


if __name__ == "__main__":
    main()
