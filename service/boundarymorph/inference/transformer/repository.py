"""A model's files, in a folder or on the hub, loading from them, and what we know about their architectures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import HFValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.hub import cached_file, extract_commit_hash

from boundarymorph.errors import InvalidConfiguration, ModelUnavailable

# The first is what most models have; a tokenizer can also be built from the others.
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "*.model")


class Repository:
    """The location of a model. A folder is read without network access.

    revision: a commit, branch or tag on the hub; a folder has none.
    Methods raise ModelUnavailable if files are missing, and InvalidConfiguration if they cannot be used.
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
        """The name of the model on the hub, or of its folder."""
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
                digest.update(_sha256(path))
        return digest.hexdigest()

    @cached_property
    def config(self) -> PreTrainedConfig:
        self._require(("config.json",))
        with self._opening("configuration"):
            config: PreTrainedConfig = AutoConfig.from_pretrained(self.location, **self._options)
            return config

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        self._require(_VOCABULARIES)
        with self._opening("tokenizer"):
            return AutoTokenizer.from_pretrained(self.location, **self._options)

    @cached_property
    def backend_tokenizer(self) -> Tokenizer:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise InvalidConfiguration(f"{self.location} has no tokenizer.json, which is required")
        return backend

    def open(self, kind: Any, *, dtype: torch.dtype, spare: Sequence[str] = ()) -> PreTrainedModel:
        """Load the model with its weights, on the CPU, ready to run.

        kind: the class of transformers that loads it; spare: prefixes of the names of weights that may be missing.
        """
        with self._opening("weights"):
            model, loaded = kind.from_pretrained(
                self.location,
                config=self.config,
                dtype=dtype,
                use_safetensors=True,
                output_loading_info=True,
                **self._options,
            )
        if missing := sorted(name for name in loaded["missing_keys"] if not name.startswith(tuple(spare))):
            raise InvalidConfiguration(
                f"the weights in {self.location} are not those of a {type(model).__name__}: {missing[0]} is missing"
            )
        opened: PreTrainedModel = model.eval()
        return opened

    def read_json(self, name: str) -> Any:
        """Return the content of a file, or None if it does not exist."""
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
        """Return the tensors of an additional safetensors file."""
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


def _sha256(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


CAUSAL_MAX_LENGTH = 8192  # tokens, unless more are asked for

_FEWEST_TOKENS = 8


def make_bidirectional(model: PreTrainedModel) -> None:
    """Make a causal architecture bidirectional if its configuration says that it was trained so."""
    if not getattr(model.config, "is_causal", True):
        for module in model.modules():
            if hasattr(module, "is_causal"):
                module.is_causal = False  # type: ignore[assignment]


def chosen_length(repository: Repository, max_length: int | None, usual: int | None = None) -> int:
    """Return the most tokens of an input: the requested number, else the usual one, at most what the model reads.

    Raises InvalidConfiguration if the model cannot read inputs of the requested length.
    """
    positions = getattr(repository.config, "max_position_embeddings", None)
    tokenizer_length = int(repository.tokenizer.model_max_length)
    most = tokenizer_length if positions is None else int(positions) - first_position(repository.config)
    if max_length is None:
        return min(most, tokenizer_length, usual or most)
    if not _FEWEST_TOKENS <= max_length <= most:
        raise InvalidConfiguration(f"{repository.location} takes a max_length of {_FEWEST_TOKENS} to {most} tokens")
    return max_length


def first_position(config: PreTrainedConfig) -> int:
    """Return the first position; RoBERTa counts from after its padding index."""
    return int(config.pad_token_id or 0) + 1 if config.model_type in ("roberta", "xlm-roberta") else 0


def padding_token(repository: Repository) -> int:
    """Return the token for padding: any will do, since it is masked."""
    return int(repository.tokenizer.pad_token_id or 0)


def typed(repository: Repository) -> bool:
    """Whether the model distinguishes segments by type ids."""
    named = "token_type_ids" in repository.tokenizer.model_input_names
    return named and getattr(repository.config, "type_vocab_size", 0) > 1
