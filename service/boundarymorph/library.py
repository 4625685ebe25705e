"""Run selections in the caller's process, with the request and the answer of `POST /select`."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from inspect import isawaitable, iscoroutinefunction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pybase64
from anyio.from_thread import start_blocking_portal
from numpy.typing import ArrayLike, NDArray
from pydantic import ValidationError

from boundarymorph.api.select_answers import RoundEvent, SelectResponse
from boundarymorph.api.select_response import event_of, response_of
from boundarymorph.api.select_schemas import SelectRequest
from boundarymorph.api.select_task import task_of
from boundarymorph.errors import DeadlineExceeded, InvalidInput, ModelUnavailable, missing_package
from boundarymorph.scoring.scorer import Scores, clip_rounding
from boundarymorph.selector import selector
from boundarymorph.selector.result import Progress
from boundarymorph.settings import Settings, mistakes

Text = str | Mapping[str, Any]
"""A text, or a document with the fields of one in `pool.documents`."""

EMBEDDED = "embedded"

_NOT_HERE = {
    "pool": "give the texts, and what belongs to them as 'embeddings', 'metadata' and 'features'",
    "calibration": "there are none here; leave it out, or ask a service",
}


class InvalidScores(InvalidInput):
    """Scores are not one number in [0, 1] for each text."""

    slug = "invalid-input"


class Selector:
    """Chooses the best k of many texts with at most `budget` calls of a scoring function.

    It keeps nothing between selections.
    """

    def __init__(self, score: Any, *, pairs: bool = False, settings: Settings | None = None, **defaults: Any) -> None:
        """Check the scorer and the defaults; no text is scored yet.

        Args:
            score: A function that takes (query, n texts), or with `pairs` a list of n (query, text), and returns n
                scores in [0, 1] or an awaitable of them. A function that is not a coroutine function is called in a
                thread. It may also be a cross-encoder of sentence-transformers or its name, a Ranker of FlashRank, or
                "embedded", which needs the extra `models`.
            pairs: Whether the function takes pairs.
            settings: Limits and defaults. None takes them from the environment.
            defaults: Default values of fields of a request.

        Raises:
            InvalidInput: If a package is missing.
        """
        self._settings = settings or Settings.load()
        arguments = {"pairs": pairs, "settings": self._settings, **defaults}
        self._again = partial(type(self), score, **arguments)
        name, window = score if isinstance(score, str) else None, None
        if score == EMBEDDED:
            score, name, window = _embedded()
        elif isinstance(score, str):
            score = _cross_encoder(score)
        if hasattr(score, "predict"):
            name = name or getattr(getattr(score, "config", None), "_name_or_path", None)
            window = getattr(score, "max_length", None)
            score, pairs = score.predict, True
        elif hasattr(score, "rerank"):
            score = partial(_by_flashrank, score)
        self._scorer = _Scorer(score, pairs, name or "function", window)
        self._defaults = defaults

    def __reduce__(self) -> tuple[object, ...]:
        """Make copies and pickles call the constructor with the same arguments."""
        return self._again, ()

    def select(self, query: str, texts: Iterable[Text], **options: Any) -> SelectResponse:
        """Return the answer of `POST /select`, with the texts. In a coroutine, call `aselect`.

        Args:
            query: The query that the texts should answer.
            texts: All candidates.
            options: The fields of a request that has a pool, with `embeddings`, (n, d) numbers, and `features` of the
                pool. `query_embedding` has (d,) numbers, and `metadata` n mappings.

        Raises:
            InvalidInput: For a request that the service refuses with 4xx.
            InvalidScores: For a wrong result of the function. Errors that the function raises pass through.
        """
        with start_blocking_portal() as portal:
            return portal.call(partial(self.aselect, query, texts, **options))

    def stream(self, query: str, texts: Iterable[Text], **options: Any) -> Iterator[RoundEvent | SelectResponse]:
        """Do as `select`, but yield the progress before each round, and finally the answer."""
        with start_blocking_portal() as portal:
            steps = self.astream(query, texts, **options)
            try:
                while (step := portal.call(anext, steps, None)) is not None:
                    yield step
            finally:
                portal.call(steps.aclose)

    async def aselect(self, query: str, texts: Iterable[Text], **options: Any) -> SelectResponse:
        """Do as `select`, on the event loop of the caller."""
        async with aclosing(self.astream(query, texts, **options)) as steps:
            async for step in steps:
                if isinstance(step, SelectResponse):
                    return step
        raise AssertionError("a selection ends with its answer")

    async def astream(
        self, query: str, texts: Iterable[Text], **options: Any
    ) -> AsyncGenerator[RoundEvent | SelectResponse, None]:
        """Do as `stream`, on the event loop of the caller."""
        arrival = time.monotonic()
        request = _request(query, texts, {"return_documents": True} | self._defaults | options)
        task = task_of(request, self._settings, arrival, window=self._scorer.max_length)
        explain = bool(request.explain)
        inner = selector.Selector(_NoIndexes(), self._scorer, trust=self._settings.scorer.trust)
        try:
            async with aclosing(inner.steps(task)) as steps:
                async for step in steps:
                    if isinstance(step, Progress):
                        yield event_of(step, explain=explain)
                    else:
                        yield response_of(step, explain=explain)
        finally:
            await inner.close()


def extend(
    query: str, texts: Iterable[Text], scores: ArrayLike | Mapping[int, float], **options: Any
) -> SelectResponse:
    """Return the best k of n texts by the scores of some of them, without a call.

    Args:
        query: The query that the texts should answer.
        texts: All candidates. Their order counts only with `ranked=True`: best first by the retriever.
        scores: Scores in [0, 1] of the first texts, or of texts by position.
        options: The options of `Selector.select`.

    Raises:
        InvalidInput: As `Selector.select` does, and for a position without a text.
        InvalidScores: If a score is not a number in [0, 1].
    """
    if given := [name for name in ("budget", "B") if options.get(name)]:
        raise InvalidInput(f"{given[0]}: extend makes no call; leave it out, or use Selector.select")
    documents = _documents(texts)
    if isinstance(scores, Mapping):
        positions, known = list(scores), np.asarray(list(scores.values()))
    else:
        known = np.asarray(scores)
        positions = list(range(known.size))
    if known.ndim != 1 or len(known) > len(documents):
        raise InvalidScores(
            f"scores: an array of the shape {known.shape} for {len(documents)} texts; give one for each of the first "
            "texts, or a mapping by position"
        )
    for position, score in zip(positions, _checked(known, len(known)).tolist(), strict=True):
        whole = isinstance(position, int | np.integer) and not isinstance(position, bool)
        if not (whole and 0 <= position < len(documents)):
            last = len(documents) - 1
            raise InvalidInput(f"scores: there is one for position {position!r}; positions are 0 to {last}")
        documents[position]["cross_encoder_score"] = score
    return Selector(_no_call).select(query, documents, **options | {"budget": 0})


def _no_call(query: str, texts: Sequence[str]) -> NoReturn:
    raise AssertionError("a budget of 0 has no call")


def _embedded() -> tuple[Callable[[str, Sequence[str]], NDArray[np.float64]], str, int]:
    """Return the scoring function of the embedded cross-encoder, its name, and its token limit.

    Raises:
        InvalidInput: If it is not installed.
    """
    try:
        from boundarymorph.scoring.scorer import OnnxCrossEncoder

        model = OnnxCrossEncoder.embedded()
    except (ModuleNotFoundError, ModelUnavailable):
        raise InvalidInput(missing_package("the embedded cross-encoder", "boundarymorph-models", "models")) from None
    return lambda query, texts: model.run(model.tokenize(query, texts)), model.name, model.max_length


def _cross_encoder(name: str) -> Any:
    """Return the cross-encoder of sentence-transformers with this name. Raises InvalidInput."""
    if get_close_matches(name.lower(), [EMBEDDED]) and not Path(name).exists():
        raise InvalidInput(f"there is no cross-encoder {name!r}; did you mean {EMBEDDED!r}?")
    try:
        return import_module("sentence_transformers").CrossEncoder(name)
    except ModuleNotFoundError as error:
        package = str(error.name).replace("_", "-")
        raise InvalidInput(f"the cross-encoder {name!r} needs {package}: pip install {package}") from None


def _by_flashrank(ranker: Any, query: str, texts: Sequence[str]) -> list[float]:
    """Return the scores of a FlashRank Ranker, which returns passages best first."""
    passages = [{"id": place, "text": text} for place, text in enumerate(texts)]
    found = ranker.rerank(SimpleNamespace(query=query, passages=passages))
    scores = {passage["id"]: passage.get("score", math.nan) for passage in found}
    return [float(scores.get(place, math.nan)) for place in range(len(texts))]


def _request(query: str, texts: Iterable[Text], options: dict[str, Any]) -> SelectRequest:
    """Return a checked request. Raises InvalidInput."""
    for name in _NOT_HERE:
        if options.get(name):
            raise InvalidInput(f"{name}: {_NOT_HERE[name]}")
    documents = _documents(texts)
    metadata = options.pop("metadata", None)
    if metadata is not None:
        metadata = _items(metadata, "metadata", "df.to_dict('records')")
        if len(metadata) != len(documents):
            raise InvalidInput(f"metadata: {len(metadata)} for {len(documents)} texts; give one for each")
        documents = [{**one, "metadata": dict(its)} for one, its in zip(documents, metadata, strict=True)]
    pool: dict[str, Any] = {"documents": documents}
    if (embeddings := options.pop("embeddings", None)) is not None:
        pool["embeddings"] = _block(embeddings)
    if (features := options.pop("features", None)) is not None:
        pool["features"] = features
    fields = {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()}
    if options.get("query_embedding") is not None:
        fields["query_embedding"] = np.asarray(options["query_embedding"]).tolist()
    try:
        return SelectRequest.model_validate({"query": query, "pool": pool, **fields})
    except ValidationError as error:
        raise InvalidInput(mistakes(error)) from None


def _documents(texts: Iterable[Text]) -> list[dict[str, Any]]:
    """Return the texts as new dictionaries of documents. Raises InvalidInput."""
    documents = []
    for place, text in enumerate(_items(texts, "texts", 'df["text"].tolist()')):
        if not isinstance(text, str | Mapping):
            kind = type(text).__name__
            raise InvalidInput(f"texts[{place}] is of the type {kind}; give a text, or a mapping with a 'text'")
        documents.append({"text": text} if isinstance(text, str) else dict(text))
    return documents


def _items(given: Any, name: str, of_table: str) -> list[Any]:
    """Return the items of a list.

    A single text, a mapping and a data frame are refused: iterating over the latter two gives names.

    Args:
        given: The value that the caller passed.
        name: Its name, for the message.
        of_table: The expression that gives such a list for a data frame.

    Raises:
        InvalidInput: For a value that is not a list.
    """
    kind = type(given).__name__
    if isinstance(given, str | bytes):
        raise InvalidInput(f"{name}: give a list of {name}, not a single one")
    if isinstance(given, Mapping):
        raise InvalidInput(f"{name}: a {kind} is read by its keys; give a list, such as list(mapping.values())")
    if hasattr(given, "columns"):
        raise InvalidInput(f"{name}: a {kind} is read by the names of its columns; give {of_table}")
    if not isinstance(given, Iterable):
        raise InvalidInput(f"{name}: give a list of {name}, not a {kind}")
    return list(given)


def _block(embeddings: ArrayLike) -> dict[str, Any]:
    """Return numbers as a `VectorBlock`. Raises InvalidInput."""
    try:
        vectors = np.ascontiguousarray(embeddings, dtype="<f4")
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"embeddings: not an array of numbers: {error}") from None
    return {"data": pybase64.b64encode(vectors.tobytes()).decode(), "shape": list(vectors.shape), "dtype": "float32"}


def _checked(values: ArrayLike, count: int) -> NDArray[np.float64]:
    """Return `count` scores as an array. Raises InvalidScores."""
    try:
        scores = np.asarray(values, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise InvalidScores(f"the scores are not an array of numbers: {error}") from None
    if len(scores) != count:
        raise InvalidScores(f"{len(scores)} scores for {count} texts; return one for each, in their order")
    scores = clip_rounding(scores)
    wrong = np.flatnonzero(~((scores >= 0) & (scores <= 1)))
    if wrong.size:
        score = float(scores[place := int(wrong[0])])
        failed, logit = "NaN means that the model failed", "apply a sigmoid to logits: 1 / (1 + exp(-score))"
        advice = failed if math.isnan(score) else logit
        raise InvalidScores(f"the score of text {place} is {score!r}, not in [0, 1]; {advice}")
    return scores


class _Scorer:
    """A `Scorer` that calls the caller's function."""

    takes_instruction = False

    def __init__(self, function: Callable[..., Any], pairs: bool, name: str, max_length: int | None) -> None:
        self._function, self._pairs, self.name, self.max_length = function, pairs, name, max_length

    async def check(self) -> None:
        """Do nothing: the first call shows whether the function works."""

    async def score(
        self,
        query: str,
        texts: Sequence[str],
        *,
        deadline: float | None = None,
        instruction: str | None = None,
        caller: str = "",
    ) -> Scores:
        given = ([(query, text) for text in texts],) if self._pairs else (query, list(texts))
        if iscoroutinefunction(self._function):
            values = self._function(*given)
        else:
            values = await asyncio.to_thread(self._called, *given)
        values = await _in_time(values, deadline) if isawaitable(values) else values
        return Scores(_checked(values, len(texts)))

    def _called(self, *given: Any) -> Any:
        try:
            return self._function(*given)
        except StopIteration as error:  # a future does not accept this error and would wait for ever
            raise RuntimeError("the function that scores raised StopIteration") from error

    async def close(self) -> None:
        """Do nothing: the function belongs to the caller."""


async def _in_time(values: Awaitable[Any], deadline: float | None) -> Any:
    """Await values until a time on `time.monotonic()`. Raises DeadlineExceeded."""
    try:
        async with asyncio.timeout(None if deadline is None else deadline - time.monotonic()) as limit:
            return await values
    except TimeoutError:
        if limit.expired():
            raise DeadlineExceeded("the function that scores did not return before the deadline") from None
        raise


class _NoIndexes:
    """A `Retriever` for a process that has neither indexes nor an encoder."""

    async def retrieve(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidInput("index: there are none here; give texts, or ask a service")

    documents = characters = retrieve

    async def embed_query(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidInput("query_embedding: there is no encoder here; give it with 'embeddings', or give neither")

    async def embed_documents(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidInput("embeddings: this selector has no encoder; give the embeddings of all texts, or of none")

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""
