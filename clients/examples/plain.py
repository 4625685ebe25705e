"""Retrieval-augmented generation in plain Python.

pip install --find-links dist boundarymorph-client openai
python plain.py "How do I read a gzipped file?"
"""

import os
import sys

from openai import OpenAI

from boundarymorph_client import BoundaryMorphError, Client

question = " ".join(sys.argv[1:]) or "How do I read a gzipped file?"

try:
    with Client() as service:
        selection = service.select(question, index="python-docstrings", budget=20, k=5, return_documents=True)
except BoundaryMorphError as error:
    sys.exit(f"error: {error}")
if selection.answerable is not None and selection.answerable < 0.5:
    sys.exit("The answer is probably not in these documents.")

documents = "\n\n".join(f"[{document.id}] {document.text}" for document in selection.documents)
reply = OpenAI().chat.completions.create(
    model=os.environ.get("OPENAI_MODEL", "gpt-4o-mini"),
    messages=[
        {"role": "system", "content": f"Answer from these documents, and name those that you used.\n\n{documents}"},
        {"role": "user", "content": question},
    ],
)

print(reply.choices[0].message.content)
for document in selection.documents:
    print(f"{document.relevance:.3f}", document.id)
