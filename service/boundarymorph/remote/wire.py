"""The wire formats of servers: what is asked, and how an answer is read and checked.

The functions read an answer's parts; they raise Unusable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

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


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """values: (n, ...) in the order of the texts; truncated: how many the server says that it cut; served: the name
    of the model that answered, None where it is not told."""

    values: NDArray[Any]
    truncated: int = 0
    served: str | None = None


@dataclass(frozen=True, slots=True)
class Description:
    """A server, as it describes itself.

    name: model and precision, as far as they are told; model: what requests call the model; texts: most a request;
    concurrent_texts: how many it takes at a time before it refuses any, None where that is not told; revision: of the
    model, weights: their name on the hub or their folder, None where the server does not tell them.
    """

    name: str
    model: str
    texts: int
    concurrent_texts: int | None = None
    revision: str | None = None
    weights: str | None = None


class Dialect(Protocol):
    """One wire format. Reading raises Unusable."""

    @property
    def name(self) -> str:
        """As it is spelt in a URL."""

    @property
    def path(self) -> str:
        """Where results are asked for."""

    @property
    def description_path(self) -> str | None:
        """Where the server describes itself; None for one that does not."""

    @property
    def home(self) -> str | None:
        """The base URL of a hosted service; None for what people run themselves."""

    @property
    def paid(self) -> bool:
        """Whether each request costs money, so that none may be repeated that may have been carried out."""

    @property
    def needs_model(self) -> bool:
        """Whether a request must name the model."""

    @property
    def honours_deadlines(self) -> bool:
        """Whether requests say for how long they are waited for, and a 504 that this time was over."""

    @property
    def most_texts(self) -> int:
        """Most texts a request, as long as the server has told nothing else."""

    @property
    def most_bytes(self) -> int | None:
        """Most bytes of a request's texts, as JSON; None for no limit of note."""

    def request(self, model: str, context: str, texts: Sequence[str], seconds: float) -> Request:
        """Ask for the results of n texts. model: as the server's description calls it; context: what the texts are for,
        the query of a scorer; seconds: for how long the answer will be waited for."""

    def read(self, body: bytes, count: int) -> Answer:
        """The results of `count` texts."""

    def describe(self, body: bytes, model: str | None) -> Description:
        """The server's own description. model: the one that is wanted, where that is configured."""


def full_name(model: str, revision: object, precision: object, length: object) -> str:
    """model@revision/precision/length, of which the latter three are left out where they are not told."""
    name = f"{model}@{revision[:12]}" if isinstance(revision, str) and revision else model
    return "/".join([name, *(str(part) for part in (precision, length) if part)])


def rooted(card: dict[str, Any]) -> str:
    """A model of vLLM: as it is served, and what it was loaded from where that is called otherwise."""
    served, root = word(card, "id"), told(card.get("root"))
    return served if root in (None, served) else f"{served}={root}"


def told(value: object) -> str | None:
    """A word that a server may tell or not."""
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
    told = value.get(key)
    return told if is_count(told) and told > 0 else default


def is_count(value: object) -> TypeGuard[int]:
    """Whether it is a whole number, 0 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def shown(value: object) -> str:
    """A value, briefly, for a message."""
    return "missing" if value is None else repr(value)[:60]
