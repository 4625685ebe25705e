"""The embedded cross-encoder as a folder for PyTorch: trained weights, on which rounding can be judged."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from google.protobuf.empty_pb2 import Empty  # type: ignore[import-untyped]
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]
from numpy.typing import NDArray
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from boundarymorph.inference.models import embedded_cross_encoder

# The numbers of the fields of ONNX: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
GRAPH, NODE, INITIALIZER = 7, 1, 5
INPUT, READER = 1, 3
SHAPE, TYPE, FLOATS, INTEGERS, NAME, BYTES = 1, 2, 4, 5, 8, 9
TYPES: dict[int, type[np.generic]] = {1: np.float32, 2: np.uint8, 3: np.int8}


def save(folder: Path) -> Path:
    """Write the model, its int8 weights as floats."""
    source = embedded_cross_encoder()
    graph = _fields(_fields(source.onnx.read_bytes())[GRAPH][0])
    tensors = dict(_tensor(data) for data in graph[INITIALIZER])
    names = _names(graph[NODE])
    state = {}
    for name, tensor in tensors.items():
        whole, _, kind = name.rpartition("_quantized")
        if not whole and not name.endswith(("_scale", "_zero_point")):
            state[name] = torch.tensor(tensor)
        elif whole and not kind:
            values = (tensor.astype(np.float32) - tensors[f"{whole}_zero_point"]) * tensors[f"{whole}_scale"]
            transposed = values if "embeddings" in whole else values.T
            state[names.get(name, whole)] = torch.from_numpy(np.ascontiguousarray(transposed))
    shape: dict[str, Any] = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 12, "num_labels": 1}
    with torch.device("meta"):
        model = BertForSequenceClassification(BertConfig(**shape))
    model.load_state_dict(state, assign=True)
    model.save_pretrained(folder)
    tokenizer: Any = PreTrainedTokenizerFast
    tokenizer(
        tokenizer_file=str(source.tokenizer),
        pad_token="[PAD]",
        model_max_length=source.positions,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)
    return folder


def _fields(message: bytes) -> dict[int, list[Any]]:
    parsed = Empty()
    parsed.ParseFromString(message)
    fields = defaultdict(list)
    for field in UnknownFieldSet(parsed):
        fields[field.field_number].append(field.data)
    return fields


def _tensor(message: bytes) -> tuple[str, NDArray[Any]]:
    fields = _fields(message)
    name, kind = fields[NAME][0].decode(), TYPES[fields[TYPE][0]]
    if fields[BYTES]:
        return name, np.frombuffer(fields[BYTES][0], dtype=kind).reshape(fields[SHAPE])
    if fields[FLOATS]:
        return name, np.frombuffer(fields[FLOATS][0], dtype=np.float32)[0]
    return name, np.array(fields[INTEGERS][0][0], dtype=np.float32)


def _names(nodes: list[bytes]) -> dict[str, str]:
    """The parameters that weights without a name of their own are, by what reads them."""
    names = {}
    for fields in map(_fields, nodes):
        reader, inputs = fields[READER][0].decode(), [data.decode() for data in fields[INPUT]]
        if reader.endswith("/MatMul_quant") and inputs[1].startswith("onnx::"):
            names[inputs[1]] = reader.removesuffix("/MatMul_quant").strip("/").replace("/", ".") + ".weight"
    return names
