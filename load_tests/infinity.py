"""Infinity, another inference server, in an environment of its own, for comparisons."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from load_tests.processes import Server, ready
from tests.compatibility.__main__ import Environment, install
from tests.ports import free_port

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
RUN = ("--engine", "torch", "--dtype", "float32", "--device", "cpu", "--no-bettertransformer", "--no-compile")
# Answers out of a cache would measure the cache.
OPTIONS = (*RUN, "--batch-size", "32", "--no-model-warmup", "--no-vector-disk-cache", "--no-trust-remote-code")
OFFLINE = dict.fromkeys(("DO_NOT_TRACK", "HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")


@contextmanager
def serving(model: Path) -> Iterator[Server]:
    """Run Infinity with a model, yield it when it is ready, and stop it at the end.

    Its output is in `server.log` in its environment, which is made anew only if the REQUIREMENTS have changed.
    """
    home, port = install(Environment("infinity-server", REQUIREMENTS), fresh=False).parents[1], free_port()
    command = [str(home / "bin" / "infinity_emb"), "v2", "--model-id", str(model.absolute()), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--log-level", "warning", *OPTIONS]
    # Threads that spin at a barrier would take cores from the threads that they wait for.
    variables = os.environ | OFFLINE | {"HF_HOME": str(home / "cache"), "OMP_WAIT_POLICY": "PASSIVE"}
    with (home / "server.log").open("wb") as log:
        started = subprocess.Popen(command, cwd=home, env=variables, stdout=log, stderr=subprocess.STDOUT)
    with ready(started, port, "health") as server:
        yield server
