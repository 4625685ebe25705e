"""Infinity, another inference server, in its own environment, for comparisons with the service.

python -m load_tests.infinity build/infinity build/minilm --port 7997
"""

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from load_tests.processes import Server

REQUIREMENTS = (
    "infinity-emb[server,torch]==0.0.77",
    "torch==2.13.0",
    # The last that this infinity imports.
    "click==8.1.8",
    "optimum==1.27.0",
    "transformers==4.48.3",
    # infinity asks for numpy before 2; later ones of these do not.
    "numpy==1.26.4",
    "datasets==3.6.0",
    "pandas==2.3.3",
    "pyarrow==20.0.0",
    # Whatever else may change how fast a request is answered.
    "fastapi==0.163.2",
    "prometheus-fastapi-instrumentator==8.1.0",
    "sentence-transformers==3.4.1",
    "starlette==1.10.0",
    "tokenizers==0.21.4",
    "uvicorn==0.32.1",
)
# How the model is run, of what `infinity_emb v2 --help` offers.
RUN = ("--engine", "torch", "--dtype", "float32", "--no-bettertransformer", "--no-compile")
START_SECONDS = 300.0
STOP_SECONDS = 20.0
LOG = "server.log"
_STAMP = "installed.txt"


def environment(directory: Path) -> Path:
    """Return a virtual environment with the REQUIREMENTS in this folder; it is rebuilt only if they have changed."""
    stamp = directory / _STAMP
    wanted = "\n".join((sys.version, *REQUIREMENTS, ""))
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return directory
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(directory)], check=True)
    python = directory.absolute() / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
    stamp.write_text(wanted, encoding="utf-8")
    return directory


@contextmanager
def serving(
    environment: Path,
    model_folder: Path,
    port: int,
    *,
    batch_size: int = 32,
    threads: int | None = None,
    options: Sequence[str] = RUN,
) -> Iterator[Server]:
    """Start a server on loopback that reranks with the model, yield it, and stop it at the end.

    threads: of one forward pass, by default torch's number. options: for `infinity_emb v2`, instead of RUN. The output
    is in the environment's server.log.
    Raises RuntimeError if the port is taken or the server does not answer a first request in START_SECONDS.
    """
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise RuntimeError(f"port {port} is taken, so another server would be measured")
    home = environment.absolute()
    log = home / LOG
    with log.open("wb") as output:
        process = subprocess.Popen(
            _command(home, model_folder, port, batch_size, options),
            cwd=home,
            env=_variables(home, threads),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(process, url, log)
        yield Server(process, url)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def rerank(client: httpx.Client, query: str, texts: Sequence[str], *, raw: bool = False) -> list[float]:
    """Return scores in the order of the texts: sigmoids, or logits if raw. client: with the base URL of `serving`."""
    answer = client.post("/rerank", json={"query": query, "documents": list(texts), "raw_scores": raw})
    answer.raise_for_status()
    scores = {result["index"]: float(result["relevance_score"]) for result in answer.json()["results"]}
    return [scores[position] for position in range(len(texts))]


def _command(home: Path, model_folder: Path, port: int, batch_size: int, options: Sequence[str]) -> list[str]:
    return [
        str(home / "bin" / "infinity_emb"),
        "v2",
        *("--model-id", str(model_folder.absolute())),
        *("--served-model-name", model_folder.absolute().name),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--device", "cpu"),
        *("--batch-size", str(batch_size)),
        "--no-model-warmup",
        # Answers out of a cache would measure the cache.
        "--no-vector-disk-cache",
        "--no-trust-remote-code",
        *("--log-level", "warning"),
        *options,
    ]


def _variables(home: Path, threads: int | None) -> dict[str, str]:
    """Return the server's environment variables: nothing is downloaded or reported, and caches stay in the folder."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("INFINITY_")}
    variables |= {
        "DO_NOT_TRACK": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": str(home / "cache"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "1",
        "INFINITY_ANONYMOUS_USAGE_STATS": "0",
        "INFINITY_HOME": str(home / "cache"),
        # Threads that spin at a barrier would take cores from the threads that they wait for.
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_OFFLINE": "1",
    }
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        variables.pop(name, None)
        if threads is not None:
            variables[name] = str(threads)
    return variables


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Wait until the server has answered a request."""
    until = time.monotonic() + START_SECONDS
    with httpx.Client(base_url=url, timeout=START_SECONDS, trust_env=False) as client:
        while process.poll() is None and time.monotonic() < until:
            try:
                rerank(client, "ready", ["yes"])
            except httpx.HTTPError:
                time.sleep(0.2)
            else:
                return
    last = log.read_text(encoding="utf-8", errors="replace")[-2000:]
    raise RuntimeError(f"infinity has not started; {log} ends with:\n{last}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environment", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--port", type=int, default=7997)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    folder = environment(given.environment)
    with serving(folder, given.model, given.port, batch_size=given.batch_size, threads=given.threads) as server:
        print(f"serving {given.model} at {server.url}; Ctrl-C ends it")
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
