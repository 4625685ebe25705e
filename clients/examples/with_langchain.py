"""Retrieval-augmented generation with LangChain.

pip install --find-links dist 'boundarymorph-client[langchain]' langchain-openai
python with_langchain.py "How do I read a gzipped file?"
"""

import os
import sys

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableParallel, RunnablePassthrough
from langchain_openai import ChatOpenAI

from boundarymorph_client import BoundaryMorphError
from boundarymorph_client.langchain import BoundaryMorphRetriever

question = " ".join(sys.argv[1:]) or "How do I read a gzipped file?"


def joined(found: dict[str, list[Document]]) -> str:
    return "\n\n".join(f"[{document.id}] {document.page_content}" for document in found["documents"])


prompt = ChatPromptTemplate.from_messages(
    [
        ("system", "Answer from these documents, and name those that you used.\n\n{context}"),
        ("user", "{question}"),
    ]
)
model = ChatOpenAI(model=os.environ.get("OPENAI_MODEL", "gpt-4o-mini"))
retriever = BoundaryMorphRetriever(index="python-docstrings", budget=20, k=5)
answering = RunnablePassthrough.assign(context=joined) | prompt | model | StrOutputParser()
chain = RunnableParallel(documents=retriever, question=RunnablePassthrough()).assign(answer=answering)

try:
    result = chain.invoke(question)
except BoundaryMorphError as error:
    sys.exit(f"error: {error}")
print(result["answer"])
for document in result["documents"]:
    print(f"{document.metadata['relevance_score']:.3f}", document.id)
