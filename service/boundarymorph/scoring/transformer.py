"""Run cross-encoders on PyTorch: sequence classifiers, and causal models that say yes or no."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel

from boundarymorph.calibration.calibration import sigmoid
from boundarymorph.errors import InvalidConfiguration, InvalidInput, ScorerFailed
from boundarymorph.inference import transformer
from boundarymorph.inference.models import TokenSequence, encode_heads, encode_pairs, plain_tokenizer, tokens_with_words

_FIELD = re.compile(r"\{(instruction|query|document)\}")
_APART = "\0"
_LEAST_ROOM = 4
ReadJson = Callable[[str], Any]
_FIELDS = {"system": "{instruction}", "query": "{query}", "document": "{document}"}
_SIZES = {"padding", "truncation", "max_length", "return_tensors", "restore_suffix", "tokenize", "return_dict"}


@dataclass(frozen=True, slots=True)
class Template:
    """The prompt of a chat model, and which of its answers are weighed.

    Attributes:
        text: The prompt with {instruction}, {query} and {document}, and a NUL between parts that are tokenized
            separately.
        yes: The next token for relevance, by text or id.
        no: The next token against it, if it is weighed.
        temperature: Divides the logit.
        instruction: The default instruction.
    """

    name: str
    text: str
    yes: str | int
    no: str | int | None = None
    temperature: float = 1.0
    instruction: str | None = None

    @property
    def instructed(self) -> bool:
        return "{instruction}" in self.text


QWEN3 = Template(
    name="qwen3",
    text=(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
        "<|im_start|>user\n<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    ),
    yes="yes",
    no="no",
    instruction="Given a web search query, retrieve relevant passages that answer the query",
)
ZERANK = Template(
    name="zerank",
    text=("<|im_start|>system\n{query}<|im_end|>\n<|im_start|>user\n{document}<|im_end|>\n<|im_start|>assistant\n"),
    yes="Yes",
    temperature=5.0,
)
MXBAI = Template(
    name="mxbai",
    text=(
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n\0query: {query}\0\n\0document: {document}\0\n\0You are a search relevance expert who "
        "evaluates how well documents match search queries. For each query-document pair, carefully analyze the "
        "semantic relationship between them, then provide your binary relevance judgment (0 for not relevant, 1 for "
        "relevant).\nRelevance:<|im_end|>\n<|im_start|>assistant\n"
    ),
    yes="1",
    no="0",
)
_OWN_PROMPT = "chat"
TEMPLATES: Mapping[str, Template] = {template.name: template for template in (QWEN3, ZERANK, MXBAI)}
_FAMILIES = {"zerank": ZERANK, "qwen3-reranker": QWEN3, "mxbai-rerank-base-v2": MXBAI, "mxbai-rerank-large-v2": MXBAI}


def template_of_name(name: str) -> Template | None:
    return next((template for family, template in _FAMILIES.items() if family in name.lower()), None)


class SequencePairs:
    """A prompt of the query, the document, and the tokenizer's special tokens around them.

    Special tokens that a text spells out are plain text. `types` says whether the model distinguishes the two
    by type ids. Thread-safe.
    """

    takes_instruction = False

    def __init__(self, tokenizer: Tokenizer, *, max_length: int, types: bool) -> None:
        self._tokenizer = plain_tokenizer(tokenizer)
        self._words = tokens_with_words(tokenizer)
        self._max_length = max_length
        self._types = types
        if max_length - self._tokenizer.num_special_tokens_to_add(True) < _LEAST_ROOM:
            raise InvalidConfiguration(f"a max_length of {max_length} leaves no room for a query and a document")

    def tokenize(self, query: str, texts: Sequence[str], instruction: str | None = None) -> list[TokenSequence]:
        encoded = encode_pairs(self._tokenizer, self._max_length, query, texts, self._words)
        return encoded if self._types else [replace(pair, type_ids=None) for pair in encoded]


class ChatPrompt:
    """A prompt from a filled template. Thread-safe.

    Nothing in a query, a document, or the instruction can end its part. A pair that is too long loses the end of its
    document. Its query is also truncated if it would leave the document less than half of the tokens that the template
    leaves.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: Template, *, max_length: int, instruction: str | None = None
    ) -> None:
        """Parse the template.

        Args:
            tokenizer: The model's tokenizer.
            template: The prompt.
            max_length: Most tokens of a pair.
            instruction: Replaces the template's own.

        Raises:
            InvalidConfiguration: If the template does not suit the tokenizer, or fills max_length by itself.
        """
        if instruction is not None and not template.instructed:
            raise InvalidConfiguration(f"the {template.name} prompt has no place for an instruction: leave it out")
        self.template = template
        self.instruction = instruction if instruction is not None else template.instruction
        if template.instructed and self.instruction is None:
            raise InvalidConfiguration(f"the {template.name} prompt needs an instruction")
        self._max_length = max_length
        added = {token.content: number for number, token in tokenizer.get_added_tokens_decoder().items()}
        fixed = {content for content in added if content in _FIELD.sub("", template.text)}
        self._tokenizer = plain_tokenizer(tokenizer, fixed)
        self._before, self._lead, self._after = _parts(template, {content: added[content] for content in fixed})
        self._tail = self._ids(self._after, "", self.instruction)
        self._verify(tokenizer)
        self._room = self._room_beside(self.instruction)
        if self._room < _LEAST_ROOM:
            raise InvalidConfiguration(
                f"the {template.name} prompt and its instruction leave no room for a query and a document "
                f"in a max_length of {max_length}: raise it or shorten the instruction"
            )

    @property
    def takes_instruction(self) -> bool:
        return self.template.instructed

    def tokenize(self, query: str, texts: Sequence[str], instruction: str | None = None) -> list[TokenSequence]:
        """Tokenize the pairs of n texts with one query.

        An instruction replaces the operator's; it is ignored without a place in the template.

        Raises:
            InvalidInput: If the instruction leaves no tokens for the pair.
        """
        room = self._room
        if instruction is None or not self.takes_instruction:
            instruction = self.instruction
        elif (room := self._room_beside(instruction)) < _LEAST_ROOM:
            raise InvalidInput(
                f"instruction: it leaves no room for a document in {self._max_length} tokens; shorten it"
            )
        before, lead = self._ids(self._before, query, instruction), _fill(self._lead, query, instruction)
        spare = self._max_length - len(self._tail) - len(before)
        bodies = encode_heads(self._tokenizer, [lead + text for text in texts], max(spare, 0))
        [whole] = self._tokenizer.encode_batch([query], add_special_tokens=False)
        return [
            self._cut(query, whole, text, instruction, room)
            if body.truncated and len(whole) > room // 2
            else TokenSequence(_array(before, body.ids, self._tail), body.truncated)
            for text, body in zip(texts, bodies, strict=True)
        ]

    def token(self, answer: str | int) -> int:
        number = answer if isinstance(answer, int) else self._tokenizer.token_to_id(answer)
        if number is None:
            raise InvalidConfiguration(f"the {self.template.name} prompt's answer {answer!r} is no token of this model")
        return number

    def _cut(self, query: str, whole: Encoding, text: str, instruction: str | None, room: int) -> TokenSequence:
        [document] = encode_heads(self._tokenizer, [text], room)
        kept = max(room // 2, room - len(document.ids))
        short = query if len(whole) <= kept else query[: whole.offsets[kept - 1][1]]
        before = self._ids(self._before, short, instruction)
        spare = max(self._max_length - len(self._tail) - len(before), 0)
        [body] = encode_heads(self._tokenizer, [_fill(self._lead, short, instruction) + text], spare)
        return TokenSequence(_array(before, body.ids, self._tail), truncated=True)

    def _room_beside(self, instruction: str | None) -> int:
        taken = len(self._ids(self._before, "", instruction)) + len(self._ids([self._lead], "", instruction))
        return self._max_length - taken - len(self._tail)

    def _ids(
        self, parts: Sequence[int | str], query: str, instruction: str | None, document: str = "{document}"
    ) -> list[int]:
        ids: list[int] = []
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
            else:
                text = _fill(part, query, instruction, document)
                ids += self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def _verify(self, tokenizer: Tokenizer) -> None:
        """Check with ordinary texts that our tokens equal those of the model's own tokenizer."""
        values = "Which one do they want?", "Find it.", "It is 1 answer.\n\nNo more."
        parts = [*self._before, self._lead + "{document}", *self._after]
        alone = _fill(self.template.text, *values).split(_APART)
        whole = [number for part in alone for number in tokenizer.encode(part, add_special_tokens=False).ids]
        if self._ids(parts, *values) != whole:
            raise InvalidConfiguration(f"the {self.template.name} prompt does not suit the tokenizer of this model")


def _fill(text: str, query: str, instruction: str | None, document: str = "{document}") -> str:
    values = {"query": query, "instruction": instruction or "", "document": document}
    return _FIELD.sub(lambda field: values[field[1]], text)


def _parts(template: Template, fixed: Mapping[str, int]) -> tuple[list[int | str], str, list[int | str]]:
    """Split the template around the run of text that contains the document.

    The parts are before that run, the run up to the document, and after the document. A run has no special tokens, so
    that its tokens are the same as in the whole.
    """
    for field in ("query", "document"):
        if template.text.count(f"{{{field}}}") != 1:
            raise InvalidConfiguration(f"the {template.name} prompt must have one place for the {field}")
    borders = "|".join(map(re.escape, [*sorted(fixed, key=len, reverse=True), _APART]))
    pieces = re.split(f"({borders})", template.text)
    parts = [fixed.get(piece, piece) for piece in pieces if piece not in ("", _APART)]
    position = next(i for i, part in enumerate(parts) if isinstance(part, str) and "{document}" in part)
    lead, _, rest = str(parts[position]).partition("{document}")
    after = [rest, *parts[position + 1 :]]
    if any("{query}" in part for part in after if isinstance(part, str)):
        raise InvalidConfiguration(f"the {template.name} prompt must have its query before the document")
    return parts[:position], lead, after


def _array(*pieces: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(list(chain.from_iterable(pieces)), dtype=np.int64)


def described_template(tokenizer: Any, read: ReadJson, *, instructed: bool) -> Template | None:
    """Return the template from a repository's chat template and LogitScore module, if any.

    Args:
        tokenizer: The model's tokenizer, with its chat template.
        read: Returns a JSON file or None.
        instructed: Whether the operator gives an instruction.

    Raises:
        InvalidConfiguration: If the chat template has no place for a pair.
    """
    answers = _answers(read)
    if answers is None or not tokenizer.chat_template:
        return None
    described = read("config_sentence_transformers.json") or {}
    instruction = (described.get("prompts") or {}).get(described.get("default_prompt_name"))
    roles = ["system", "query", "document"] if instructed or instruction else ["query", "document"]
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


def _renderings(tokenizer: Any, read: ReadJson, roles: list[str]) -> Iterator[str]:
    """Yield the chat template with fields for the texts.

    A message's content is first a string, then a list.
    """
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


def label_logits(labels: torch.Tensor) -> torch.Tensor:
    """Map (n, 1) or (n, 2) label logits to (n,) relevance logits."""
    return labels[:, 0] if labels.shape[-1] == 1 else labels[:, 1] - labels[:, 0]


def answer_head(model: PreTrainedModel, yes: int, no: int | None) -> transformer.Head:
    """Return a head made of the rows of a causal model's output layer for its answers.

    The head is in float32.

    Raises:
        InvalidConfiguration: If an answer is not a token.
    """
    output = cast(nn.Linear | None, model.get_output_embeddings())  # type: ignore[no-untyped-call]
    answers = [yes] if no is None else [no, yes]
    if output is None or not all(0 <= answer < output.weight.shape[0] for answer in answers):
        raise InvalidConfiguration(f"the model has no output for the tokens {answers}")
    weight = output.weight.detach()[answers].float()
    bias = None if output.bias is None else output.bias.detach()[answers].float()
    return lambda states: label_logits(nn.functional.linear(states, weight, bias))


class TransformerCrossEncoder(transformer.DeviceModel):
    """A `CrossEncoder` on one device.

    The relevance is the sigmoid of the logit, divided by the temperature of the prompt.
    """

    failed = ScorerFailed

    def __init__(
        self,
        name: str,
        forward: transformer.Forward,
        placement: transformer.Placement,
        max_length: int,
        *,
        prompt: SequencePairs | ChatPrompt,
        temperature: float,
    ) -> None:
        super().__init__(name, forward, placement, max_length)
        self._prompt = prompt
        self._temperature = temperature

    @classmethod
    def load(
        cls,
        name_or_path: str,
        *,
        max_length: int | None = None,
        prompt: str | None = None,
        instruction: str | None = None,
        **options: Any,
    ) -> TransformerCrossEncoder:
        """Load a model from a folder or from the hub.

        Args:
            name_or_path: The name on the hub, or the folder.
            max_length: Tokens per pair; by default all that the model reads, and for a causal model at most 8192.
            prompt: The name of a template, or `chat` for the repository's own; by default it depends on the model's
                name and files.
            instruction: Replaces the template's own.
            options: The arguments of `transformer.locate`.

        Raises:
            ModelUnavailable: If files are missing.
            InvalidConfiguration: If the model or a setting is unsuitable.
            OutOfMemory: If the device is too small.
            DeviceLost: If the device does not work.
        """
        repository, placement = transformer.locate(name_or_path, **options)
        generates = _generates(repository)
        length = transformer.chosen_length(repository, max_length, transformer.CAUSAL_MAX_LENGTH if generates else None)
        template = _template(repository, prompt, instruction, generates=generates)
        chat = None
        if template is not None:
            chat = ChatPrompt(repository.backend_tokenizer, template, max_length=length, instruction=instruction)
        reader = chat or SequencePairs(
            repository.backend_tokenizer, max_length=length, types=transformer.has_type_ids(repository)
        )
        forward = transformer.run_on_device(lambda: _open(repository, placement, chat, generates=generates))
        return cls(
            _name(repository, placement.precision, length, chat),
            forward,
            placement,
            length,
            prompt=reader,
            temperature=1.0 if template is None else template.temperature,
        )

    @property
    def takes_instruction(self) -> bool:
        return self._prompt.takes_instruction

    def tokenize(self, query: str, texts: Sequence[str], instruction: str | None = None) -> list[TokenSequence]:
        return self._prompt.tokenize(query, texts, instruction)

    def run(self, pairs: Sequence[TokenSequence]) -> NDArray[np.float64]:
        """Return (n,) relevance scores.

        Raises OutOfMemory, DeviceLost, or ScorerFailed if one is not a finite number.
        """
        if not pairs:
            return np.empty(0)
        logits = self.compute(pairs).astype(np.float64)
        if not np.isfinite(logits).all():
            raise ScorerFailed(f"{self.name} gave a score that is not a number; another precision may help")
        return sigmoid(logits / self._temperature)


def _generates(repository: transformer.Repository) -> bool:
    """Return whether a model is causal rather than a sequence classifier.

    Raises:
        InvalidConfiguration: If it is neither.
    """
    names = repository.config.architectures or []
    if any(name.endswith("ForCausalLM") for name in names):
        return True
    if any(name.endswith("ForSequenceClassification") for name in names):
        return False
    raise InvalidConfiguration(
        f"{repository.location} is a {' or '.join(names) or 'model of unknown kind'}: a reranker is a sequence "
        "classification model, or a causal language model that answers yes or no"
    )


def _open(
    repository: transformer.Repository, placement: transformer.Placement, chat: ChatPrompt | None, *, generates: bool
) -> transformer.Forward:
    kind = AutoModelForCausalLM if generates else AutoModelForSequenceClassification
    model = repository.open(kind, dtype=placement.weight_type)
    model.to(device=placement.device)  # type: ignore[call-arg]
    if generates:
        assert chat is not None
        no = chat.template.no
        head = answer_head(model, chat.token(chat.template.yes), None if no is None else chat.token(no))
        body = cast(PreTrainedModel, model.base_model)
        return transformer.PooledBody(body, "last", transformer.padding_token(repository), head)
    if model.config.num_labels not in (1, 2):
        raise InvalidConfiguration(
            f"the model has {model.config.num_labels} labels: a reranker has one, or two of which the second is for"
        )
    if model.config.pad_token_id is None:
        model.config.pad_token_id = transformer.padding_token(repository)
    padding = model.config.pad_token_id
    return lambda pairs: label_logits(model(**transformer.pad_batch(pairs, padding, model.device)).logits.float())


def _template(
    repository: transformer.Repository, prompt: str | None, instruction: str | None, *, generates: bool
) -> Template | None:
    """Return the template of a chat model; None if the query and the document are simply joined."""
    if prompt is not None and prompt not in (*TEMPLATES, _OWN_PROMPT):
        raise InvalidConfiguration(f"there is no --prompt {prompt}; there are {_prompts()}")
    template = TEMPLATES.get(prompt) if prompt is not None else template_of_name(repository.model)
    if template is None and (generates or prompt == _OWN_PROMPT):
        template = described_template(repository.tokenizer, repository.read_json, instructed=instruction is not None)
        if template is None:
            raise InvalidConfiguration(
                f"{repository.location} does not say how to prompt it: choose a --prompt of {_prompts()}"
            )
    if template is None and instruction is not None:
        raise InvalidConfiguration(f"{repository.location} takes no instruction: leave it out")
    return template


def _prompts() -> str:
    return ", ".join([*TEMPLATES, _OWN_PROMPT])


def _name(repository: transformer.Repository, precision: str, max_length: int, chat: ChatPrompt | None) -> str:
    name = f"{repository.model}@{repository.revision[:12]}/{precision}/{max_length}"
    if chat is None:
        return name
    asked: dict[str, Any] = asdict(chat.template) | {"instruction": chat.instruction}
    return f"{name}/{hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:8]}"
