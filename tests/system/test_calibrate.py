"""Calibration from end to end, by processes over sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from tests.faults.scenario import DOCUMENTS, SUBJECTS, fill
from tests.system.service import Service, boundarymorph, retriever, service

QUERIES = [f"what is told of the {subject}" for subject in SUBJECTS]
RELEVANT = 15  # documents of each subject
NEW = "which tales are there of the violin"


def relevant(query: str, text: str) -> bool:
    return any(subject in query and subject in text for subject in SUBJECTS)


def found(running: Service, **options: object) -> dict[str, Any]:
    """The answer to a query that nobody has judged."""
    return running.select(query=NEW, index="tales", budget=5, k=RELEVANT, reuse=False, **options)


def calibrated(data: Path, *arguments: str, **environment: str) -> dict[str, Any]:
    done = boundarymorph("calibrate", "tales", *arguments, "--json", data=data, environment=environment)
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = orjson.loads(done.stdout[done.stdout.index("{\n") :])
    return made


def test_from_suggestions_to_calibrated_answers(tmp_path: Path) -> None:
    data, questions, pairs = tmp_path / "data", tmp_path / "questions.txt", tmp_path / "pairs.ndjson"
    questions.write_text("\n".join(QUERIES))
    with service(data) as running:
        fill(running)
        before = found(running)
        assert before["calibration"] is None

        wanted = ("--queries", str(questions), "--suggest", "160", "--budget", "20", "--out", str(pairs))
        assert "160 pairs" in boundarymorph("calibrate", "tales", *wanted, data=data).stdout
        suggested = [orjson.loads(line) for line in pairs.read_bytes().splitlines()]
        assert {pair["query"] for pair in suggested} == set(QUERIES)

        judged = [{**pair, "grade": 3 * relevant(pair["query"], pair["text"])} for pair in suggested]
        pairs.write_bytes(b"\n".join(map(orjson.dumps, judged)))
        made = calibrated(data, "--judgments", str(pairs))
        assert "people" in made["maps"]
        assert (made["queries"], made["judgments"]) == (len(QUERIES), len(judged))

        after = found(running)
        assert after["calibration"] == made["created"]
        ids, those_before = ({one["id"] for one in each["documents"]} for each in (after, before))
        assert ids == those_before  # in another order: an expected probability depends on the doubt as well
        scored = [document for document in after["documents"] if document["source"] == "cross_encoder"]
        assert scored and all(document["relevance"] != document["cross_encoder_score"] for document in scored)
        certain = found(running, min_relevance=0.5)
        assert all(document["relevance"] >= 0.5 for document in certain["documents"])
        assert 0 < len(certain["documents"]) <= RELEVANT


def test_a_calibration_made_through_a_gateway_names_the_retrievers_encoder(tmp_path: Path) -> None:
    """The command reads the settings of the gateway, which has neither indexes nor an encoder of its own."""
    pairs = [
        {"query": query, "document": d["id"], "grade": int(relevant(query, d["text"]))}
        for query in QUERIES
        for d in DOCUMENTS[::3]
    ]
    (tmp_path / "pairs.ndjson").write_bytes(b"\n".join(map(orjson.dumps, pairs)))
    with retriever(tmp_path / "data") as alone:
        fill(alone)
        judged = ("--judgments", str(tmp_path / "pairs.ndjson"))
        made = calibrated(tmp_path / "gateway", *judged, BOUNDARYMORPH_RETRIEVER__URL=f'["{alone.url}"]')
        assert made["encoder"] == alone.client.get("/indexes/tales").json()["encoder"]
