"""Define the rerank routes of other services: a request is a selection from a pool."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import compress
from operator import or_
from typing import Any, Literal
from uuid import uuid4

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field

from boundarymorph import __version__
from boundarymorph.access.callers import share_of
from boundarymorph.access.limits import Access
from boundarymorph.api import handler, openapi, operations
from boundarymorph.api.dependencies import AccessOf, KeyOf, PartsOf, ReadyPartsOf, permitted_caller
from boundarymorph.api.handler import PreparedRequest
from boundarymorph.api.lifecycle import Parts
from boundarymorph.api.rerank.dialects import DIALECTS, PATHS, TEI, Dialect, RerankError, TeiError
from boundarymorph.api.rerank.ranking import (
    CHARACTERS_PER_TOKEN,
    Diagnostics,
    NoDocuments,
    RankedDocument,
    Ranking,
    RerankRequest,
    log_odds,
    no_effect_warnings,
    unknown_field_warnings,
)
from boundarymorph.api.schemas import AnswerWarning
from boundarymorph.api.select_response import passage_of, usage_of
from boundarymorph.api.select_task import (
    boosts_of,
    context_of,
    cut_of,
    grouping_of,
    instruction_of,
    is_human,
    rounds_of,
)
from boundarymorph.api.visit import Refusal, visit_of
from boundarymorph.errors import InvalidInput, TextTooLong
from boundarymorph.notices import Notice
from boundarymorph.reading import check_bound, quantity
from boundarymorph.retrieval.candidates import PoolSource
from boundarymorph.retrieval.document import Document
from boundarymorph.selection import Selection
from boundarymorph.selection.methods import BY_WORDS
from boundarymorph.selector.documents import Grouping, group_key
from boundarymorph.selector.result import SelectionResult
from boundarymorph.selector.task import Aim, Context, Relevance, SelectionTask, Spending
from boundarymorph.settings import Settings
from boundarymorph.telemetry import metrics

LEAVING_OUT = ("min_relevance", "distinct", "group_by")  # fields that ask for fewer results than documents
WARNINGS_HEADER = "X-BoundaryMORPH-Warnings"
BY_POLICY = "/p/{policy}"
WEAVIATE = "/weaviate"  # prefix of the routes that Weaviate's module calls
ALIASES = {"/reranking"}  # other paths of documented routes
REFUSED = (400, 401, 403, 404, 408, 413, 415, 422, 424, 429, 500, 502, 503, 504)
RERANKER: dict[str, dict[str, Any]] = {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request that was read.

    Attributes:
        request: The request with the defaults of its policy.
        texts: The texts of the documents.
        policy: The name of the policy in force.
        warnings: Warnings about fields that have no effect here.
        keeps_all: Whether the number of results stays the same. Documents that a policy would leave out then come last,
            with a score of 0.
    """

    request: RerankRequest
    texts: Sequence[str]
    policy: str
    warnings: Sequence[Notice]
    keeps_all: bool

    @property
    def objects(self) -> list[Mapping[str, Any]]:
        """The documents as objects, whose fields may name groups; empty for texts."""
        return [each if isinstance(each, dict) else {} for each in self.request.documents]


class ModelCard(BaseModel):
    """A name that a request may give as its `model`."""

    id: str = Field(description="The name.")
    object: Literal["model"] = Field("model", description="Always model.")
    created: int = Field(0, description="Always 0, as the time is unknown.")
    owned_by: Literal["boundarymorph"] = Field("boundarymorph", description="Always boundarymorph.")
    capabilities: list[str] = Field(["rerank"], description="Always rerank.")


class Models(BaseModel):
    """The cross-encoder and the policies, in the format of OpenAI's API."""

    object: Literal["list"] = Field("list", description="Always list.")
    data: list[ModelCard] = Field(description="The cross-encoder, and then the policies.")


class TeiInfo(BaseModel):
    """The model and its limits, which clients of TEI read before their first request."""

    model_id: str = Field(description="The cross-encoder, with everything that its scores depend on.")
    model_sha: str | None = Field(None, description="Part of model_id, if known.")
    model_dtype: str = Field("unknown", description="Part of model_id, if known.")
    model_type: dict[str, dict[str, Any]] = Field(description="Reranker, with its only label.")
    max_concurrent_requests: int = Field(description="The most requests that may run or wait.")
    max_input_length: int = Field(description="The most tokens of a query and a text together.")
    max_batch_tokens: int = Field(description="Tokens of a full batch of pairs.")
    max_batch_requests: int | None = Field(None, description="Always null, as there is no such limit.")
    max_client_batch_size: int = Field(description="The most texts in one request.")
    auto_truncate: bool = Field(True, description="Whether texts that are too long are cut.")
    tokenization_workers: int = Field(1, description="Always 1.")
    version: str = Field(__version__, description="The version of this service.")


class DialectRoute(APIRoute):
    """A route that writes errors in the first dialect of its path, or in the body's."""

    takes_any_parameter = True  # query parameters, such as Azure's api-version, have no effect

    @property
    def refusal(self) -> Refusal:
        """The function that returns status and body of a refusal."""
        path = self.path.removeprefix(BY_POLICY)
        return (TEI if path in ("/info", f"{WEAVIATE}/meta") else PATHS.get(path, DIALECTS)[0]).refusal


router = APIRouter(tags=["reranking"], route_class=DialectRoute)


async def rerank(request: Request, access: AccessOf, key: KeyOf, parts: ReadyPartsOf) -> Response:
    """Return all documents, best first, each with a score in [0, 1].

    The score is the cross-encoder's, or the expected score if the budget is smaller than the list. If the caller
    disconnects, the work ends.
    """
    return await handler.answer_request(request, access, parts.selector, partial(_prepared, request, access, parts))


def _prepared(request: Request, access: Access, parts: Parts, data: Any, arrival: float) -> PreparedRequest:
    """Read a request from the body `data`, and remember its dialect. Raises as `_read` does."""
    path: str = request.scope["route"].path.removeprefix(BY_POLICY)
    dialect = _dialect(data, path)
    visit_of(request).refusal = dialect.refusal
    asked, task = _read(request, access, dialect.flatten(data), dialect, arrival, parts)

    def answer(result: SelectionResult) -> tuple[bytes, dict[str, str]]:
        ranking = _ranking(result, asked, task, parts.scorer.name)
        if asked.request.returns_documents:
            task.context.memory.check_answer(sum(len(asked.texts[ranked.index]) for ranked in ranking.results))
        content = dialect.answer.model_validate(dialect.content(ranking)).model_dump_json(exclude_none=True)
        count, warnings = int(result.selection.scored.sum()), ranking.diagnostics.warnings
        metrics.rerank_documents.labels(path, "scored").inc(count)
        metrics.rerank_documents.labels(path, "inferred").inc(len(asked.texts) - count)
        if not warnings or dialect.takes_warnings:
            return content.encode(), {}
        return content.encode(), {WARNINGS_HEADER: json.dumps([each.model_dump() for each in warnings])}

    return PreparedRequest(task, answer)


@router.get(f"{BY_POLICY}{WEAVIATE}/meta", include_in_schema=False)
@router.get(f"{WEAVIATE}/meta", include_in_schema=False)
@router.get(f"{BY_POLICY}/info", include_in_schema=False)
@router.get(
    "/info",
    summary="Describe the model for clients of text-embeddings-inference",
    responses={status: {"model": TeiError} for status in (401, 403, 429, 503)},
)
async def info(access: AccessOf, key: KeyOf, parts: PartsOf) -> TeiInfo:
    """Return the cross-encoder and the limits of one request."""
    settings, scorer = access.settings, parts.scorer
    model = getattr(scorer, "model", None)  # only scorers in this process have a model
    longest = scorer.max_length or settings.max_length
    return TeiInfo(
        model_id=scorer.name,
        model_type=RERANKER,
        max_concurrent_requests=settings.limits.requests,
        max_input_length=longest,
        max_batch_tokens=longest if model is None else max(longest, model.batch_tokens),
        max_client_batch_size=settings.limits.pool,
    )


@router.get(f"{BY_POLICY}/v1/models", include_in_schema=False)
@router.get("/models", include_in_schema=False)
@router.get(
    "/v1/models",
    summary="List what `model` may name",
    responses={status: {"model": RerankError} for status in (401, 403, 429, 503)},
)
async def models(access: AccessOf, key: KeyOf, parts: PartsOf) -> Models:
    """Return the cross-encoder, which answers for any `model`, and the key's policies."""
    names = [parts.scorer.name, *access.policies.names(key)]
    return Models(data=[ModelCard(id=name) for name in names])


def _dialect(data: object, path: str) -> Dialect:
    """Return the dialect of the path whose list of documents the body has.

    Raises:
        InvalidInput: If the body is not an object, or belongs to another dialect, whose path the message names.
    """
    if not isinstance(data, dict):
        raise InvalidInput("the body is not a JSON object")
    for dialect in PATHS[path]:
        if dialect.flatten(data).get(dialect.documents) is not None:
            return dialect
    missing = f"there is no {' or '.join(repr(dialect.documents) for dialect in PATHS[path])}"
    for other in DIALECTS:
        if data.get(other.documents) is not None:
            raise InvalidInput(f"{missing}; a list of {other.documents!r} goes to {other.paths[0]}")
    return PATHS[path][0]  # its model reports the missing fields


def _read(
    request: Request,
    access: Access,
    data: Any,
    dialect: Dialect,
    arrival: float,
    parts: Parts,
) -> tuple[ParsedRequest, SelectionTask]:
    """Return a request with the body `data`, and its task.

    Raises:
        ValidationError: If the body does not fit the dialect's model.
        InvalidInput: If a value is malformed.
        LimitExceeded: If a value is beyond a limit.
    """
    caller = permitted_caller(request)
    policy = access.policies.resolve(caller.name, request.path_params.get("policy"), data.get("model"))
    applied = policy.applied(data, dialect.request, data.get(dialect.documents))
    wanted = dialect.request.model_validate(applied)
    ignored = unknown_field_warnings(data, dialect.request)
    ignored += no_effect_warnings("query parameters", sorted(request.query_params))
    instruction = instruction_of(wanted.instruction, access.settings.limits)
    if instruction and not parts.scorer.takes_instruction:
        said = "instruction had no effect, as the scorer takes none; put it into the query"
        ignored.append(Notice("no-effect", said))
        instruction = None
    whole = all(data.get(name) is None for name in LEAVING_OUT)
    asked = ParsedRequest(wanted, wanted.texts(), policy.name, ignored, whole)
    visit = visit_of(request)
    owner = Context(visit.caller, caller.tenant, memory=visit.memory_limits(access))
    context = context_of(owner, wanted.deadline_ms, wanted.on_failure, access.settings, arrival)
    return asked, _task(asked, access, context, instruction, dialect.documents, parts.scorer.max_length)


def _task(
    asked: ParsedRequest, access: Access, context: Context, instruction: str | None, field: str, window: int | None
) -> SelectionTask:
    """Return the task of ranking all documents.

    Args:
        asked: The request.
        access: The settings and the calibration of pools.
        context: The context of the task.
        instruction: The instruction for the scorer.
        field: The request's name for the documents, for messages.
        window: The tokens that the scorer reads; None if they are unknown.

    Raises:
        NoDocuments: If there are no documents.
        LimitExceeded: If a value is beyond a limit.
    """
    wanted, count, settings = asked.request, len(asked.texts), access.settings
    limits = settings.limits
    if not count:
        raise NoDocuments(f"{field}: the list is empty; give at least one")
    check_bound(field, count, limits.pool, "documents")
    for number, text in enumerate(asked.texts):
        check_bound(f"{field}.{number}", len(text), limits.text_characters, "characters")
    query = wanted.query[: limits.query_characters] if wanted.cuts_texts else wanted.query
    check_bound("query", len(query), limits.query_characters, "characters")
    documents = [
        Document(str(number), text, metadata=dict(metadata))
        for number, (text, metadata) in enumerate(zip(asked.texts, asked.objects, strict=True))
    ]
    cut = cut_of(documents, query, window, limits, asked=bool(wanted.passages)) if wanted.makes_passages else None
    long = cut is not None
    budget = _budget(wanted, count, settings) if long else min(count, _budget(wanted, count, settings))
    relevance = wanted.relevance or ("scorer" if _asked_budget(wanted, settings) is None else None)
    human = is_human(relevance, settings.method, settings)
    exhaustive = budget >= count and wanted.on_failure == "error" and not (human or long)  # all scores are computed
    k = wanted.k or (min(wanted.most_results or settings.k, count) if long else count)
    check_bound("budget", wanted.budget if isinstance(wanted.budget, int) else 0, limits.budget, "calls")
    check_bound("k", wanted.k or 0, limits.k, "documents")
    calibration = access.calibration if wanted.calibration is not False else None
    return SelectionTask(
        PoolSource(
            query,
            documents,
            words=settings.method in BY_WORDS,
            vectors=settings.vectors,
            ranked=True,  # documents mostly come in retrieval order
            without_vectors=exhaustive,
            cut=cut,
        ),
        Aim(min(k, count), distinct=grouping_of(wanted.distinct, wanted.most_results or count, settings)),
        Spending(
            budget,
            goal="scores" if exhaustive else "ranking",
            rounds=rounds_of(wanted.rounds, settings),
            tolerance=settings.auto_settle if wanted.budget == "auto" else None,
        ),
        Relevance(
            settings.method,
            human,
            calibration=calibration,
            shipped=wanted.calibration is not False,
            instruction=instruction,
            boosts=boosts_of(wanted.boost, {}),
        ),
        context=context,
    )


def _ranking(result: SelectionResult, asked: ParsedRequest, task: SelectionTask, model: str) -> Ranking:
    """Return the requested results with their warnings.

    Raises:
        TextTooLong: If the scorer cut a text, and the request does not allow that.
    """
    wanted, texts = asked.request, asked.texts
    if result.truncated and not wanted.cuts_texts:
        raise TextTooLong(
            f"{quantity(result.truncated, 'text is', 'texts are')} longer than the model reads; "
            "let them be truncated, or split them"
        )
    selection, count = result.selection, len(texts)
    ids, passages = [result.pool.ids[position] for position in selection.documents.tolist()], result.passages
    index = [int(passages.document_id(id)) for id in ids]
    best = {number: passage for number, id in zip(index, ids, strict=True) if (passage := passages.by_id.get(id))}
    read_so_far = ((number, result.documents.get(id)) for number, id in zip(index, ids, strict=True))
    spans = {number: result.spans_in(document) or () for number, document in read_so_far if document is not None}
    results = _chosen(selection, index, asked, task.aim.distinct)
    scored = [number for number, by_model in zip(index, selection.scored.tolist(), strict=True) if by_model]
    inferred = {ranked.index for ranked in results} - set(scored)
    read = sum(len(wanted.query) + len(best[number].text if number in best else texts[number]) for number in scored)
    warnings = [*result.warnings, *asked.warnings]
    if len(task.query) < len(wanted.query):
        said = f"of the query, the first {len(task.query):,} characters were read (limits.query_characters)"
        warnings.append(Notice("query-truncated", said))
    if wanted.budget is None and result.budget < count:
        said = (
            f"{result.budget} of the {count} documents were scored and the scores of the others are expected "
            "ones, by the settings (rerank.budget, limits.budget); 'budget' chooses another number"
        )
        warnings.append(Notice("budget-by-settings", said))
    if wanted.wants_spans and not result.spans:
        said = "relevant_spans has no effect: the scorer names none, or was not asked as its scores were known"
        warnings.append(Notice("no-effect", said))
    return Ranking(
        request=wanted,
        texts=texts,
        id=uuid4().hex,
        model=model,
        results=[
            replace(
                ranked,
                score=log_odds(ranked.score) if wanted.returns_log_odds else ranked.score,
                document=wanted.document(ranked.index) if wanted.returns_documents else None,
                passage=passage_of(best.get(ranked.index)),
                relevant_spans=wanted.chosen_spans(spans.get(ranked.index, ())) if wanted.wants_spans else None,
            )
            for ranked in results
        ],
        tokens=math.ceil(read / CHARACTERS_PER_TOKEN),
        diagnostics=Diagnostics(
            status=result.status.value,
            stop_reason=result.stop_reason.value,
            documents=count,
            budget=result.budget,
            cross_encoder_calls=result.calls,
            cached_scores=result.cached,
            reused_scores=result.reused,
            scorer_requests=result.scorer_requests,
            inferred=sorted(inferred),
            relevance=None if selection.value is None else dict(zip(index, selection.relevance.tolist(), strict=True)),
            expected_loss=result.outlook.loss,
            calibration=result.calibration,
            policy=asked.policy,
            timings_ms={stage: round(seconds * 1e3, 3) for stage, seconds in result.seconds.items()},
            language_model=usage_of(result.tokens),
            warnings=list(map(AnswerWarning.model_validate, warnings)),
        ),
    )


def _chosen(
    selection: Selection, index: Sequence[int], asked: ParsedRequest, grouping: Grouping | None
) -> list[RankedDocument]:
    """Return the requested results.

    `index` has the positions of the selected documents in the request.
    """
    wanted, returned = asked.request, asked.request.most_results or len(asked.texts)
    scores = selection.relevance if selection.value is None else selection.value
    there = selection.relevance >= (wanted.min_relevance or 0.0)
    results = [RankedDocument(*pair) for pair in compress(zip(index, scores.tolist(), strict=True), there.tolist())]
    results = results[:returned] if grouping is None else _distinct(results, asked, grouping, returned)
    if not asked.keeps_all:
        return results
    kept = {ranked.index for ranked in results}
    return [*results, *(RankedDocument(number, 0.0) for number in index if number not in kept)][:returned]


def _distinct(
    results: Sequence[RankedDocument], asked: ParsedRequest, grouping: Grouping, returned: int
) -> list[RankedDocument]:
    """Return the best results that the grouping allows, at most `returned` results or groups."""
    objects = asked.objects
    kept: list[RankedDocument] = []
    taken = Counter[object]()
    for ranked in results:
        if not grouping.counts_groups and len(kept) == returned:
            break
        document = Document("", asked.texts[ranked.index], metadata=objects[ranked.index])
        [value] = grouping.value(document) or [None]
        group: object = asked.texts[ranked.index] if grouping.path is None else ranked.index
        if value is not None:
            group = group_key(value)
        if taken[group] < grouping.at_most and (taken[group] or len(taken) < returned):
            taken[group] += 1
            kept.append(replace(ranked, group=value))
    return kept


def _asked_budget(request: RerankRequest, settings: Settings) -> int | float | str | None:
    """Return the budget of the request, its policy, or the settings; None scores all documents."""
    return settings.rerank.budget if request.budget is None else request.budget


def _budget(request: RerankRequest, count: int, settings: Settings) -> int:
    match _asked_budget(request, settings):
        case None:
            calls = count
        case "auto":
            calls = settings.auto_budget
        case float(share):
            calls = share_of(share, count)
        case int(calls):
            pass
    return min(calls, settings.limits.budget)


def _responses(dialects: Sequence[Dialect]) -> dict[int | str, dict[str, Any]]:
    """Return the responses of a route in the format of each of its dialects."""
    bodies = {200: reduce(or_, (dialect.answer for dialect in dialects))}
    errors = dict.fromkeys(REFUSED, reduce(or_, (dialect.error for dialect in dialects)))
    return {status: {"model": model} for status, model in (bodies | errors).items()}


for _prefix in ("", BY_POLICY):
    router.add_api_route(f"{_prefix}{WEAVIATE}/.well-known/ready", operations.readyz, include_in_schema=False)
    for _path, _dialects in PATHS.items():
        router.add_api_route(
            f"{_prefix}{_path}",
            rerank,
            methods=["POST"],
            summary=f"Rerank in the format of {', '.join(dialect.name for dialect in _dialects)}",
            openapi_extra=openapi.body(*(dialect.request for dialect in _dialects)),
            responses=_responses(_dialects),
            include_in_schema=not _prefix and _path not in ALIASES,
        )
