"""A selection in the words of LLM observability: OpenTelemetry's generative-AI conventions and OpenInference's."""

from __future__ import annotations

from typing import Any

from boundarymorph.selector.result import SelectionResult
from boundarymorph.selector.task import SelectionTask

SHOWN = 20  # documents in a span
CHARACTERS = 1_000  # of a text in a span


def attributes(result: SelectionResult, task: SelectionTask, model: str | None, *, texts: bool) -> dict[str, Any]:
    """Return the attributes of a selection's span. model: the scorer's. texts: with the query, and the ids and texts of
    documents."""
    found: dict[str, Any] = {
        "openinference.span.kind": "RERANKER",
        "gen_ai.operation.name": "retrieval",
        "gen_ai.provider.name": "boundarymorph",
        "boundarymorph.pool_size": len(result.pool),
        "boundarymorph.budget": task.budget,
        "boundarymorph.cross_encoder_calls": result.calls,
        "boundarymorph.cached_scores": result.cached,
        "boundarymorph.reused_scores": result.reused,
        "boundarymorph.rounds": result.rounds,
        "boundarymorph.status": result.status.value,
        "boundarymorph.stop_reason": result.stop_reason.value,
        "boundarymorph.expected_loss": result.outlook.loss,
    }
    if model is not None:
        found |= {"gen_ai.request.model": model, "reranker.model_name": model}
    if task.k is not None:
        found["reranker.top_k"] = task.k
    if result.bill is not None:
        found |= {
            "gen_ai.usage.input_tokens": result.bill.usage.read,
            "gen_ai.usage.output_tokens": result.bill.usage.written,
            "llm.cost.total": result.bill.spent.cost,
        }
    if texts:
        query = task.query[:CHARACTERS]
        found |= {"reranker.query": query, "gen_ai.retrieval.query.text": query, "input.value": query}
    chosen = result.selection.documents[:SHOWN].tolist()
    worth = result.selection.relevance[:SHOWN].tolist()
    for place, (position, relevance) in enumerate(zip(chosen, worth, strict=True)):
        found[f"reranker.output_documents.{place}.document.score"] = relevance
        if texts:
            found |= _document(result, f"reranker.output_documents.{place}.document", position)
    for position in range(min(SHOWN, len(result.pool)) if texts else 0):
        found |= _document(result, f"reranker.input_documents.{position}.document", position)
    return found


def _document(result: SelectionResult, name: str, position: int) -> dict[str, Any]:
    """Return the id of a document and, as far as it was read, the beginning of its text."""
    id = result.pool.ids[position]
    document = result.documents.get(id)
    content = {} if document is None else {f"{name}.content": document.content[:CHARACTERS]}
    return {f"{name}.id": id, **content}
