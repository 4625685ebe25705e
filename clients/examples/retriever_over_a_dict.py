"""Serve a retriever over a dict, for `serve --retriever-url http://127.0.0.1:8090`.

python retriever_over_a_dict.py      # needs fastapi, numpy, safetensors, uvicorn
"""

import json
import zlib
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from safetensors.numpy import save

TEXTS = {"violin": "A violin has four strings.", "tram": "Trams run every ten minutes.", "bread": "Bread is baked."}
YEARS = {"violin": {"year": 1600}, "tram": {"year": 1900}}
INDEXES: dict[str, dict[str, dict[str, Any]]] = {
    "notes": {id: {"id": id, "text": text, "title": None, "metadata": YEARS.get(id, {})} for id, text in TEXTS.items()}
}
app = FastAPI()


def encoded(texts: list[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return unit vectors: hashed words, in place of a model."""
    rows = np.full((len(texts), 64), 0.01, np.float32)
    for row, text in zip(rows, texts, strict=True):
        np.add.at(row, [zlib.crc32(word.strip(".").encode()) % 64 for word in text.lower().split()], 1)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


@app.post("/retrieve")
async def retrieve(request: Request) -> Response:
    asked = await request.json()
    wanted: dict[str, Any] = asked.get("filter") or {}
    if any(isinstance(value, dict | list) for value in wanted.values()):
        return problem(422, "invalid-input", "filter: this retriever knows only equality")
    notes = [note for note in INDEXES[asked["index"]].values() if wanted.items() <= note["metadata"].items()]
    given = asked.get("query_embedding")
    query = encoded([asked["query"]])[0] if given is None else np.array(given / np.linalg.norm(given), np.float32)
    vectors = encoded([note["text"] for note in notes])
    scores = vectors.astype(np.float64) @ query.astype(np.float64)
    order = np.argsort(-scores, kind="stable")[: asked["depth"]]
    ids = json.dumps([notes[row]["id"] for row in order]).encode()
    tensors = {"vectors": vectors[order], "query": query, "scores": scores[order]}
    tensors |= {"ids": np.frombuffer(ids, np.uint8)}
    nothing = {"slug": "no-document-passes-filter", "message": "no document passes the filter"}
    warnings = json.dumps([] if notes else [nothing])
    named = {"type": "application/vnd.boundarymorph.pool", "version": "6", "source": "index", "warnings": warnings}
    return Response(save(tensors, named))


@app.post("/documents")
async def documents(asked: dict[str, Any]) -> Any:
    notes = INDEXES[asked["index"]]
    return {"documents": [notes[id] for id in asked["ids"] if id in notes]}


@app.post("/characters")
async def characters(asked: dict[str, Any]) -> Any:
    notes = INDEXES[asked["index"]]
    return {"characters": [len(notes[id]["text"]) if id in notes else None for id in asked["ids"]]}


@app.post("/embed/query")
@app.post("/embed/documents")
async def embed(asked: dict[str, Any]) -> Response:
    vectors = encoded(asked.get("texts") or [asked["query"]])
    named = {"type": "application/vnd.boundarymorph.embeddings", "version": "6", "truncated": "0", "encoder": "words"}
    return Response(save({"vectors": vectors}, named))


@app.get("/readyz")
async def ready() -> dict[str, str]:
    return {"status": "ok"}


@app.exception_handler(KeyError)
async def unknown_index(_: Request, error: Exception) -> Response:
    return problem(404, "unknown-index", f"there is no index {error}")


def problem(status: int, kind: str, detail: str) -> Response:
    return JSONResponse({"type": f"urn:boundarymorph:problem:{kind}", "detail": detail}, status)


if __name__ == "__main__":
    uvicorn.run(app, port=8090)
