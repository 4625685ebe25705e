"""Build the images for CPUs, run the three roles from them, and check what docs/deployment.md promises of them.

    python -m tests.deploy.images                              # in `buildah unshare`, unless you are root
    python -m tests.deploy.images --data data --build-option=--pull-never --build-option=--volume=...

The images for GPUs are not built: what they install is resolved. The report is in build/images.md.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import orjson

from boundarymorph.access import callers
from load_tests import answers
from load_tests.recorded_routes import ONE_PROCESS, STEADY, Scene
from load_tests.recorded_selections import INDEX, selections
from tests.deploy.buildah import Image, Process, build
from tests.deploy.dockerfile import DOCKERFILE, TARGETS, requirements, stages
from tests.patience import until
from tests.system.service import copied

ROLES = ("gateway", "retriever-cpu", "scorer-cpu")
GATEWAY_BYTES = 400e6
ADDED_BYTES = 270e6  # of them, beside the base
UID = 10001
PORTS = 18080  # and the two after it, so that a service on this machine is not in the way
OWN = re.compile(
    r"/(opt/boundarymorph|weights)(/.*)?|/(data|cache|etc/boundarymorph)|/usr/local/bin/healthcheck\.py"
)  # what the images add to their base
SAME = re.compile("(select|pool|queries|stream)/")  # names of requests that are the same for one process and three
RESULT = Path("build/images.md")


@dataclass(frozen=True)
class Images:
    """The base and the images by target, a folder and a key for their processes, and the demo's data."""

    base: Image
    built: Mapping[str, Image]
    folder: Path
    data: Path
    secret: str
    key: str

    def empty(self) -> Path:
        """A folder for /data."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        os.chown(folder, UID, UID)
        return folder

    @contextmanager
    def role(self, target: str, data: Path, **env: str) -> Iterator[Process]:
        """A process of an image, once it is healthy."""
        env = {"BOUNDARYMORPH_PORT": str(PORTS + ROLES.index(target)), "BOUNDARYMORPH_KEYS": self.key, **env}
        with self.built[target].running(self.folder / f"{target}.log", data, env) as process:
            process.await_health(data)
            yield process

    @contextmanager
    def service(self, **env: str) -> Iterator[dict[str, Process]]:
        """All three roles, over a copy of the demo's data that the images' user may write to."""
        data = copied(self.data, self.folder)
        for path in (data, *data.rglob("*")):
            os.chown(path, UID, UID)
        with (
            self.role("scorer-cpu", self.empty(), **env) as scorer,
            self.role("retriever-cpu", data, **env) as retriever,
        ):
            behind = {
                "BOUNDARYMORPH_SCORER__URL": orjson.dumps([scorer.url]).decode(),
                "BOUNDARYMORPH_SCORER__API_KEY": self.secret,
                "BOUNDARYMORPH_RETRIEVER__URL": orjson.dumps([retriever.url]).decode(),
                "BOUNDARYMORPH_RETRIEVER__API_KEY": self.secret,
                "BOUNDARYMORPH_GRACE_SECONDS": "120",
            }
            with self.role("gateway", self.empty(), **env, **behind) as gateway:
                yield {"scorer-cpu": scorer, "retriever-cpu": retriever, "gateway": gateway}

    def client(self, process: Process) -> httpx.Client:
        return httpx.Client(base_url=process.url, timeout=300, headers={"Authorization": f"Bearer {self.secret}"})


def configuration(images: Images) -> str:
    for target, image in images.built.items():
        config, port = image.config, stages()[target].ports[0]
        assert (config["User"], config["StopSignal"]) == (f"{UID}:{UID}", "SIGTERM")
        assert list(config["ExposedPorts"]) == [f"{port}/tcp"] and f"BOUNDARYMORPH_PORT={port}" in config["Env"]
        assert config["Healthcheck"]
    return f"user {UID}, SIGTERM, a health check, its port"


def contents(images: Images) -> str:
    for image in images.built.values():
        assert [path for path in sorted(image.files.keys() - images.base.files) if not OWN.fullmatch(path)] == []
        assert not [path for path in image.files if re.search(r"/opt/boundarymorph/.*/pip(\.conf)?$", path)]
    gateway, models = images.built["gateway"], r"site-packages/(torch|onnxruntime|faiss|tokenizers)$"
    assert not [path for path in gateway.files if re.search(models, path)]
    assert gateway.size < GATEWAY_BYTES, f"{gateway.size / 1e6:.0f} MB"
    assert gateway.size - images.base.size < ADDED_BYTES, f"{(gateway.size - images.base.size) / 1e6:.0f} MB added"
    return "nothing beside the base, /opt/boundarymorph and /weights; the gateway has no models and is small"


def without_keys(images: Images) -> str:
    for image in images.built.values():
        refused = image.execute("boundarymorph", *image.config["Cmd"], data=images.empty())
        assert refused.returncode == 1 and "there are no keys" in refused.stderr
    return "refused, with exit code 1"


def selection(images: Images) -> str:
    """Requests of load_tests/answers.py, and who the processes are that answer them.

    Rounds that are chosen automatically are left out: they depend on where the scorer is, and on how fast it is.
    """
    asked = [request for request in selections() if SAME.match(request.name) and "auto" not in request.name]
    settings = {**STEADY, "BOUNDARYMORPH_CACHE__ENABLED": "false", "BOUNDARYMORPH_ROUNDS": "2"}
    scene = Scene(ONE_PROCESS, settings, [])
    with answers.running(scene, images.data) as servers, answers.client(servers["service"].url) as client:
        expected = [answers.answer(client, request) for request in asked]
    with images.service(**settings) as processes, images.client(processes["gateway"]) as client:
        for process in processes.values():
            assert process.status("Uid") == 4 * [str(UID)] and process.status("NSpid")[1:] == ["1"]
        found = [answers.answer(client, request) for request in asked]
    different = [request.name for request, was, now in zip(asked, expected, found, strict=True) if was != now]
    assert not different, different
    return f"{len(found)} requests answered as by one process, byte for byte; PID 1, user {UID}"


def read_only(images: Images) -> str:
    for image in images.built.values():
        touched = image.execute("touch", "/etc/boundarymorph/new", "/tmp/new", "/data/new", data=images.empty())
        assert "cannot touch '/etc/boundarymorph/new': Read-only file system" in touched.stderr
        assert "/tmp/new" not in touched.stderr and "/data/new" not in touched.stderr
    return "all of this ran on a read-only root; /tmp, /cache and /data can be written"


def signals(images: Images) -> str:
    """A selection is under way when the gateway gets SIGTERM: it is answered, and each role ends with 0."""
    body = {"query": "sort a list", "index": INDEX, "budget": 60, "k": 50}
    with images.service() as processes, images.client(processes["gateway"]) as client, ThreadPoolExecutor() as threads:
        answer = threads.submit(client.post, "/select", json=body)
        until(lambda: processes["gateway"].metric("boundarymorph_select_running") > 0)
        assert not answer.done()
        for role in ("gateway", "retriever-cpu", "scorer-cpu"):
            processes[role].signal(signal.SIGTERM)
            assert processes[role].wait() == 0
        assert answer.result().json()["status"] == "complete"
    return "SIGTERM during a selection: 200 `complete`, then exit code 0 of every role"


def health(images: Images) -> str:
    """The health check follows /readyz: it fails once the scorer is gone."""
    with images.service() as processes:
        processes["scorer-cpu"].signal(signal.SIGKILL)
        processes["scorer-cpu"].wait()
        until(lambda: not processes["gateway"].healthy(images.empty()), 60)
        assert httpx.get(f"{processes['gateway'].url}/livez").is_success
    return "the gateway's health check fails once its scorer is killed; /livez answers"


def for_gpus(images: Images) -> str:
    """What the images for GPUs install, as pip resolves it."""
    rows = []
    for target in TARGETS:
        if target.endswith("-gpu"):
            listed = [word for path in requirements(target) for word in ("-r", str(path))]
            dry_run = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--dry-run",
                "--ignore-installed",
                "-c",
                "constraints.txt",
            ]
            told = subprocess.run([*dry_run, *listed], check=True, stdout=subprocess.PIPE, text=True).stdout
            packages = told.partition("Would install ")[2].split()
            assert "+cpu" not in str(packages), "pip prefers a PyTorch without CUDA: see `pip config list`"
            cuda = sum(name.startswith("nvidia-") for name in packages)
            rows.append(f"`{target}`: {len(packages)} packages, {cuda} of CUDA")
    return "; ".join(rows)


CHECKS: Mapping[str, Callable[[Images], str]] = {
    "configuration": configuration,
    "contents": contents,
    "started without keys": without_keys,
    "a selection": selection,
    "read-only": read_only,
    "signals": signals,
    "health": health,
    "images for GPUs": for_gpus,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    left = "the folder that `make demo` left; it is copied"
    parser.add_argument("--data", type=Path, default=Path("data"), help=left)
    parser.add_argument("--build-option", action="append", default=[], help="of `buildah build`; repeatable")
    options = parser.parse_args()
    RESULT.parent.mkdir(exist_ok=True)
    base = Image(re.findall(r"^ARG BASE=(\S+)", DOCKERFILE.read_text(), re.MULTILINE)[0])
    built: dict[str, Image] = {}
    seconds: dict[str, float] = {}
    for target in ROLES:
        print(f"building {target}, see build/image-{target}.log", flush=True)
        start = time.monotonic()
        built[target] = build(target, options.build_option, RESULT.parent / f"image-{target}.log")
        seconds[target] = time.monotonic() - start
    with tempfile.TemporaryDirectory(prefix="boundarymorph-images-") as folder, ExitStack() as stack:
        for image in (base, *built.values()):
            stack.callback(image.remove)
        Path(folder).chmod(0o755)
        secret, key = callers.make_key("images", list(callers.Scope))
        images = Images(base, built, Path(folder), options.data, secret, str(key))
        lines = ["| image | MB | of which the base | built in |", "|---|---|---|---|"]
        for target, image in built.items():
            lines.append(f"| `{target}` | {image.size / 1e6:.0f} | {base.size / 1e6:.0f} | {seconds[target]:.0f} s |")
        lines += ["", "| check | |", "|---|---|"]
        for name, check in CHECKS.items():  # the first that fails ends the program
            lines.append(f"| {name} | {check(images)} |")
            print(lines[-1], flush=True)
    RESULT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
