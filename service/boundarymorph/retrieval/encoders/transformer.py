"""Run dual encoders on PyTorch, as their repositories describe them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import EncoderFailed, InvalidConfiguration
from boundarymorph.inference import transformer
from boundarymorph.inference.models import TokenSequence, encode_texts, plain_tokenizer
from boundarymorph.retrieval.encoders import Pooling, Recipe, known_recipe
from boundarymorph.retrieval.ranking import unit_vectors

_ORDINARY = "Which one do they want? It is 1 answer."
ReadJson: TypeAlias = Callable[[str], Any]
_POOLINGS: Mapping[str, Pooling] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")
_AFTER = {
    "Transformer": ("",),
    "Pooling": ("Transformer",),
    "Dense": ("Pooling", "Dense"),
    "Normalize": ("Pooling", "Dense", "Normalize"),
}


class TextReader:
    """Tokenizes texts with prompts. Thread-safe.

    Raises InvalidConfiguration for an unsuitable prompt.
    """

    def __init__(self, tokenizer: Any, recipe: Recipe, *, max_length: int, types: bool, filler: int) -> None:
        self._tokenizer = plain_tokenizer(tokenizer)
        self._recipe, self._max_length, self._types, self._filler = recipe, max_length, types, filler
        for prompt in (recipe.query, recipe.document):
            own = tokenizer.encode(prompt + _ORDINARY, add_special_tokens=False).ids
            if self._tokenizer.encode(prompt + _ORDINARY, add_special_tokens=False).ids != own:
                raise InvalidConfiguration(f"the prompt {prompt!r} contains special tokens: leave them out")
            room = max_length - self._tokenizer.num_special_tokens_to_add(False)
            if len(self._tokenizer.encode(prompt, add_special_tokens=False).ids) >= room:
                raise InvalidConfiguration(f"the prompt {prompt!r} leaves no room in a max_length of {max_length}")

    def query(self, text: str) -> TokenSequence:
        return self._read([self._recipe.query + text])[0]

    def documents(self, texts: Sequence[str]) -> list[TokenSequence]:
        return self._read([self._recipe.document + text for text in texts])

    def _read(self, texts: Sequence[str]) -> list[TokenSequence]:
        if self._recipe.lower_case:
            texts = [text.lower() for text in texts]
        read = []
        for tokens in encode_texts(self._tokenizer, self._max_length, texts):
            ids = tokens.ids if len(tokens.ids) else np.array([self._filler])
            read.append(TokenSequence(ids, tokens.truncated, np.zeros_like(ids) if self._types else None))
        return read


class TransformerDualEncoder(transformer.DeviceModel):
    failed = EncoderFailed

    def __init__(
        self,
        name: str,
        forward: transformer.Forward,
        placement: transformer.Placement,
        max_length: int,
        *,
        reader: TextReader,
        dimension: int,
    ) -> None:
        super().__init__(name, forward, placement, max_length)
        self.dimension = dimension
        self._reader = reader

    @classmethod
    def load(
        cls,
        name_or_path: str,
        *,
        max_length: int | None = None,
        pooling: Pooling | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        instruction: str | None = None,
        dimension: int | None = None,
        **options: Any,
    ) -> TransformerDualEncoder:
        """Load a model from a folder or from the hub.

        Pooling and prompts are by default those of its repository, else of its family, else the mean without prompts.

        Args:
            name_or_path: The name on the hub, or the folder.
            max_length: Tokens of a text with its prompt; by default the repository's, at most 8192.
            pooling: How the states of a text become one.
            query_prompt: The prefix of queries.
            document_prompt: The prefix of documents.
            instruction: The task in a query prompt that has one.
            dimension: Leading components to keep.
            options: The arguments of `transformer.locate`.

        Raises:
            ModelUnavailable: If files are missing.
            InvalidConfiguration: If the model or a setting is unsuitable.
            OutOfMemory: If the device is too small.
            DeviceLost: If the device does not work.
        """
        repository, placement = transformer.locate(name_or_path, **options)
        tokenizer = repository.backend_tokenizer
        recipe = described_recipe(repository.model, repository.read_json, pooling)
        query = recipe.query if query_prompt is None else query_prompt
        document = recipe.document if document_prompt is None else document_prompt
        recipe = replace(recipe, query=query, document=document)
        recipe = recipe if instruction is None else recipe.instructed(instruction)
        length = transformer.chosen_length(repository, max_length, recipe.max_length or transformer.CAUSAL_MAX_LENGTH)
        reader = TextReader(
            tokenizer,
            recipe,
            max_length=length,
            types=transformer.has_type_ids(repository),
            filler=int(repository.tokenizer.eos_token_id or 0),
        )
        forward, width = transformer.run_on_device(
            lambda: transformer.open_body(
                repository,
                pooling="first" if recipe.pooling == "cls" else recipe.pooling,
                dense=recipe.dense,
                placement=placement,
            )
        )
        if dimension is not None and not 1 <= dimension <= width:
            raise InvalidConfiguration(f"{repository.location} has vectors of 1 to {width} dimensions")
        dimension = dimension or width
        origin = f"{repository.model}@{repository.revision[:12]}"
        name = f"{origin}/{placement.precision}/{length}/{_digest(recipe, dimension)}"
        return cls(name, forward, placement, length, reader=reader, dimension=dimension)

    def tokenize_query(self, text: str) -> TokenSequence:
        return self._reader.query(text)

    def tokenize_documents(self, texts: Sequence[str]) -> list[TokenSequence]:
        return self._reader.documents(texts)

    def run(self, texts: Sequence[TokenSequence]) -> NDArray[np.float32]:
        """Return (n, d) unit rows.

        Raises OutOfMemory, DeviceLost, or EncoderFailed if a vector has no direction.
        """
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        rows = unit_vectors(self.compute(texts)[:, : self.dimension])
        if not np.isfinite(rows).all():
            raise EncoderFailed(f"{self.name} gave a vector without a direction; another precision may help")
        return rows


def _digest(recipe: Recipe, dimension: int) -> str:
    description = asdict(replace(recipe, max_length=None)) | {"dimension": dimension}
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:8]


def described_recipe(name: str, read: ReadJson, pooling: Pooling | None = None) -> Recipe:
    """Return the recipe in sentence-transformers files, completed by that of the family.

    Args:
        name: The name of the model.
        read: Returns a JSON file or None.
        pooling: Overrides the files.

    Raises:
        InvalidConfiguration: If a module is not supported.
    """
    recipe, config = known_recipe(name), None
    for kind, folder in _modules(read):
        if kind == "Pooling":
            config = read(f"{folder}/config.json") or {}
        elif kind == "Dense":
            recipe = replace(recipe, dense=(*recipe.dense, folder))
    if pooling is None and config is not None:
        pooling = _mode(config)
    if pooling is not None:
        recipe = replace(recipe, pooling=pooling)
    described = read("config_sentence_transformers.json") or {}
    prompts = described.get("prompts") or {}
    if any(prompts.values()):
        default = prompts.get(described.get("default_prompt_name"), "")
        document = next((prompts[key] for key in _DOCUMENT_PROMPTS if key in prompts), default)
        recipe = replace(recipe, query=prompts.get("query", default), document=document)
    texts = read("sentence_bert_config.json") or {}
    return replace(recipe, max_length=texts.get("max_seq_length"), lower_case=bool(texts.get("do_lower_case")))


def _modules(read: ReadJson) -> list[tuple[str, str]]:
    modules = [
        (str(module.get("type", "")).rpartition(".")[2], str(module.get("path") or ""))
        for module in read("modules.json") or ()
    ]
    for (kind, folder), (before, _) in zip(modules, [("", ""), *modules], strict=False):
        if kind == "Transformer" and folder:
            raise InvalidConfiguration(
                f"the transformer of this model is in its folder {folder}: give that as the model"
            )
        if before not in _AFTER.get(kind, ()):
            raise InvalidConfiguration(
                f"this model has a {kind} module after {before or 'nothing'}, which is not supported here: "
                "run it on another server"
            )
    return modules


def _mode(config: Mapping[str, Any]) -> Pooling:
    modes = config.get("pooling_mode") or [mode for switch, mode in _SWITCHES.items() if config.get(switch)]
    modes = [modes] if isinstance(modes, str) else list(modes)
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        known = "choose 'cls', 'mean', or 'last'"
        raise InvalidConfiguration(f"this model pools by {' and '.join(modes) or 'nothing'}: {known}")
    pooling = _POOLINGS[modes[0]]
    if not config.get("include_prompt", True) and pooling == "mean":
        raise InvalidConfiguration("this model excludes its prompts from the mean, which is not supported here")
    return pooling
