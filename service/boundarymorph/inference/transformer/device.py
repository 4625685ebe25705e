"""Where a model runs, in which precision, and how much at a time."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.inference.models import available_cores

Precision: TypeAlias = Literal["auto", "fp32", "bf16", "fp16", "int8"]

_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_BATCH_TOKENS = {"cpu": 512, "cuda": 16384}
_LANES_OF_A_GPU = 2


def chosen_device(device: str) -> torch.device:
    """auto is a GPU where there is one. Raises InvalidConfiguration for a device that is not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise InvalidConfiguration(f"there is no device {device}: use auto, cpu, cuda or cuda:0") from error
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise InvalidConfiguration(f"PyTorch sees no {device} here: use auto or cpu, or install PyTorch for CUDA")
    return found


def chosen_precision(precision: Precision, device: torch.device) -> Precision:
    """auto is bf16 on a GPU and fp32 elsewhere. Raises InvalidConfiguration."""
    if precision == "auto":
        return "bf16" if device.type == "cuda" else "fp32"
    if precision not in (*_TYPES, "int8"):
        raise InvalidConfiguration(f"there is no precision {precision}: use auto, fp32, bf16, fp16 or int8")
    return precision


def weight_type(precision: Precision, device: torch.device) -> torch.dtype:
    """Of the weights as they are opened; int8 keeps what it does not round in half precision on a GPU."""
    return _TYPES.get(precision, torch.bfloat16 if device.type == "cuda" else torch.float32)


def chosen_lanes(threads: int | None, device: torch.device) -> int:
    """How many batches are computed at a time: on a CPU so many threads, by default one a core, each with a batch.

    That is faster than to split each batch, and does not slow down when the cores are shared; PyTorch keeps to one
    thread an operation in the whole process. On a GPU one lane packs while the other computes.

    Raises InvalidConfiguration.
    """
    if device.type != "cpu":
        return _LANES_OF_A_GPU
    threads = available_cores() if threads is None else threads
    if threads < 1:
        raise InvalidConfiguration("threads must be at least 1")
    torch.set_num_threads(1)
    return threads


def chosen_batch_tokens(batch_tokens: int | None, device: torch.device) -> int:
    """Raises InvalidConfiguration."""
    if batch_tokens is not None and batch_tokens < 1:
        raise InvalidConfiguration("batch_tokens must be at least 1")
    return batch_tokens or _BATCH_TOKENS.get(device.type, _BATCH_TOKENS["cpu"])


def release(device: torch.device) -> None:
    """Give memory back that nothing uses any more."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
