"""Load models on PyTorch from their files, place them on a device, and run batches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
import transformers
from huggingface_hub.errors import HFValidationError
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import nn
from transformers.utils.hub import cached_file, extract_commit_hash

from boundarymorph.errors import BoundaryMorphError, InvalidConfiguration, ModelUnavailable
from boundarymorph.inference.concurrency import available_cores
from boundarymorph.inference.models import DeviceLost, OutOfMemory, TokenSequence
from boundarymorph.settings import ModelSettings

# The first is what most models have; a tokenizer can also be built from the others.
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "*.model")


class Repository:
    """The location of a model: a folder, or a revision (commit, branch, or tag) on the hub.

    A folder is read without network access. Methods raise ModelUnavailable for missing files, and InvalidConfiguration
    for unusable ones.
    """

    def __init__(self, name_or_path: str, *, revision: str | None = None, trust_remote_code: bool = False) -> None:
        path = Path(name_or_path).expanduser()
        self.folder = path if path.is_dir() else None
        self.location = str(path) if self.folder is not None else name_or_path
        if self.folder is not None and revision is not None:
            raise InvalidConfiguration(f"{self.folder} is a folder, which has no revisions: leave the revision out")
        self._where = {"revision": revision or "main", "local_files_only": self.folder is not None}
        self._options = {"trust_remote_code": trust_remote_code, **self._where}

    @property
    def model(self) -> str:
        return self.location if self.folder is None else self.folder.resolve().name

    @cached_property
    def revision(self) -> str:
        """The commit on the hub; for a folder, the sha256 of the files that determine its results."""
        if self.folder is None:
            with self._opening("configuration"):
                found = cached_file(self.location, "config.json", **self._where)
            return extract_commit_hash(found, None) or "unknown"
        digest = hashlib.sha256()
        for pattern in ("*.safetensors", "*/*.safetensors", *_VOCABULARIES, "config.json", "*.py"):
            for path in sorted(self.folder.glob(pattern)):
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    @cached_property
    def config(self) -> transformers.PreTrainedConfig:
        self._require(("config.json",))
        with self._opening("configuration"):
            # No tokens are generated, so keys and values need no cache.
            config: transformers.PreTrainedConfig = transformers.AutoConfig.from_pretrained(
                self.location, use_cache=False, **self._options
            )
            return config

    @cached_property
    def tokenizer(self) -> transformers.PreTrainedTokenizerBase:
        self._require(_VOCABULARIES)
        with self._opening("tokenizer"):
            return transformers.AutoTokenizer.from_pretrained(self.location, **self._options)

    @cached_property
    def backend_tokenizer(self) -> Tokenizer:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise InvalidConfiguration(f"{self.location} has no tokenizer.json, which is required")
        return backend

    def open(self, kind: Any, *, dtype: torch.dtype, spare: Sequence[str] = ()) -> transformers.PreTrainedModel:
        """Load the model on the CPU.

        Args:
            kind: The class that loads it.
            dtype: The type of its weights.
            spare: Prefixes of weights that may be missing.
        """
        with self._opening("weights"):
            chosen = {"config": self.config, "dtype": dtype, "use_safetensors": True, **self._options}
            model, loaded = kind.from_pretrained(self.location, output_loading_info=True, **chosen)
        if missing := sorted(name for name in loaded["missing_keys"] if not name.startswith(tuple(spare))):
            raise InvalidConfiguration(
                f"the weights in {self.location} are not those of a {type(model).__name__}: {missing[0]} is missing"
            )
        opened: transformers.PreTrainedModel = model.eval()
        return opened

    def read_json(self, name: str) -> Any:
        try:
            found = cached_file(
                self.location,
                name,
                **self._where,
                _raise_exceptions_for_missing_entries=False,
                _raise_exceptions_for_connection_errors=False,
            )
            return None if found is None else json.loads(Path(found).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelUnavailable(f"{name} of {self.location} cannot be read: {error}") from error

    def weights(self, name: str) -> dict[str, torch.Tensor]:
        with self._opening("weights"):
            found = cached_file(self.location, name, **self._where)
            assert found is not None, "a missing file raises OSError"
            return load_file(found)

    def _require(self, patterns: Sequence[str]) -> None:
        if self.folder is not None and not any(any(self.folder.glob(pattern)) for pattern in patterns):
            raise ModelUnavailable(f"{self.folder} has no {patterns[0]}; {self._remedy}")

    @property
    def _remedy(self) -> str:
        if self.folder is not None:
            return "download it again, safetensors, tokenizer.json and config.json included"
        return "give an existing folder, or the name of a model that can be downloaded or is in the local cache"

    @contextmanager
    def _opening(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, SafetensorError, HFValidationError) as error:
            message = f"the {what} of {self.location} cannot be opened ({error}); {self._remedy}"
            raise ModelUnavailable(message) from error
        except (ValueError, KeyError, ImportError, RuntimeError) as error:
            raise InvalidConfiguration(f"the {what} of {self.location} cannot be used: {error}") from error


CAUSAL_MAX_LENGTH = 8192  # tokens, unless the settings ask for more

_FEWEST_TOKENS = 8


def chosen_length(repository: Repository, max_length: int | None, usual: int | None = None) -> int:
    """Return the most tokens of an input: the requested number, else the usual one.

    Without a request, it is at most the number that the model reads.

    Raises:
        InvalidConfiguration: If more is requested than the model reads.
    """
    config = repository.config
    positions = getattr(config, "max_position_embeddings", None)
    # RoBERTa counts positions from after its padding index.
    first = int(config.pad_token_id or 0) + 1 if config.model_type in ("roberta", "xlm-roberta") else 0
    tokenizer_length = int(repository.tokenizer.model_max_length)
    most = tokenizer_length if positions is None else int(positions) - first
    if max_length is None:
        return min(most, tokenizer_length, usual or most)
    if not _FEWEST_TOKENS <= max_length <= most:
        raise InvalidConfiguration(f"{repository.location} takes a max_length of {_FEWEST_TOKENS} to {most} tokens")
    return max_length


def padding_token(repository: Repository) -> int:
    return int(repository.tokenizer.pad_token_id or 0)


def has_type_ids(repository: Repository) -> bool:
    """Return whether the model distinguishes segments by type ids."""
    named = "token_type_ids" in repository.tokenizer.model_input_names
    return named and getattr(repository.config, "type_vocab_size", 0) > 1


Precision: TypeAlias = Literal["auto", "fp32", "bf16", "fp16"]
_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_BATCH_TOKENS = {"cpu": 512, "cuda": 16384}
_WORKERS_OF_A_GPU = 2
Result = TypeVar("Result")
_FULL = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
_LOST = ("CUDA error", "CUBLAS_STATUS", "CUDNN_STATUS")


def load_options(chosen: ModelSettings, threads: int | None) -> dict[str, Any]:
    fields = {"revision", "precision", "device", "batch_tokens", "trust_remote_code"}
    return {**chosen.model_dump(include=fields), "threads": threads}


def locate(
    name_or_path: str, *, revision: str | None = None, trust_remote_code: bool = False, **placement: Any
) -> tuple[Repository, Placement]:
    """Return the repository of a model, and the place where it runs.

    `placement` holds the arguments of `Placement.choose`.
    """
    repository = Repository(name_or_path, revision=revision, trust_remote_code=trust_remote_code)
    return repository, Placement.choose(**placement)


class Placement(NamedTuple):
    """Where and how a model runs.

    Attributes:
        device: The device.
        precision: The type of its weights.
        batch_tokens: Most tokens of a batch, including padding.
        workers: Concurrent batches. On a GPU there are two, of which the second is made while the first computes.
    """

    device: torch.device
    precision: Precision
    batch_tokens: int
    workers: int

    @property
    def weight_type(self) -> torch.dtype:
        return _TYPES[self.precision]

    @classmethod
    def choose(
        cls,
        device: str = "auto",
        precision: Precision = "auto",
        batch_tokens: int | None = None,
        threads: int | None = None,
    ) -> Placement:
        """Return the placement for these settings.

        Args:
            device: `auto`, `cpu`, `cuda` or `cuda:N`.
            precision: The type of the weights.
            batch_tokens: Most tokens of a batch; by default it depends on the device.
            threads: Batches that a CPU computes at a time, by default one per core. That is faster than splitting each
                batch, so PyTorch gets one thread per operation.

        Raises:
            InvalidConfiguration: If the device does not exist.
        """
        chosen = _chosen_device(device)
        if precision == "auto":
            precision = "bf16" if chosen.type == "cuda" else "fp32"
        batch_tokens = batch_tokens or _BATCH_TOKENS.get(chosen.type, _BATCH_TOKENS["cpu"])
        if chosen.type != "cpu":
            return cls(chosen, precision, batch_tokens, _WORKERS_OF_A_GPU)
        torch.set_num_threads(1)
        return cls(chosen, precision, batch_tokens, threads or available_cores())


def _chosen_device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise InvalidConfiguration(f"there is no device {device}: use 'auto', 'cpu', 'cuda', or 'cuda:0'") from error
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise InvalidConfiguration(f"PyTorch finds no {device} here: use 'auto' or 'cpu', or install PyTorch for CUDA")
    return found


def run_on_device(work: Callable[[], Result]) -> Result:
    """Return the result of the work.

    Raises:
        OutOfMemory: After releasing the device's unused memory.
        DeviceLost: If the device no longer works.
    """
    failure: OutOfMemory | DeviceLost
    try:
        return work()
    except RuntimeError as error:
        message = str(error)
        if isinstance(error, torch.OutOfMemoryError) or any(sign in message for sign in _FULL):
            failure = OutOfMemory(message)
        elif isinstance(error, torch.AcceleratorError) or any(sign in message for sign in _LOST):
            failure = DeviceLost(message)
        else:
            raise
    # Not in the except clause, whose traceback still references the tensors of the batch.
    if isinstance(failure, OutOfMemory):
        torch.cuda.empty_cache()
    raise failure


Pooling = Literal["first", "last", "mean"]
Head = Callable[[torch.Tensor], torch.Tensor]
Forward: TypeAlias = Callable[[Sequence[TokenSequence]], torch.Tensor]  # (n, ...) float32, on the device


@dataclass(frozen=True, slots=True, eq=False)
class PooledBody:
    """A model with a head that turns (n, d) pooled states into results.

    Attributes:
        body: The model without a head.
        padding: The token that fills a batch, which is masked.
        head: Makes the results.
    """

    body: transformers.PreTrainedModel
    pooling: Pooling
    padding: int
    head: Head

    def __call__(self, items: Sequence[TokenSequence]) -> torch.Tensor:
        features = pad_batch(items, self.padding, self.body.device)
        mask = features["attention_mask"]
        states = self.body(**features).last_hidden_state
        if self.pooling == "mean":
            weights = (mask / mask.sum(dim=1, keepdim=True))[:, None]
            return self.head((weights @ states.float())[:, 0])
        tokens = mask.sum(dim=1) - 1 if self.pooling == "last" else torch.zeros_like(mask[:, 0])
        return self.head(states[torch.arange(len(mask), device=mask.device), tokens].float())


def pad_batch(items: Sequence[TokenSequence], padding: int, device: torch.device) -> dict[str, Any]:
    """Return the (n, longest) features of a batch in int64.

    They are ids, mask, and type ids if the items have them.
    """
    shape = len(items), max(map(len, items))
    ids = np.full(shape, padding, dtype=np.int64)
    mask, types = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for i, item in enumerate(items):
        ids[i, : len(item)], mask[i, : len(item)] = item.ids, 1
        if item.type_ids is not None:
            types[i, : len(item)] = item.type_ids
    features = {"input_ids": ids, "attention_mask": mask}
    if any(item.type_ids is not None for item in items):
        features["token_type_ids"] = types
    return {name: torch.from_numpy(values).to(device) for name, values in features.items()}


class DeviceModel:
    """One model on one device; after `close` its calls raise `failed`."""

    failed: ClassVar[type[BoundaryMorphError]]

    def __init__(self, name: str, forward: Forward, placement: Placement, max_length: int) -> None:
        self.name = name
        self.max_length = max_length
        self.batch_tokens = placement.batch_tokens
        self.workers = placement.workers
        self.backend = f"torch-{placement.device.type}"
        self.parallel = placement.device.type == "cpu"
        self.pads = True
        self._forward: Forward | None = forward

    def compute(self, items: Sequence[TokenSequence]) -> NDArray[np.float32]:
        """Return the results of `forward` for a batch.

        Raises OutOfMemory, DeviceLost, or `failed` after `close`.
        """
        forward = self._forward
        if forward is None:
            raise self.failed(f"{self.name} is closed")
        with torch.inference_mode():
            return run_on_device(lambda: forward(items).cpu().numpy())

    def close(self) -> None:
        self._forward = None
        torch.cuda.empty_cache()


_ACTIVATIONS: dict[str, type[nn.Module]] = {kind.__name__: kind for kind in (nn.Identity, nn.Tanh, nn.ReLU, nn.GELU)}
_INPUT = "sentence_embedding"


def open_dense(repository: Repository, folders: tuple[str, ...], width: int) -> tuple[nn.Sequential, int]:
    """Load the layers of these folders as a sequence, and return it and its output width.

    The layers are in float32 and read (n, width) states.

    Raises:
        ModelUnavailable: If files are missing.
        InvalidConfiguration: If a layer is not supported.
    """
    layers = nn.Sequential()
    for folder in folders:
        linear, activation = _layer(repository, folder)
        if linear.in_features != width:
            raise InvalidConfiguration(
                f"{folder} of {repository.location} reads {linear.in_features} dimensions, but gets {width}"
            )
        layers.extend([linear, activation])
        width = linear.out_features
    return layers.eval(), width


def _layer(repository: Repository, folder: str) -> tuple[nn.Linear, nn.Module]:
    config = repository.read_json(f"{folder}/config.json") or {}
    activation = str(config.get("activation_function")).rpartition(".")[2]
    elsewhere = {config.get(name) or _INPUT for name in ("module_input_name", "module_output_name")} != {_INPUT}
    if activation not in _ACTIVATIONS or elsewhere or config.get("use_residual"):
        raise InvalidConfiguration(f"{folder} of {repository.location} is a layer of an unsupported kind")
    weights = repository.weights(f"{folder}/model.safetensors")
    weight, bias = weights.get("linear.weight"), weights.get("linear.bias")
    if weight is None or (bias is None) == bool(config.get("bias", True)):
        raise InvalidConfiguration(f"the weights in {folder} of {repository.location} do not match its layer")
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    linear.weight = nn.Parameter(weight.float(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.float(), requires_grad=False)
    return linear, _ACTIVATIONS[activation]()


def open_body(
    repository: Repository, *, pooling: Pooling, dense: tuple[str, ...], placement: Placement
) -> tuple[PooledBody, int]:
    """Load the body of a model, and return it and the width of its results.

    `dense` names the folders of layers after the pooling.
    """
    model = repository.open(transformers.AutoModel, dtype=placement.weight_type, spare=("pooler.",))
    if getattr(model, "pooler", None) is not None:
        model.register_module("pooler", None)  # its output is not used here
    model.to(device=placement.device)  # type: ignore[call-arg]
    layers, width = open_dense(repository, dense, int(model.config.hidden_size))
    return PooledBody(model, pooling, padding_token(repository), layers.to(placement.device)), width
