"""Retrieval-augmented generation with Haystack.

pip install --find-links dist 'boundarymorph-client[haystack]'
python with_haystack.py "How do I read a gzipped file?"
"""

import os
import sys

from haystack import Pipeline
from haystack.components.builders import ChatPromptBuilder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.core.errors import PipelineRuntimeError
from haystack.dataclasses import ChatMessage

from boundarymorph_client.haystack import BoundaryMorphRetriever

question = " ".join(sys.argv[1:]) or "How do I read a gzipped file?"
template = """Answer from these documents, and name those that you used.
{% for document in documents %}
[{{ document.id }}] {{ document.content }}
{% endfor %}"""

pipeline = Pipeline()
pipeline.add_component("retriever", BoundaryMorphRetriever("python-docstrings", budget=20, top_k=5))
pipeline.add_component(
    "prompt",
    ChatPromptBuilder(
        [ChatMessage.from_system(template), ChatMessage.from_user("{{ question }}")], required_variables="*"
    ),
)
pipeline.add_component("model", OpenAIChatGenerator(model=os.environ.get("OPENAI_MODEL", "gpt-4o-mini")))
pipeline.connect("retriever.documents", "prompt.documents")
pipeline.connect("prompt.prompt", "model.messages")

inputs = {"retriever": {"query": question}, "prompt": {"question": question}}
try:
    result = pipeline.run(inputs, include_outputs_from={"retriever"})
except PipelineRuntimeError as error:
    sys.exit(f"error: {error.__cause__ or error}")
print(result["model"]["replies"][0].text)
for document in result["retriever"]["documents"]:
    print(f"{document.score:.3f}", document.id)
