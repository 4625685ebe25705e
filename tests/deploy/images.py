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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson

from boundarymorph.access import callers
from boundarymorph.scoring.transformer import TransformerCrossEncoder
from load_tests import answers, models
from load_tests.recorded_routes import ONE_PROCESS, STEADY, Scene
from load_tests.recorded_selections import INDEX, selections
from tests.deploy.buildah import Image, Process, build
from tests.deploy.dockerfile import DOCKERFILE, TARGETS, requirements, stages
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
    """The images by target, and a folder and a key for their processes."""

    built: Mapping[str, Image]
    folder: Path
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
        port = {"BOUNDARYMORPH_PORT": str(PORTS + ROLES.index(target))}
        env = {**port, "BOUNDARYMORPH_KEYS": self.key, **env}
        with self.built[target].running(self.folder / f"{target}.log", data, env) as process:
            process.await_health(data)
            yield process

    @contextmanager
    def service(self, data: Path, **env: str) -> Iterator[dict[str, Process]]:
        """All three roles."""
        with ExitStack() as stack:
            scorer = stack.enter_context(self.role("scorer-cpu", self.empty(), **env))
            retriever = stack.enter_context(self.role("retriever-cpu", data, **env))
            behind = {
                **env,
                "BOUNDARYMORPH_SCORER__URL": orjson.dumps([scorer.url]).decode(),
                "BOUNDARYMORPH_SCORER__API_KEY": self.secret,
                "BOUNDARYMORPH_RETRIEVER__URL": orjson.dumps([retriever.url]).decode(),
                "BOUNDARYMORPH_RETRIEVER__API_KEY": self.secret,
                "BOUNDARYMORPH_GRACE_SECONDS": "120",
            }
            gateway = stack.enter_context(self.role("gateway", self.empty(), **behind))
            yield {"scorer-cpu": scorer, "retriever-cpu": retriever, "gateway": gateway}

    def client(self, process: Process) -> httpx.Client:
        return httpx.Client(base_url=process.url, timeout=300, headers={"Authorization": f"Bearer {self.secret}"})


def configuration(images: Images) -> str:
    there = stages()
    for target, image in images.built.items():
        config, port = image.config, there[target].ports[0]
        assert config["User"] == f"{UID}:{UID}"
        assert config["StopSignal"] == "SIGTERM"
        assert list(config["ExposedPorts"]) == [f"{port}/tcp"]
        assert f"BOUNDARYMORPH_PORT={port}" in config["Env"]
        assert config["Healthcheck"]
    return f"user {UID}, SIGTERM, a health check, its port"


def contents(images: Images, base: Image) -> str:
    for image in images.built.values():
        assert [path for path in sorted(image.files - base.files) if not OWN.fullmatch(path)] == []
        assert not [path for path in image.files if re.search(r"/opt/boundarymorph/.*/pip(\.conf)?$", path)]
    assert not [
        path
        for path in images.built["gateway"].files
        if re.search(r"site-packages/(torch|onnxruntime|faiss|tokenizers)$", path)
    ]
    size = images.built["gateway"].size
    assert size < GATEWAY_BYTES, f"{size / 1e6:.0f} MB"
    assert size - base.size < ADDED_BYTES, f"{(size - base.size) / 1e6:.0f} MB more than the base"
    return (
        "nothing beside the base, /opt/boundarymorph and /weights; the gateway has less than "
        f"{GATEWAY_BYTES / 1e6:.0f} MB, and less than {ADDED_BYTES / 1e6:.0f} MB beside its base"
    )


def without_keys(images: Images) -> str:
    for image in images.built.values():
        refused = image.execute("boundarymorph", *image.config["Cmd"], data=images.empty())
        assert refused.returncode == 1
        assert "there are no keys" in refused.stderr
    return "refused, with exit code 1"


def selection(images: Images, data: Path) -> str:
    """Requests of load_tests/answers.py, and who the processes are that answer them.

    Rounds that are chosen automatically are left out: they depend on where the scorer is, and on how fast it is.
    """
    asked = [request for request in selections() if SAME.match(request.name) and "auto" not in request.name]
    settings = {**STEADY, "BOUNDARYMORPH_CACHE__ENABLED": "false", "BOUNDARYMORPH_ROUNDS": "2"}
    with (
        answers.running(Scene(ONE_PROCESS, settings, []), data) as servers,
        answers.client(servers["service"].url) as client,
    ):
        expected = [answers.answer(client, request) for request in asked]
    with (
        images.service(handed_over(data, images.folder), **settings) as processes,
        images.client(processes["gateway"]) as client,
    ):
        for process in processes.values():
            assert process.status("Uid") == 4 * [str(UID)]
            assert process.status("NSpid")[1:] == ["1"]
        found = [answers.answer(client, request) for request in asked]
    different = [request.name for request, was, now in zip(asked, expected, found, strict=True) if was != now]
    assert not different, different
    return f"{len(found)} requests answered as by one process, byte for byte; PID 1, user {UID}"


def read_only(images: Images) -> str:
    for image in images.built.values():
        touched = image.execute("touch", "/etc/boundarymorph/new", "/tmp/new", "/data/new", data=images.empty())
        assert "cannot touch '/etc/boundarymorph/new': Read-only file system" in touched.stderr
        assert "/tmp/new" not in touched.stderr
        assert "/data/new" not in touched.stderr
    return "all of this ran on a read-only root; /tmp, /cache and /data can be written"


def drain(images: Images, data: Path) -> str:
    """A selection is under way when the gateway gets SIGTERM: it is answered, and each role ends with 0."""
    with images.service(handed_over(data, images.folder)) as processes, images.client(processes["gateway"]) as client:
        gateway = processes["gateway"]
        body = {"query": "sort a list", "index": INDEX, "budget": 60, "k": 50}
        with ThreadPoolExecutor() as threads:
            answer = threads.submit(client.post, "/select", json=body)
            while gateway.metric("boundarymorph_select_running") < 1:
                assert not answer.done()
                time.sleep(0.05)
            gateway.signal(signal.SIGTERM)
            answered = answer.result()
        assert answered.json()["status"] == "complete"
        assert gateway.wait() == 0
        for other in ("retriever-cpu", "scorer-cpu"):
            processes[other].signal(signal.SIGTERM)
            assert processes[other].wait() == 0
    return "SIGTERM during a selection: 200 `complete`, then exit code 0 of every role"


def unready(images: Images, data: Path) -> str:
    """The health check follows /readyz: it fails once the scorer is gone."""
    with images.service(handed_over(data, images.folder)) as processes:
        processes["scorer-cpu"].signal(signal.SIGKILL)
        processes["scorer-cpu"].wait()
        gateway, deadline = processes["gateway"], time.monotonic() + 60
        while gateway.healthy(images.empty()):
            assert time.monotonic() < deadline
            time.sleep(1)
        assert httpx.get(f"{gateway.url}/livez").is_success
    return "the gateway's health check fails once its scorer is killed; /livez answers"


def mounted_weights(images: Images) -> str:
    """A model of Hugging Face from /weights, in PyTorch."""
    folder = images.folder / "weights"
    models.SHAPES["22M"].write(folder)
    hand_over(folder)
    data, port = images.empty(), str(PORTS + len(ROLES))
    env = {"BOUNDARYMORPH_PORT": port, "BOUNDARYMORPH_KEYS": images.key}
    arguments = ["scorer", "--model", "/weights/bert"]
    log = images.folder / "torch.log"
    with images.built["scorer-cpu"].running(log, data, env, arguments=arguments, weights=folder) as process:
        process.await_health(data)
        with images.client(process) as client:
            body: Any = {"query": "how many legs has a spider", "texts": ["a spider has eight legs", "bread"]}
            found = client.post("/score", json=body).raise_for_status().json()["scores"]
    ours = TransformerCrossEncoder.load(str(folder / "bert"), device="cpu", precision="fp32")
    expected = ours.run(ours.tokenize(body["query"], body["texts"]))
    np.testing.assert_allclose(found, expected, atol=1e-4)
    return "a model mounted at /weights is served by PyTorch"


def handed_over(data: Path, folder: Path) -> Path:
    """A copy of a data directory that the images' user may write to."""
    copy = copied(data, folder)
    hand_over(copy)
    return copy


def hand_over(folder: Path) -> None:
    """Make a folder that of the images' user."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, UID, UID)


def for_gpus() -> str:
    """What the images for GPUs install, as pip resolves it."""
    rows = []
    for target in TARGETS:
        if target.endswith("-gpu"):
            packages = resolved(requirements(target))
            cuda = sum(name.startswith("nvidia-") for name in packages)
            assert "+cpu" not in packages["torch"], "pip prefers a PyTorch without CUDA: see `pip config list`"
            rows.append(f"`{target}`: {len(packages)} packages, torch {packages['torch']}, {cuda} of CUDA")
    return "; ".join(rows)


def resolved(files: Sequence[Path]) -> dict[str, str]:
    """The packages that would be installed, by name, with their versions. Raises CalledProcessError."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        dry_run = ["install", "--dry-run", "--ignore-installed", "--quiet", "--report", report.name]
        listed = ["-c", "constraints.txt", *(word for path in files for word in ("-r", str(path)))]
        subprocess.run([sys.executable, "-m", "pip", *dry_run, *listed], check=True)
        wanted = orjson.loads(Path(report.name).read_bytes())["install"]
    return {each["metadata"]["name"]: each["metadata"]["version"] for each in wanted}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, default=Path("data"), help="the folder that `make demo` left; it is copied"
    )
    parser.add_argument("--build-option", action="append", default=[], help="of `buildah build`; repeatable")
    options = parser.parse_args()
    RESULT.parent.mkdir(exist_ok=True)
    lines = ["| image | MB | of which the base | built in |", "|---|---|---|---|"]
    built: dict[str, Image] = {}
    seconds: dict[str, float] = {}
    for target in ROLES:
        print(f"building {target}, see build/image-{target}.log", flush=True)
        start = time.monotonic()
        built[target] = build(target, options.build_option, RESULT.parent / f"image-{target}.log")
        seconds[target] = time.monotonic() - start
    base = Image(re.findall(r"^ARG BASE=(\S+)", DOCKERFILE.read_text(), re.MULTILINE)[0])
    with tempfile.TemporaryDirectory(prefix="boundarymorph-images-") as folder, ExitStack() as stack:
        for image in (base, *built.values()):
            stack.callback(image.remove)
        Path(folder).chmod(0o755)
        secret, key = callers.make_key("images", list(callers.Scope))
        images = Images(built, Path(folder), secret, str(key))
        for target, image in built.items():
            lines.append(f"| `{target}` | {image.size / 1e6:.0f} | {base.size / 1e6:.0f} | {seconds[target]:.0f} s |")
        lines += ["", "| check | |", "|---|---|", *checked(images, base, options.data)]
    RESULT.write_text("\n".join(lines) + "\n")
    print(f"\n{RESULT.read_text()}")


def checked(images: Images, base: Image, data: Path) -> Iterator[str]:
    """Each check as a row of the report. Raises AssertionError at the first that fails."""
    checks: Mapping[str, Callable[[], Any]] = {
        "configuration": lambda: configuration(images),
        "contents": lambda: contents(images, base),
        "started without keys": lambda: without_keys(images),
        "a selection": lambda: selection(images, data),
        "read-only": lambda: read_only(images),
        "signals": lambda: drain(images, data),
        "health": lambda: unready(images, data),
        "weights": lambda: mounted_weights(images),
        "images for GPUs": for_gpus,
    }
    for name, check in checks.items():
        row = f"| {name} | {check()} |"
        print(row, flush=True)
        yield row


if __name__ == "__main__":
    main()
