"""Ask one question as several, with one budget, and leave out read documents in turn two.

pip install --find-links dist boundarymorph-client
python several_questions.py "How do I read a gzipped file?"
"""

import sys

from boundarymorph_client import BoundaryMorphError, Client, WeightedQuery

question = " ".join(sys.argv[1:]) or "How do I read a gzipped file?"
parts: list[str | WeightedQuery] = [  # a language model can expand a question like this
    question,
    {"query": "decompress bytes in memory", "weight": 0.8},
    {"query": "read the members of an archive", "weight": 0.5},
]

try:
    with Client() as service:
        read: list[str] = []
        for turn in (1, 2):
            found = service.select(parts, index="python-docstrings", budget=20, k=3, exclude_ids=read)
            print(f"turn {turn}: {found.usage.cross_encoder_calls} calls for {len(parts)} queries")
            for document in found.documents:
                print(f"{document.relevance:.3f}", document.id, "answers query", document.query)
            read += [document.id for document in found.documents]
except BoundaryMorphError as error:
    sys.exit(f"error: {error}")
