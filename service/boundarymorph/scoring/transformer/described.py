"""The prompt that a repository describes in the files of sentence-transformers 5.4 and later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.scoring.transformer.prompts import Template

ReadJson = Callable[[str], Any]

_FIELDS = {"system": "{instruction}", "query": "{query}", "document": "{document}"}
_SIZES = {"padding", "truncation", "max_length", "return_tensors", "restore_suffix", "tokenize", "return_dict"}


class ChatTokenizer(Protocol):
    """A tokenizer with a chat template."""

    chat_template: Any

    def apply_chat_template(self, conversation: Any, *, tokenize: bool, **options: Any) -> Any:
        """Return the text of a conversation."""


def described_template(tokenizer: ChatTokenizer, read: ReadJson, *, instructed: bool) -> Template | None:
    """Return the template from a repository's own chat template and LogitScore module; None if it has none.

    read: returns the content of one of its JSON files, None if it is missing; instructed: whether the operator gives an
    instruction. Raises InvalidConfiguration if the chat template has no place for a pair.
    """
    answers = _answers(read)
    if answers is None or not tokenizer.chat_template:
        return None
    described = read("config_sentence_transformers.json") or {}
    instruction = (described.get("prompts") or {}).get(described.get("default_prompt_name"))
    roles = ["query", "document"]
    if instructed or instruction:
        roles = ["system", *roles]
    for text in _renderings(tokenizer, read, roles):
        if all(text.count(_FIELDS[role]) == 1 for role in roles):
            yes, no = answers
            return Template("chat", text, yes, no, instruction=instruction)
    raise InvalidConfiguration(
        f"the chat template of this model does not show where its {', '.join(roles)} belong: choose a --prompt"
    )


def _answers(read: ReadJson) -> tuple[int, int | None] | None:
    for module in read("modules.json") or ():
        if str(module.get("type", "")).rpartition(".")[2] == "LogitScore":
            config = read(f"{module['path']}/config.json") or {}
            if not isinstance(config.get("true_token_id"), int):
                raise InvalidConfiguration("the LogitScore module of this model has no true_token_id")
            return config["true_token_id"], config.get("false_token_id")
    return None


def _renderings(tokenizer: ChatTokenizer, read: ReadJson, roles: list[str]) -> Iterator[str]:
    """Yield the chat template with fields for the texts: a message's content as a string, then as a list."""
    processing = (read("sentence_bert_config.json") or {}).get("processing_kwargs") or {}
    options = {name: value for name, value in processing.get("chat_template", {}).items() if name not in _SIZES}
    for structured in (False, True):
        messages = [
            {"role": role, "content": [{"type": "text", "text": _FIELDS[role]}] if structured else _FIELDS[role]}
            for role in roles
        ]
        try:
            yield str(tokenizer.apply_chat_template(messages, tokenize=False, **options))
        except Exception as error:  # a template may raise anything
            if structured:
                raise InvalidConfiguration(f"the chat template of this model fails on a pair: {error}") from error
