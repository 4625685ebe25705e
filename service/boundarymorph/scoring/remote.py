"""Call a scorer in other processes or on other machines: wire formats and addresses."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Literal, Self, cast, get_args

import numpy as np
from numpy.typing import NDArray

from boundarymorph.calibration.calibration import sigmoid
from boundarymorph.errors import InvalidConfiguration, ScorerFailed, ScorerUnavailable
from boundarymorph.remote import urls, wire
from boundarymorph.remote.balancer import Role
from boundarymorph.remote.model import RemoteModel
from boundarymorph.remote.urls import Endpoint, Spelling
from boundarymorph.remote.wire import Answer, Description, Format, MalformedAnswer, Request, Span, TextContext
from boundarymorph.scoring.chat import Chat
from boundarymorph.scoring.rerankers import KNOWN, Reranker
from boundarymorph.scoring.scorer import Scores, clip_rounding
from boundarymorph.settings import JudgeSettings
from boundarymorph.telemetry import metrics

Activation = Literal["sigmoid", "cosine", "none"]
QUESTION = (
    "Does this passage answer the query, or a part of it?"  # the question for decision models, before the passage
)
MOST_SPANS = 16  # most relevant parts of a text that we request and read
UNGRADED = 5  # texts in a call without any score that show that a model fails instead of declining
DEADLINE_SHARE = 0.95  # fraction of our own time limit, so that the scorer's timeout comes first
_ROLE = Role("scorer", ScorerUnavailable, ScorerFailed, "scored", "scores")
log = logging.getLogger(__name__)


class BoundaryMorph(Format):
    name, path, description_path = "boundarymorph", "/score", "/info"
    most_texts, honours_deadlines = 512, True

    def request(self, model: str, context: TextContext, texts: Sequence[str], seconds: float) -> Request:
        deadline = max(1, int(DEADLINE_SHARE * seconds * 1000))
        body = {"query": context.query, "texts": list(texts), "deadline_ms": deadline}
        return Request(self.path, _instructed(body, context))

    def read(self, body: bytes, count: int) -> Answer:
        answer = wire.mapping(wire.parse_json(body))
        scores = wire.array(answer, "scores")
        if len(scores) != count:
            raise MalformedAnswer(f"there are {len(scores)} scores for {count} texts")
        truncated = answer.get("truncated", 0)
        if not wire.is_count(truncated):
            raise MalformedAnswer(f"'truncated' is {wire.describe_value(truncated)}, not a count")
        values = _ordered(enumerate(scores), count, "apply the sigmoid in the scorer")
        return Answer(values, truncated, wire.word(answer, "model"))

    def describe(self, body: bytes, model: str | None) -> Description:
        info = wire.mapping(wire.parse_json(body))
        name = wire.word(info, "model")
        family, _, rest = name.partition("@")
        if model not in (None, name, family):
            raise MalformedAnswer(f"it serves {name}, not {model}")
        revision = rest.partition("/")[0] or name  # the name is complete either way
        length = wire.limit(info, "max_length", 0) or None
        instructed, texts = info.get("instructed") is True, wire.limit(info, "max_texts", self.most_texts)
        return Description(name, family, texts, revision=revision, length=length, instructed=instructed)


class RerankServer(Format):
    """A rerank server of another project or service.

    Attributes:
        texts: The field of the texts.
        results: The field of the results; None if the answer is their list.
        score: The field of a score.
        named: Whether requests have `model`.
        counted: Whether requests have `top_n`.
        instructed: Whether requests have an instruction.
        options: Further fields.
        characters: Most characters of a text, because the server rejects longer ones.
        advice: How to make the server give relevance scores.
        activation: The kind of its results, by the operator or the model; without it they must be in [0, 1].
    """

    texts, score = "documents", "relevance_score"
    results: str | None = "results"
    named, counted, instructed = True, False, False
    options: Mapping[str, object] = {}
    characters: int | None = None
    advice: str
    activation: Activation | None = None
    known: Reranker | None = None

    def activated(self, activation: Activation) -> Self:
        activated = copy(self)
        activated.activation = activation
        return activated

    def for_model(self, name: str | None) -> Self:
        """Return the wire format for a model by the table.

        A service hosts the model, or a proxy offers it under another prefix.
        """
        known = KNOWN.get(f"{self.name}:{str(name).rpartition('/')[2]}")
        if known is None:
            return self
        wire_format = copy(self)
        wire_format.known = known
        if known.together > 1:
            wire_format.most_texts, wire_format.in_one_pass = known.together, True
        wire_format.activation = _ACTIVATIONS.get(known.results)
        if known.spans:
            wire_format.options = {**self.options, "relevant_spans": {"mode": "enabled", "max_spans": MOST_SPANS}}
        return wire_format

    def configured(self, model: str) -> Description:
        described = super().configured(model)
        return described if self.known is None else replace(described, length=self.known.tokens)

    def request(self, model: str, context: TextContext, texts: Sequence[str], seconds: float) -> Request:
        body: dict[str, object] = {"model": model} if self.named else {}
        body |= {"query": context.query[: self.characters], self.texts: [text[: self.characters] for text in texts]}
        if self.counted:
            body["top_n"] = len(texts)
        if self.instructed:
            body = _instructed(body, context)
        cut = 0 if self.characters is None else sum(len(text) > self.characters for text in texts)
        return Request(self.path, {**body, **self.options}, cut)

    def read(self, body: bytes, count: int) -> Answer:
        answer = wire.parse_json(body)
        if self.results is not None:
            answer = wire.array(wire.mapping(answer), self.results)
        elif not isinstance(answer, list):
            raise MalformedAnswer(f"the answer is {wire.describe_value(answer)}, not an array")
        results = list(map(wire.mapping, answer))
        scores = ((result.get("index"), result.get(self.score)) for result in results)
        if self.activation == "sigmoid":
            return Answer(sigmoid(_numbers(scores, count)))
        if self.activation == "cosine":
            scores = ((index, _of_cosine(score)) for index, score in scores)
            return Answer(_ordered(scores, count, "leave activation=cosine off its URL"))
        hint = f"{self.advice}, or add ?activation=sigmoid or cosine to its URL if its scores are logits or cosines"
        values = _ordered(scores, count, hint if self.activation is None else self.advice)
        if self.known is None or not self.known.spans:
            return Answer(values)
        spans = {result["index"]: _spans(result.get("relevant_spans")) for result in results}
        return Answer(values, spans=[spans.get(place, ()) for place in range(count)])


class TextEmbeddingsInference(RerankServer, wire.TextEmbeddingsInference):
    path, texts, results, score, named = "/rerank", "texts", None, "score", False
    options: Mapping[str, object] = {"truncate": True, "raw_scores": False}
    model_type, called = "reranker", "reranker"
    advice = "let it honour raw_scores: false"


class VLLM(RerankServer):
    """vLLM's rerank route, which truncates texts.

    An instruction is for the chat template, if the model has one.
    """

    name, path, description_path = "vllm", "/v1/rerank", "/v1/models"
    most_texts, instructed = 512, True
    options: Mapping[str, object] = {"truncate_prompt_tokens": -1, "use_activation": True}
    advice = """serve the model without '"use_activation": false' in --pooler-config"""

    def describe(self, body: bytes, model: str | None) -> Description:
        return replace(wire.vllm_description(body, model, self.most_texts), instructed=True)


class Infinity(RerankServer):
    name, path, description_path = "infinity", "/rerank", "/models"
    most_texts, characters = 2048, 122_880
    options: Mapping[str, object] = {"raw_scores": False, "return_documents": False}
    advice = "update it to one that honours raw_scores: false"

    def describe(self, body: bytes, model: str | None) -> Description:
        able = ((card, card.get("capabilities")) for card in wire.cards(body))
        rerankers = [card for card, able_to in able if not isinstance(able_to, list) or "rerank" in able_to]
        card = wire.served_card(rerankers, model)
        served, revision = wire.word(card, "id"), card.get("revision")
        name = wire.full_name(served, revision, card.get("dtype"), None)
        return Description(name, served, self.most_texts, revision=wire.optional_word(revision), weights=served)


class Cohere(RerankServer):
    name, path, home, most_texts, counted = "cohere", "/v2/rerank", "https://api.cohere.com", 1000, True
    advice = "turn its normalisation of scores on"


class Jina(RerankServer):
    name, path, most_texts, counted = "jina", "/v1/rerank", 1000, True
    home: str | None = "https://api.jina.ai"
    options: Mapping[str, object] = {"return_documents": False}
    advice = "choose a model whose scores are relevance in [0, 1]"


class Voyage(RerankServer):
    name, path, home, most_texts, results = "voyage", "/v1/rerank", "https://api.voyageai.com", 1000, "data"
    options: Mapping[str, object] = {"return_documents": False}
    advice = "choose a model whose scores are relevance in [0, 1]"


class SGLang(RerankServer):
    """SGLang's rerank route. Decoders such as Qwen3-Reranker give the probability of a yes."""

    name, path, description_path = "sglang", "/v1/rerank", "/v1/models"
    most_texts, results, score = 512, None, "score"
    options: Mapping[str, object] = {"return_documents": False}
    advice = "choose a model that gives probabilities"

    def request(self, model: str, context: TextContext, texts: Sequence[str], seconds: float) -> Request:
        request = super().request(model, context, texts, seconds)
        said = {} if context.instruction is None else {"instruct": context.instruction}
        return replace(request, body=request.body | said)

    def describe(self, body: bytes, model: str | None) -> Description:
        return replace(wire.vllm_description(body, model, self.most_texts), instructed=True)


class Nim(RerankServer):
    """NVIDIA's NIM for reranking, which gives logits."""

    name, path, description_path, most_texts = "nim", "/v1/ranking", "/v1/models", 512
    results, score = "rankings", "logit"
    activation: Activation | None = "sigmoid"
    advice = "leave activation off its URL"

    def request(self, model: str, context: TextContext, texts: Sequence[str], seconds: float) -> Request:
        passages = [{"text": text} for text in texts]
        return Request(
            self.path, {"model": model, "query": {"text": context.query}, "passages": passages, "truncate": "END"}
        )

    def describe(self, body: bytes, model: str | None) -> Description:
        return wire.vllm_description(body, model, self.most_texts)


class LlamaCpp(Jina):
    """llama.cpp's server, which gives logits for most models.

    It refuses a text that is longer than its physical batch.
    """

    name, description_path, most_texts, home = "llamacpp", "/v1/models", 256, None
    advice = "choose a model that gives probabilities"

    def describe(self, body: bytes, model: str | None) -> Description:
        return wire.vllm_description(body, model, self.most_texts)


class SystemOne(Format):
    """A decision model, which answers questions about a state with the probability of a yes.

    The probabilities are calibrated. The form is TypeSafe's System One API (https://docs.typesafe.ai/api), as at
    llama.cpp, Ollama, Upstage, and Fireworks (read in November 2026). The state is the query, and each document is a
    question, so that its score does not depend on the others. Ollama takes 64 questions and 64 KiB.
    """

    name, path, home = "systemone", "/v1/systemone", "https://api.typesafe.ai"
    most_texts, most_bytes, in_one_pass = 30, 60_000, True
    characters = 8_000  # most characters of a document

    def request(self, model: str, context: TextContext, texts: Sequence[str], seconds: float) -> Request:
        asked = [f"{QUESTION}\n\n{text[: self.characters]}" for text in texts]
        questions = {str(place): {"type": "noul", "instructions": question} for place, question in enumerate(asked)}
        body: dict[str, object] = {"model": model, "state": {"query": context.query}, "questions": questions}
        return Request(self.path, body, sum(len(text) > self.characters for text in texts))

    def read(self, body: bytes, count: int) -> Answer:
        answers = wire.mapping(wire.mapping(wire.parse_json(body)).get("answers"))
        found = ((place, wire.mapping(answers.get(str(place), {})).get("noul")) for place in range(count))
        return Answer(_ordered(found, count, "a decision model answers with probabilities"))


class Decisions(SystemOne):
    """The form of `SystemOne` at another path, as at Perplexity, not OpenAI.

    It is described at https://docs.perplexity.ai/docs/decisions.
    """

    name, path, home = "decisions", "/v1/decisions", "https://api.perplexity.ai"


_ACTIVATIONS: Mapping[str, Activation] = {"logit": "sigmoid", "cosine": "cosine"}  # by the kind of results in the table
_RERANK_SERVERS = (TextEmbeddingsInference, VLLM, SGLang, Nim, Infinity, LlamaCpp, Cohere, Jina, Voyage)
_KINDS: tuple[type[Format], ...] = (*_RERANK_SERVERS, SystemOne, Decisions, Chat)
FOREIGN: tuple[Format, ...] = tuple(kind() for kind in _KINDS)


def _instructed(body: dict[str, object], context: TextContext) -> dict[str, object]:
    return body if context.instruction is None else body | {"instruction": context.instruction}


def _spans(found: object) -> list[Span]:
    """Return the relevant parts of a text without malformed ones, on which scores do not depend."""
    named = found[:MOST_SPANS] if isinstance(found, list) else []
    read = [(part.get("start"), part.get("end"), part.get("score")) for part in named if isinstance(part, dict)]
    return [
        Span(start, end, float(score))
        for start, end, score in read
        if wire.is_count(start) and wire.is_count(end) and isinstance(score, int | float)
        if start < end and 0 <= score <= 1
    ]


def _of_cosine(score: object) -> object:
    """Return the relevance of a cosine; `_numbers` refuses values that are not numbers."""
    return (1.0 + score) / 2.0 if isinstance(score, int | float) and not isinstance(score, bool) else score


def _ordered(scores: Iterable[tuple[object, object]], count: int, advice: str) -> NDArray[np.float64]:
    """Return (count,) relevance scores by their index, each given once."""
    values = clip_rounding(_numbers(scores, count))
    outside = values[(values < 0.0) | (values > 1.0)]
    if len(outside):
        raise MalformedAnswer(
            f"the score {outside[0]:g} is not a relevance in [0, 1] but a raw logit or a cosine: {advice}"
        )
    return values


def _numbers(scores: Iterable[tuple[object, object]], count: int) -> NDArray[np.float64]:
    """Return (count,) numbers by their index, each given once, with NaN for missing ones."""
    values = np.full(count, np.nan)
    for index, score in wire.by_index(scores, count, "score").items():
        if isinstance(score, bool) or not isinstance(score, int | float | None):
            raise MalformedAnswer(f"the score of text {index} is {wire.describe_value(score)}, not a number")
        values[index] = np.nan if score is None else score
    if np.isnan(values).all():
        raise MalformedAnswer(f"there is no score for any of {count} texts")
    return values


_SPELLING = Spelling("a scorer", {server.name: server for server in FOREIGN}, BoundaryMorph(), get_args(Activation))


def parse(url: str, judge: JudgeSettings | None = None) -> Endpoint:
    """Read `SCHEME://HOST:PORT/PREFIX?model=NAME&activation=sigmoid`.

    `http` and `https` are scorers of this service; `tei`, `vllm`, `sglang`, `nim`, `infinity` and `llamacpp` are
    servers of that kind over plain HTTP; `cohere`, `jina`, `voyage`, `systemone`, `decisions` and `openai` (a chat
    model that grades) are hosted services over TLS. `+http` or `+https` after one of these changes that. `activation`
    says that the results of other rerank servers are logits (`sigmoid`), cosines (`cosine`), or relevance in [0, 1]
    (`none`).

    Args:
        url: The address.
        judge: How a chat model is asked.

    Raises:
        InvalidConfiguration: If it is malformed; the message does not contain the password.
    """
    endpoint = urls.parse(url, _SPELLING)
    if isinstance(endpoint.format, RerankServer):
        endpoint = replace(endpoint, format=endpoint.format.for_model(endpoint.model))
    if isinstance(endpoint.format, Chat):
        endpoint = replace(endpoint, format=Chat(judge, at_home=endpoint.base == Chat.home))
    if endpoint.activation is None:
        return endpoint
    if not isinstance(endpoint.format, RerankServer):
        raise InvalidConfiguration(f"activation: {endpoint.format.name} gives relevance in [0, 1]; leave it out")
    return replace(endpoint, format=endpoint.format.activated(cast(Activation, endpoint.activation)))


class RemoteScorer(RemoteModel):
    """A `Scorer` over HTTP, behind one or more servers that serve the same model."""

    partial = True

    def __init__(self, endpoints: Sequence[Endpoint], **options: Any) -> None:
        super().__init__(endpoints, _ROLE, **options)
        self._declines = all(endpoint.format.declines for endpoint in endpoints)

    async def check(self) -> None:
        scores = await self.score("probe", ["probe"])
        if np.isnan(scores.values).any():
            raise scores.failure or ScorerFailed(f"{self.name} gave no score for a probe; the log says why")

    @property
    def takes_instruction(self) -> bool:
        """Whether a server says so; True while no server has described itself."""
        said = [description.instructed for description in self.descriptions]
        return any(said) or not said

    async def score(
        self,
        query: str,
        texts: Sequence[str],
        *,
        deadline: float | None = None,
        instruction: str | None = None,
        caller: str = "",
    ) -> Scores:
        self.check_open()
        if not texts:
            return Scores(np.empty(0))
        answer = await self.call(TextContext(query, instruction, caller), texts, deadline=deadline)
        failure, missing = answer.failure, int(np.isnan(answer.values).sum())
        if answer.usage is not None:
            metrics.judge_tokens.labels("read").inc(answer.usage.read)
            metrics.judge_tokens.labels("written").inc(answer.usage.written)
        if self._declines and missing == len(texts) >= UNGRADED:
            raise ScorerFailed(f"{self.name} gave no score for any of {missing} texts; the log says why")
        if self._declines and isinstance(failure, ScorerFailed):
            log.warning(
                "some documents got no score: %s", failure
            )  # a content filter may decline this text, and others may get a score
            failure = None
        if missing and failure is None and not self._declines:
            failure = ScorerFailed(f"{self.name} gave no score for {missing} of {len(texts)} texts")
        spans = {text: parts for text, parts in zip(texts, answer.spans, strict=True) if parts}
        return Scores(answer.values, answer.truncated, answer.served, failure, answer.usage, spans)
