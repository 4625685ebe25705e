"""Score with plain transformers: each pair alone, without padding, with the whole model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

SYSTEM = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
MXBAI_BEFORE = (
    "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\n"
)
MXBAI_AFTER = (
    "You are a search relevance expert who evaluates how well documents match search queries. For each "
    "query-document pair, carefully analyze the semantic relationship between them, then provide your binary "
    "relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:<|im_end|>\n<|im_start|>assistant\n"
)
WEB_SEARCH = "Given a web search query, retrieve relevant passages that answer the query"


def classifier_scores(folder: Path, query: str, texts: Sequence[str]) -> NDArray[np.float64]:
    """Return (n,) sigmoids of the one label, or the softmax of the second of two labels."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder)
    scores = []
    with torch.no_grad():
        for text in texts:
            features = tokenizer([query], [text], return_tensors="pt")
            logits = model(**features).logits[0].double()
            scores.append(torch.sigmoid(logits[0]) if len(logits) == 1 else torch.softmax(logits, 0)[1])
    return np.array([float(score) for score in scores])


def yes_against_no(
    folder: Path, query: str, texts: Sequence[str], instruction: str = WEB_SEARCH
) -> NDArray[np.float64]:
    """Return (n,) probabilities of yes against no, as the card of Qwen3-Reranker describes it."""
    logits, tokenizer = _next_tokens(folder, _prompts(query, texts, instruction))
    both = logits[:, [tokenizer.convert_tokens_to_ids("no"), tokenizer.convert_tokens_to_ids("yes")]]
    probabilities: NDArray[np.float64] = torch.softmax(both, dim=-1)[:, 1].numpy()
    return probabilities


def yes_logit(folder: Path, query: str, texts: Sequence[str]) -> NDArray[np.float64]:
    """Return (n,) sigmoids of a fifth of the logit of "Yes", with the prompt of zerank-2."""
    prompts = [
        f"<|im_start|>system\n{query}<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        for text in texts
    ]
    logits, tokenizer = _next_tokens(folder, prompts)
    scores: NDArray[np.float64] = torch.sigmoid(logits[:, tokenizer.convert_tokens_to_ids("Yes")] / 5).numpy()
    return scores


def one_against_zero(folder: Path, query: str, texts: Sequence[str]) -> NDArray[np.float64]:
    """Return (n,) probabilities of 1 against 0, with the prompt of mxbai-rerank-v2.

    Query, document, and task are tokenized separately.
    """
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    answers = tokenizer.convert_tokens_to_ids(["0", "1"])
    scores = []
    with torch.no_grad():
        for text in texts:
            parts = [MXBAI_BEFORE, f"query: {query}", "\n", f"document: {text}", "\n", MXBAI_AFTER]
            ids = [number for part in parts for number in tokenizer(part, add_special_tokens=False)["input_ids"]]
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1].double()
            scores.append(float(torch.softmax(logits[answers], 0)[1]))
    return np.array(scores)


def _prompts(query: str, texts: Sequence[str], instruction: str = WEB_SEARCH) -> list[str]:
    bodies = [f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {text}" for text in texts]
    return [f"{SYSTEM}{body}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n" for body in bodies]


def _next_tokens(folder: Path, prompts: Sequence[str]) -> tuple[torch.Tensor, Any]:
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    rows = []
    with torch.no_grad():
        for prompt in prompts:
            features = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
            rows.append(model(**features).logits[0, -1].double())
    return torch.stack(rows), tokenizer
