"""Find nearly all relevant records: you answer, and the service says when to stop.

pip install --find-links dist boundarymorph-client
python find_all.py records.jsonl "Drugs for urinary incontinence"

Each line of the file is an object with `id`, `text` and perhaps `title`. One with a `label` of 0 or 1 answers itself.
"""

import json
import sys
from pathlib import Path

from boundarymorph_client import BoundaryMorphError, Client

file, question = sys.argv[1:3]
records = [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]
pool = [{name: record[name] for name in ("id", "title", "text") if record.get(name)} for record in records]
by_id = {record["id"]: record for record in records}
judged: dict[str, float] = {}

with Client() as service:
    while True:
        try:
            found = service.select(
                question, pool=pool, known_scores=judged, budget=0, objective={"find": 0.95, "in": 0.9, "next": 25}
            )
        except BoundaryMorphError as error:
            sys.exit(f"error: {error}")
        recall = found.recall
        if judged and recall is not None:
            shares = f"{recall.expected:.0%} ({recall.low:.0%} to {recall.high:.0%})"
            print(f"{len(judged)} of {len(pool)} read, {len(found.documents)} relevant, believed to be {shares} of all")
        if not found.next:
            break
        for document in found.next:
            record = by_id[document.id]
            label = record.get("label")
            if label is None:
                label = input(f"{record.get('title') or record['text'][:200]}\nrelevant? y or n: ").startswith("y")
            judged[document.id] = float(label)
print(f"stopped: {found.stop_reason}")
