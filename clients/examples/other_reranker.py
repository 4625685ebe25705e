"""Rerank with a budget through Cohere's client, with chunks in and documents out.

pip install cohere
python other_reranker.py "How do I read a gzipped file?"
"""

import os
import sys

import cohere
import httpx

QUESTION = " ".join(sys.argv[1:]) or "How do I read a gzipped file?"
PAGES = {
    "gzip": ["The gzip module reads and writes files that are compressed.", "gzip.open opens one in text mode, too."],
    "zipfile": ["A ZipFile holds members, each of which can be read.", "ZipFile.write adds a file to the archive."],
    "calendar": ["TextCalendar prints a year.", "monthrange tells the days of a month.", "isleap tells a leap year."],
}
chunks = [{"text": chunk, "page": page} for page, texts in PAGES.items() for chunk in texts]

base_url = os.environ.get("BOUNDARYMORPH_URL", "http://127.0.0.1:8080").strip()
try:
    with cohere.ClientV2(os.environ.get("BOUNDARYMORPH_API_KEY", "none").strip(), base_url=base_url) as client:
        answer = client.rerank(
            model="default@0.5",  # score half of the chunks, and infer the scores of the others
            query=QUESTION,
            documents=chunks,
            top_n=2,
            request_options={"additional_body_parameters": {"group_by": "page"}},  # the best chunk of each of two pages
        )
except (cohere.core.ApiError, httpx.HTTPError) as error:
    sys.exit(f"error: {base_url}: {error}")
for result in answer.results:
    chunk = chunks[result.index]
    print(f"{result.relevance_score:.3f}", chunk["page"], "-", chunk["text"])
