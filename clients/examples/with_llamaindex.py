"""Retrieval-augmented generation with LlamaIndex.

pip install --find-links dist 'boundarymorph-client[llamaindex]' llama-index-llms-openai
python with_llamaindex.py "How do I read a gzipped file?"
"""

import os
import sys

from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.llms.openai import OpenAI

from boundarymorph_client import BoundaryMorphError
from boundarymorph_client.llamaindex import BoundaryMorphRetriever

question = " ".join(sys.argv[1:]) or "How do I read a gzipped file?"

model = OpenAI(
    model=os.environ.get("OPENAI_MODEL", "gpt-4o-mini"),
    api_base=os.environ.get("OPENAI_BASE_URL"),
)
retriever = BoundaryMorphRetriever("python-docstrings", budget=20, similarity_top_k=5)
try:
    response = RetrieverQueryEngine.from_args(retriever, llm=model).query(question)
except BoundaryMorphError as error:
    sys.exit(f"error: {error}")

print(response)
for node in response.source_nodes:
    print(f"{node.score:.3f}", node.node_id)
