"""How a model turns texts into vectors: its prompts, pooling, layers and length."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from boundarymorph.errors import InvalidConfiguration

Pooling: TypeAlias = Literal["cls", "mean", "last"]
ReadJson: TypeAlias = Callable[[str], Any]

WEB_SEARCH = "Given a web search query, retrieve relevant passages that answer the query"

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
_INSTRUCTED = re.compile(r"Instruct: .*\nQuery:")


@dataclass(frozen=True, slots=True)
class Recipe:
    """query, document: prefix of the text; pooling: which tokens' last states make the vector; dense: the folders of
    the layers after the pooling; max_length: tokens, None if unknown; lower_case: whether texts are converted to lower
    case."""

    pooling: Pooling = "mean"
    query: str = ""
    document: str = ""
    dense: tuple[str, ...] = ()
    max_length: int | None = None
    lower_case: bool = False

    def instructed(self, instruction: str) -> Recipe:
        """Return a copy with another task for queries. Raises InvalidConfiguration if its prompt has none."""
        if not _INSTRUCTED.match(self.query):
            raise InvalidConfiguration("the queries of this encoder take no instruction: give a query_prompt instead")
        return replace(self, query=_INSTRUCTED.sub(lambda _: f"Instruct: {instruction}\nQuery:", self.query, count=1))


_E5 = Recipe("mean", "query: ", "passage: ")
_INSTRUCTION = f"Instruct: {WEB_SEARCH}\nQuery:"
# The first whose pattern is found in the model's lowercase name.
_FAMILIES: tuple[tuple[str, Recipe], ...] = (
    (r"qwen3-embedding", Recipe("last", _INSTRUCTION)),
    (r"\be5-.*mistral|gte-qwen", Recipe("last", f"{_INSTRUCTION} ")),
    (r"\be5-.*instruct", Recipe("mean", f"{_INSTRUCTION} ")),
    (r"\be5-", _E5),
    (r"bge-(small|base|large)-en", Recipe("cls", "Represent this sentence for searching relevant passages: ")),
    (r"\bbge-", Recipe("cls")),
    (r"gte-(modernbert|multilingual|.*v1\.5)", Recipe("cls")),
)


def known_recipe(name: str) -> Recipe:
    """Return the recipe of a model's family by its name or folder; mean pooling without prompts if unknown."""
    lowered = name.lower()
    return next((recipe for pattern, recipe in _FAMILIES if re.search(pattern, lowered)), Recipe())


def described_recipe(name: str, read: ReadJson, pooling: Pooling | None = None) -> Recipe:
    """Return the recipe in the repository's sentence-transformers files, completed by that of its family.

    read: returns the content of one of its JSON files, None if it is missing; pooling: overrides that of the files.

    Raises InvalidConfiguration for anything that is not supported.
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
    """Return kind and folder of each module, in order: a transformer, its pooling, perhaps layers and normalization."""
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
        raise InvalidConfiguration(f"this model pools by {' and '.join(modes) or 'nothing'}: choose cls, mean or last")
    pooling = _POOLINGS[modes[0]]
    if not config.get("include_prompt", True) and pooling == "mean":
        raise InvalidConfiguration("this model excludes its prompts from the mean, which is not supported here")
    return pooling
