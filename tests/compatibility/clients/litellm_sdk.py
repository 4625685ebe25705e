"""LiteLLM, as a library and as a proxy, with each of its providers whose wire format is served."""

import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is fetched

import httpx
import litellm
from litellm import exceptions

from tests.compatibility.check import DOCUMENTS, QUERY, TOO_MANY, Servers, check, main, raised, ranking, same

PACKAGE = "litellm"
PROXY = "litellm[proxy]"
START_SECONDS = 300.0
BASES = {  # by provider, where its API is under the service's URL
    "cohere": "",
    "jina_ai": "",
    "hosted_vllm": "",
    "huggingface": "",
    "infinity": "/infinity",
    "nvidia_nim/ranking": "",
    "voyage": "/voyage/v1/rerank",
}
ENDPOINTS = {
    "cohere": "POST /v1/rerank",
    "jina_ai": "POST /v1/rerank",
    "hosted_vllm": "POST /rerank",
    "huggingface": "POST /rerank",
    "infinity": "POST /infinity/rerank",
    "nvidia_nim/ranking": "POST /v1/ranking",
    "voyage": "POST /voyage/v1/rerank",
}


def rerank(provider: str, servers: Servers, url: str | None = None, documents: Any = DOCUMENTS, **options: Any) -> Any:
    given = {"query": QUERY, "api_key": servers.key, "num_retries": 0, **options}
    base = f"{url or servers.whole}{BASES[provider]}"
    return litellm.rerank(model=f"{provider}/any", documents=documents, api_base=base, **given)


def found(results: Any, provider: str = "") -> list[tuple[int, float]]:
    scores = [(result["index"], result["relevance_score"]) for result in results]
    return [(i, 1 / (1 + math.exp(-score))) for i, score in scores] if "nim" in provider else scores


def ranks(provider: str, servers: Servers) -> None:
    expected = ranking(servers)
    same(found(rerank(provider, servers).results, provider), expected)
    answer = rerank(provider, servers, top_n=3, return_documents=True)
    same(found(answer.results, provider), expected[:3])
    for result in answer.results:
        assert result["document"]["text"] == DOCUMENTS[result["index"]]


def refusals(provider: str, servers: Servers) -> None:
    raised(Exception, lambda: rerank(provider, servers, documents=TOO_MANY), "limit of 50", ": 51")
    raised(Exception, lambda: rerank(provider, servers, api_key="wrong"), "key")
    raised(Exception, lambda: rerank(provider, servers, servers.away), "no scorer")
    raised(Exception, lambda: rerank(provider, servers, servers.late), "deadline")


for _provider, _endpoint in ENDPOINTS.items():
    check(PACKAGE, _endpoint, f"{_provider}/: all, top_n, texts")(partial(ranks, _provider))
    _what = f"{_provider}/: errors"
    check(PACKAGE, _endpoint, _what)(partial(refusals, _provider))


@check(PACKAGE, "POST /v2/rerank", "cohere/ with max_tokens_per_doc, for which LiteLLM takes version 2")
def version_2(servers: Servers) -> None:
    answer = rerank("cohere", servers, max_tokens_per_doc=5)
    same(found(answer.results), ranking(servers, [document[:20] for document in DOCUMENTS]))


@check(PACKAGE, "POST /v1/rerank", "errors are LiteLLM's exceptions for their status")
def exceptions_by_status(servers: Servers) -> None:
    raised(exceptions.BadRequestError, lambda: rerank("cohere", servers, documents=TOO_MANY), "50 documents: 51")
    raised(exceptions.AuthenticationError, lambda: rerank("cohere", servers, api_key="wrong"))


@check(PACKAGE, "POST /v1/rerank", "cohere/, jina_ai/, voyage/: a cost, by the price that the operator gives a model")
def costs(servers: Servers) -> None:
    for provider, price in (
        ("cohere", {"input_cost_per_query": 0.002}),
        ("jina_ai", {"input_cost_per_token": 1e-6}),
        ("voyage", {"input_cost_per_token": 1e-6}),
    ):
        litellm.register_model({f"{provider}/any": {"mode": "rerank", "litellm_provider": provider, **price}})
        cost = litellm.completion_cost(rerank(provider, servers), model=f"{provider}/any", call_type="rerank")
        assert cost > 0, (provider, cost)


@contextmanager
def proxy(servers: Servers, directory: Path) -> Iterator[httpx.Client]:
    """A LiteLLM proxy in front of the services, and a client of it."""
    lines = ["model_list:"]
    for name, provider, url in (
        ("reranker", "cohere", servers.whole),
        ("tei", "huggingface", servers.whole),
        ("away", "cohere", servers.away),
        ("late", "cohere", servers.late),
    ):
        parameters = f"{{model: {provider}/any, api_base: '{url}', api_key: '{servers.key}'}}"
        lines.append(f"  - {{model_name: {name}, litellm_params: {parameters}}}")
    lines += ["general_settings: {master_key: sk-proxy}", "router_settings: {num_retries: 0}"]
    config = directory / "config.yaml"
    config.write_text("\n".join(lines))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = str(Path(sys.executable).parent / "litellm")
    command = [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
    log = directory / "proxy.log"
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output, cwd=directory) as process:
        headers = {"Authorization": "Bearer sk-proxy"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60, trust_env=False) as client:
            try:
                _until_alive(client, process, log)
                yield client
            finally:
                process.terminate()


def _until_alive(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-2000:]
        try:
            if client.get("/health/liveliness").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)


@check(
    PROXY,
    "POST /v1/rerank, /rerank",
    "the proxy in front of us: its /rerank, /v1/rerank and /v2/rerank; errors keep their status",
)
def through_the_proxy(servers: Servers) -> None:
    expected = ranking(servers)
    with tempfile.TemporaryDirectory() as directory, proxy(servers, Path(directory)) as client:
        for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
            for model in ("reranker", "tei"):
                body = {"model": model, "query": QUERY, "documents": DOCUMENTS, "top_n": 3}
                answer = client.post(path, json=body)
                assert answer.is_success, answer.text
                same(found(answer.json()["results"]), expected[:3])
        for model, documents, status in (
            ("reranker", TOO_MANY, 400),
            ("away", DOCUMENTS, 503),
            ("late", DOCUMENTS, 504),
        ):
            answer = client.post("/rerank", json={"model": model, "query": QUERY, "documents": documents})
            assert answer.status_code == status, (model, answer.status_code, answer.text)


if __name__ == "__main__":
    main()
