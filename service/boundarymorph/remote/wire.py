"""The wire formats of servers: what is asked, and how an answer is read and checked.

The functions read an answer's parts; they raise Unusable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import orjson
from numpy.typing import NDArray


class Unusable(Exception):
    """An answer that is not what the wire format promises; the message says in what."""


@dataclass(frozen=True, slots=True)
class Request:
    """path: under the server's base URL; body: of the POST; cut: how many texts were shortened to be taken at all."""

    path: str
    body: dict[str, object]
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that a language model read and wrote."""

    read: int = 0
    written: int = 0

    def plus(self, other: Usage) -> Usage:
        return Usage(self.read + other.read, self.written + other.written)


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """values: (n, ...) in the order of the texts; truncated: how many the server says that it cut; served: the name
    of the model that answered, None where it is not named; usage: None where it is not told."""

    values: NDArray[Any]
    truncated: int = 0
    served: str | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Description:
    """A server, as it describes itself.

    name: model and precision, as far as they are named; model: what requests call the model; texts: most a request;
    concurrent_texts: how many it takes at a time before it refuses any, None where it does not say; revision: of the
    model, weights: their name on the hub or their folder, None where the server does not say.
    """

    name: str
    model: str
    texts: int
    concurrent_texts: int | None = None
    revision: str | None = None
    weights: str | None = None


class Dialect(ABC):
    """One wire format. Reading raises Unusable."""

    name: str
    """As it is spelt in a URL."""
    path: str
    """Where results are asked for."""
    most_texts: int
    """Most texts a request, as long as the server has said nothing else."""
    most_bytes: int | None = None
    """Most bytes of a request's texts, as JSON; None for no limit of note."""
    description_path: str | None = None
    """Where the server describes itself; None for one that does not, whose model must be named."""
    home: str | None = None
    """The base URL of a hosted service; None for what people run themselves."""
    prefix = ""
    """What the path of a base URL is where it has none."""
    honours_deadlines = False
    """Whether requests say for how long they are waited for, and a 504 that this time was over."""

    @property
    def paid(self) -> bool:
        """Whether each request costs money, so that none may be repeated that may have been carried out."""
        return self.home is not None

    @abstractmethod
    def request(self, model: str, context: str, texts: Sequence[str], seconds: float) -> Request:
        """Ask for the results of n texts. model: as the server's description calls it; context: what the texts are for,
        the query of a scorer; seconds: for how long the answer will be waited for."""

    @abstractmethod
    def read(self, body: bytes, count: int) -> Answer:
        """The results of `count` texts."""

    def describe(self, body: bytes, model: str | None) -> Description:
        """The server's own description. model: the one that is wanted, where that is configured."""
        raise Unusable("it does not describe itself")


class TextEmbeddingsInference(Dialect):
    """Text Embeddings Inference of Hugging Face. A request takes one permit for each text and is refused whole when
    there are too few; the server takes bodies of 2 MB.

    model_type, called: what its models must be, as it says and as we do.
    """

    name, description_path = "tei", "/info"
    most_texts, most_bytes = 32, 1_900_000
    model_type: str
    called: str

    def describe(self, body: bytes, model: str | None) -> Description:
        info = mapping(parsed(body))
        served = word(info, "model_id")
        if model not in (None, served):
            raise Unusable(f"it serves {served}, not {model}")
        kind = info.get("model_type")
        if isinstance(kind, dict) and kind and self.model_type not in kind:
            raise Unusable(f"{served} is no {self.called} but a model of type {', '.join(map(str, kind))}")
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
        )


def vllm_description(body: bytes, model: str | None, most_texts: int) -> Description:
    """As vLLM describes itself, whatever its models do."""
    card = chosen([card for card in cards(body) if not card.get("parent")], model)
    served, root = word(card, "id"), optional_word(card.get("root"))
    name = served if root in (None, served) else f"{served}={root}"  # what it was loaded from may be called otherwise
    return Description(
        full_name(name, None, None, card.get("max_model_len")), served, most_texts, weights=root or served
    )


def cards(body: bytes) -> list[dict[str, Any]]:
    """What an API like OpenAI's lists as its models."""
    return [mapping(card) for card in array(mapping(parsed(body)), "data")]


def chosen(cards: list[dict[str, Any]], model: str | None) -> dict[str, Any]:
    """The card of the wanted model, or of the only one."""
    served = [word(card, "id") for card in cards]
    if not served:
        raise Unusable("it serves no model of this kind")
    if model is not None and model not in served:
        raise Unusable(f"it serves {', '.join(served)}, not {model}")
    if model is None and len(served) > 1:
        raise Unusable(f"it serves several models, {', '.join(served)}: say which by ?model=NAME in its URL")
    return cards[0 if model is None else served.index(model)]


def by_index(results: Iterable[tuple[object, object]], count: int, noun: str) -> dict[int, object]:
    """Results by the index of their text, which is given with each; not all of the `count` need be there."""
    ordered = dict[int, object]()
    for index, result in results:
        if not is_count(index) or index >= count:
            raise Unusable(f"there is a {noun} for text {shown(index)}; the texts asked for are 0 to {count - 1}")
        if index in ordered:
            raise Unusable(f"there are two {noun}s for text {index}")
        ordered[index] = result
    return ordered


def full_name(model: str, revision: object, precision: object, length: object) -> str:
    """model@revision/precision/length, of which the latter three are left out where they are not known."""
    name = f"{model}@{revision[:12]}" if isinstance(revision, str) and revision else model
    return "/".join([name, *(str(part) for part in (precision, length) if part)])


def optional_word(value: object) -> str | None:
    """A name that may be missing."""
    return value if isinstance(value, str) and value else None


def parsed(body: bytes) -> Any:
    """JSON."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Unusable(f"the answer is not JSON ({error})") from error


def mapping(value: Any) -> dict[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise Unusable(f"there is {shown(value)} where an object should be")
    return value


def array(value: dict[str, Any], key: str) -> list[Any]:
    """The array at a key."""
    if not isinstance(value.get(key), list):
        raise Unusable(f"'{key}' is {shown(value.get(key))}, not an array")
    return list(value[key])


def word(value: dict[str, Any], key: str) -> str:
    """The name at a key."""
    if not isinstance(value.get(key), str) or not value[key]:
        raise Unusable(f"'{key}' is {shown(value.get(key))}, not a name")
    return str(value[key])


def limit(value: dict[str, Any], key: str, default: int) -> int:
    """A positive number, or the default."""
    number = value.get(key)
    return number if is_count(number) and number > 0 else default


def is_count(value: object) -> TypeGuard[int]:
    """Whether it is a whole number, 0 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def shown(value: object) -> str:
    """A value, briefly, for a message."""
    return "missing" if value is None else repr(value)[:60]
