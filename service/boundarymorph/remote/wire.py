"""Define the wire formats of servers: build requests, and read and check answers.

Reading a malformed answer raises MalformedAnswer.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeGuard

import orjson
from numpy.typing import NDArray

from boundarymorph.errors import BoundaryMorphError, InvalidInput

FRAME = 2**16  # bytes of an answer besides its results
ESCAPED = 3  # factor by which a text in ASCII JSON can be longer than in UTF-8


class MalformedAnswer(Exception):
    """An answer does not follow the wire format; the message says how."""


class TextContext(NamedTuple):
    """What texts are for: a scorer's query, the caller's instruction for it, and the caller."""

    query: str = ""
    instruction: str | None = None
    caller: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """A request for results.

    Attributes:
        path: The path under the server's base URL.
        body: The body of the POST.
        cut: Number of texts that were shortened to be accepted at all.
    """

    path: str
    body: dict[str, object]
    cut: int = 0


@dataclass(frozen=True, slots=True)
class TokenCounts:
    read: int = 0
    written: int = 0

    def plus(self, other: TokenCounts) -> TokenCounts:
        return TokenCounts(self.read + other.read, self.written + other.written)


class Span(NamedTuple):
    """A relevant part of a text: characters [start, end), and its relevance in [0, 1]."""

    start: int
    end: int
    score: float


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """Results of n texts.

    Attributes:
        values: (n, ...) in the order of the texts.
        truncated: Number of truncated texts.
        served: The model that answered, if given.
        usage: The tokens, if given.
        failure: Why values are NaN.
        spans: The relevant parts of each text; empty if the server gives none.
    """

    values: NDArray[Any]
    truncated: int = 0
    served: str | None = None
    usage: TokenCounts | None = None
    failure: BoundaryMorphError | None = None
    spans: Sequence[Sequence[Span]] = ()


@dataclass(frozen=True, slots=True)
class Description:
    """A server's description of itself; None where the server does not say.

    Attributes:
        name: Model and precision, as far as known.
        model: The name of the model in requests.
        texts: Most texts per request.
        concurrent_texts: Most texts at a time.
        revision: The revision of the model.
        weights: The name of its weights on the hub, or their folder.
        length: Tokens that it reads of a text, with its context.
        instructed: Whether it takes an instruction.
    """

    name: str
    model: str
    texts: int
    concurrent_texts: int | None = None
    revision: str | None = None
    weights: str | None = None
    length: int | None = None
    instructed: bool = False


class Format(ABC):
    """One wire format. Reading an answer raises MalformedAnswer.

    Attributes:
        name: The scheme in a URL.
        path: The path for results.
        most_texts: Texts per request, unless the server says otherwise.
        most_bytes: Bytes of a request's texts, as JSON; None for no limit.
        description_path: The path of the description. None if servers do not describe themselves, so that the model
            must be named.
        home: The base URL of a hosted service.
        prefix: The path of a base URL without one.
        version_optional: Whether a base URL may end in the version with which `path` begins.
        answer_bytes: Most bytes of the result of a text, besides the text.
        in_one_pass: Whether a model reads all texts of a request in one pass, so that full requests cost least.
        honours_deadlines: Whether requests carry a time limit, and a 504 means that it passed.
        declines: Whether a model may leave single texts without a result.
        trust: The trust in all scorers of this kind; None if it depends on the model.
    """

    name: str
    path: str
    most_texts: int
    most_bytes: int | None = None
    description_path: str | None = None
    home: str | None = None
    prefix = ""
    version_optional = False
    answer_bytes = 1024
    in_one_pass = False
    honours_deadlines = False
    declines = False
    trust: Literal["strong"] | None = None

    @property
    def paid(self) -> bool:
        """Whether each request costs money; then none that may have been carried out is repeated."""
        return self.home is not None

    def most_answer(self, sent: bytes, count: int) -> int:
        """Return the most bytes that the results of `count` texts can need.

        `sent` is the request, because some servers repeat it.
        """
        return FRAME + ESCAPED * len(sent) + count * self.answer_bytes

    @abstractmethod
    def request(self, model: str, context: TextContext, texts: Sequence[str], seconds: float) -> Request:
        """Build the request for the results of n texts.

        Args:
            model: Its name in the server's description.
            context: What the texts are for.
            texts: The n texts.
            seconds: How long we wait for the answer.
        """

    @abstractmethod
    def read(self, body: bytes, count: int) -> Answer: ...

    def describe(self, body: bytes, model: str | None) -> Description:
        raise MalformedAnswer("it does not describe itself")

    def configured(self, model: str) -> Description:
        return Description(f"{self.name}:{model}", model, self.most_texts)


class TextEmbeddingsInference(Format):
    """Text Embeddings Inference of Hugging Face.

    A request takes one permit per text and is rejected if too few are free; the server accepts 2 MB.

    Attributes:
        model_type: The kind of model, in the server's words.
        called: The kind of model, in ours.
    """

    name, description_path = "tei", "/info"
    most_texts, most_bytes = 32, 1_900_000
    model_type: str
    called: str

    def describe(self, body: bytes, model: str | None) -> Description:
        info = mapping(parse_json(body))
        served = word(info, "model_id")
        if model not in (None, served):
            raise MalformedAnswer(f"it serves {served}, not {model}")
        kind = info.get("model_type")
        if isinstance(kind, dict) and kind and self.model_type not in kind:
            raise MalformedAnswer(f"{served} is not a {self.called} but a model of type {', '.join(map(str, kind))}")
        embedding = kind.get("embedding") if isinstance(kind, dict) else None
        pooling = optional_word(embedding.get("pooling")) if isinstance(embedding, dict) else None
        revision = info.get("model_sha")
        name = full_name(served, revision, info.get("model_dtype"), info.get("max_input_length"))
        return Description(
            name if pooling is None else f"{name}/{pooling}",
            served,
            limit(info, "max_client_batch_size", self.most_texts),
            limit(info, "max_concurrent_requests", 0) or None,
            optional_word(revision),
            served,
            limit(info, "max_input_length", 0) or None,
        )


def vllm_description(body: bytes, model: str | None, most_texts: int) -> Description:
    card = served_card([card for card in cards(body) if not card.get("parent")], model)
    served, root = word(card, "id"), optional_word(card.get("root"))
    name = served if root in (None, served) else f"{served}={root}"  # the server may use another name
    return Description(
        full_name(name, None, None, card.get("max_model_len")),
        served,
        most_texts,
        weights=root or served,
        length=limit(card, "max_model_len", 0) or None,
    )


def cards(body: bytes) -> list[dict[str, Any]]:
    return [mapping(card) for card in array(mapping(parse_json(body)), "data")]


def served_card(cards: list[dict[str, Any]], model: str | None) -> dict[str, Any]:
    served = [word(card, "id") for card in cards]
    if not served:
        raise MalformedAnswer("it serves no model of this kind")
    if model is not None and model not in served:
        raise MalformedAnswer(f"it serves {', '.join(served)}, not {model}")
    if model is None and len(served) > 1:
        raise MalformedAnswer(f"it serves several models, {', '.join(served)}: choose one with ?model=NAME in its URL")
    return cards[0 if model is None else served.index(model)]


def by_index(results: Iterable[tuple[object, object]], count: int, noun: str) -> dict[int, object]:
    """Return results by the index of their text, which is given with each.

    Some of the `count` results may be missing.
    """
    ordered = dict[int, object]()
    for index, result in results:
        if not is_count(index) or index >= count:
            raise MalformedAnswer(
                f"there is a {noun} for text {describe_value(index)}; the texts asked for are 0 to {count - 1}"
            )
        if index in ordered:
            raise MalformedAnswer(f"there are two {noun}s for text {index}")
        ordered[index] = result
    return ordered


def full_name(model: str, revision: object, precision: object, length: object) -> str:
    """Return model@revision/precision/length, without the unknown ones of the last three."""
    name = f"{model}@{revision[:12]}" if isinstance(revision, str) and revision else model
    return "/".join([name, *(str(part) for part in (precision, length) if part)])


def optional_word(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def parse_json(body: bytes) -> Any:
    """Parse JSON, and the NaN that servers in Python write."""
    try:
        return json.loads(body) if b"NaN" in body else orjson.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedAnswer(f"the answer is not JSON ({error})") from error


def mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedAnswer(f"there is {describe_value(value)} where an object should be")
    return value


def array(value: dict[str, Any], key: str) -> list[Any]:
    if not isinstance(value.get(key), list):
        raise MalformedAnswer(f"'{key}' is {describe_value(value.get(key))}, not an array")
    return list(value[key])


def word(value: dict[str, Any], key: str) -> str:
    if not isinstance(value.get(key), str) or not value[key]:
        raise MalformedAnswer(f"'{key}' is {describe_value(value.get(key))}, not a name")
    return str(value[key])


def limit(value: dict[str, Any], key: str, default: int) -> int:
    number = value.get(key)
    return number if is_count(number) and number > 0 else default


def is_count(value: object) -> TypeGuard[int]:
    """Return whether this is a whole number, 0 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def describe_value(value: object) -> str:
    return "missing" if value is None else repr(value)[:60]


def chunks(context: TextContext, texts: Sequence[str], most: int, most_bytes: int | None = None) -> list[Sequence[str]]:
    """Split the texts, in order, into parts of similar length.

    A part has at most `most` texts and, unless it is a single text, at most `most_bytes` as JSON with the context.

    Raises:
        InvalidInput: If a text is not valid Unicode.
    """
    if len(texts) > most:
        parts = -(-len(texts) // most)
    elif most_bytes is not None and len(texts) > 1 and len(encode_json([*filter(None, context), *texts])) > most_bytes:
        parts = 2
    else:
        return [texts]
    bounds = [len(texts) * part // parts for part in range(parts + 1)]
    return [chunk for start, end in pairwise(bounds) for chunk in chunks(context, texts[start:end], most, most_bytes)]


def encode_json(body: object) -> bytes:
    """Encode as JSON. Raises InvalidInput for text that is not valid Unicode."""
    try:
        return orjson.dumps(body)
    except TypeError as error:
        raise InvalidInput("a text cannot be sent: it contains half a surrogate pair") from error
