"""A retriever of your own, for `serve --retriever-url http://127.0.0.1:8090`: the whole protocol over a dict.

python retriever_over_a_dict.py      # needs fastapi, numpy, safetensors, uvicorn
boundarymorph retriever check http://127.0.0.1:8090 --index notes --query "a violin"
"""

import json
import zlib
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from safetensors.numpy import save

NOTES: dict[str, dict[str, Any]] = {
    "violin": {"id": "violin", "text": "A violin has four strings.", "title": None, "metadata": {"year": 1600}},
    "tram": {"id": "tram", "text": "Trams run every ten minutes.", "title": "Transport", "metadata": {"year": 1900}},
    "bread": {"id": "bread", "text": "Bread is baked at dawn.", "title": None, "metadata": {}},
}
INDEXES = {"notes": NOTES}
app = FastAPI()


def content(note: dict[str, Any]) -> str:
    return f"{note['title']}\n{note['text']}" if note["title"] else note["text"]


def encoded(texts: list[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Unit vectors: hashed words, in place of a model."""
    rows = np.zeros((len(texts), 64), np.float32)
    for row, text in zip(rows, texts, strict=True):
        for word in text.lower().split():
            row[zlib.crc32(word.strip(".").encode()) % 64] += 1
        row[0] += 0.01
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def problem(status: int, kind: str, detail: str) -> JSONResponse:
    return JSONResponse({"type": f"urn:boundarymorph:problem:{kind}", "detail": detail}, status)


def embeddings(texts: list[str]) -> Response:
    named = {"type": "application/vnd.boundarymorph.embeddings", "version": "4", "truncated": "0", "encoder": "words"}
    return Response(save({"vectors": encoded(texts)}, named))


@app.post("/retrieve")
async def retrieve(request: Request) -> Response:
    asked = await request.json()
    if asked["index"] not in INDEXES:
        return problem(404, "unknown-index", f"there is no index {asked['index']!r}")
    wanted: dict[str, Any] = asked.get("filter") or {}
    if any(isinstance(value, dict | list) for value in wanted.values()):
        return problem(422, "invalid-input", "filter: this retriever knows only equality")
    notes = [n for n in INDEXES[asked["index"]].values() if wanted.items() <= n["metadata"].items()]
    given = asked.get("query_embedding")
    query = encoded([asked["query"]])[0] if given is None else np.array(given, np.float32) / np.linalg.norm(given)
    vectors = encoded([content(note) for note in notes])
    scores = vectors.astype(np.float64) @ query.astype(np.float64)
    order = np.argsort(-scores, kind="stable")[: asked["depth"]]
    ids = [notes[row]["id"].encode() for row in order]
    tensors = {
        "vectors": vectors[order],
        "query": query.astype(np.float32),
        "scores": scores[order],
        "ids": np.frombuffer(b"".join(ids), np.uint8),
        "offsets": np.cumsum([0, *map(len, ids)]).astype(np.uint32),
    }
    said = [] if notes else ["no document passes the filter"]
    pool = {"type": "application/vnd.boundarymorph.pool", "version": "4", "source": "index"}
    return Response(save(tensors, {**pool, "warnings": json.dumps(said)}))


@app.post("/documents")
async def documents(asked: dict[str, Any]) -> Any:
    if asked["index"] not in INDEXES:
        return problem(404, "unknown-index", f"there is no index {asked['index']!r}")
    return {"documents": [NOTES[id] for id in asked["ids"] if id in NOTES]}


@app.post("/characters")
async def characters(asked: dict[str, Any]) -> Any:
    if asked["index"] not in INDEXES:
        return problem(404, "unknown-index", f"there is no index {asked['index']!r}")
    found = [NOTES.get(id) for id in asked["ids"]]
    return {"characters": [note and len(note["text"]) + len(note["title"] or "") for note in found]}


@app.post("/embed/query")
async def embed_query(asked: dict[str, str]) -> Response:
    return embeddings([asked["query"]])


@app.post("/embed/documents")
async def embed_documents(asked: dict[str, list[str]]) -> Response:
    return embeddings(asked["texts"])


@app.get("/readyz")
async def ready() -> dict[str, str]:
    return {"status": "ok"}


if __name__ == "__main__":
    uvicorn.run(app, port=8090)
