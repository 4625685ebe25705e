"""Images as buildah builds them, and processes in them as Kubernetes runs them: on a root that is read-only."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import orjson

from tests.deploy.dockerfile import DOCKERFILE
from tests.patience import until

READY_SECONDS = 180.0
# A mount namespace in which the image's files cannot be written, and a process namespace in which the service is PID 1.
RUN = """
root=$1; data=$2; directory=$3; user=$4; shift 4
mount --bind "$root" "$root" && mount -o remount,bind,ro "$root"
mount -t tmpfs tmpfs "$root/tmp" && mount -t tmpfs -o mode=777 tmpfs "$root/cache"
mount --bind "$data" "$root/data"
mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev"
exec chroot --userspec="$user" "$root" env -i -C "$directory" "$@"
"""


def buildah(*arguments: str) -> str:
    """Run a command of buildah; what it printed. Raises CalledProcessError."""
    return subprocess.run(["buildah", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def build(target: str, options: Sequence[str], log: Path) -> Image:
    """Build a target of the Dockerfile. Raises CalledProcessError; the log says why."""
    name = f"localhost/boundarymorph-{target}"
    command = ["buildah", "build", "--format", "docker", "--layers", "--isolation", "chroot", "-f", str(DOCKERFILE)]
    with log.open("w") as written:
        whole = [*command, *options, "--target", target, "-t", name, "."]
        subprocess.run(whole, check=True, stdout=written, stderr=subprocess.STDOUT)
    return Image(name)


@dataclass(frozen=True)
class Image:
    """An image in buildah's storage."""

    name: str

    @cached_property
    def config(self) -> dict[str, Any]:
        """What it says about how to be run."""
        config: dict[str, Any] = orjson.loads(buildah("inspect", "--type", "image", self.name))["Docker"]["config"]
        return config

    @cached_property
    def root(self) -> Path:
        """Its files, in a container that is removed by `remove`."""
        return Path(buildah("mount", self._container))

    @cached_property
    def files(self) -> dict[str, Path]:
        """All its paths, and where they are here."""
        return {f"/{path.relative_to(self.root)}": path for path in self.root.rglob("*")}

    @cached_property
    def size(self) -> int:
        """Bytes of all its layers, unpacked."""
        return sum(path.lstat().st_size for path in self.files.values() if not path.is_dir() or path.is_symlink())

    @cached_property
    def _container(self) -> str:
        return buildah("from", "--pull-never", self.name)

    def remove(self) -> None:
        """The container; the image stays."""
        buildah("rm", self._container)

    @contextmanager
    def running(self, log: Path, data: Path, env: Mapping[str, str]) -> Iterator[Process]:
        """A process of the image on the network of this machine, killed at the end if it still runs.

        data: a folder for /data; env: variables beside the image's own.
        """
        command = self._command([*self.config["Entrypoint"], *self.config["Cmd"]], data, env)
        with log.open("w") as written:
            started = subprocess.Popen(command, stdout=written, stderr=subprocess.STDOUT)
        process = Process(self, started, log, int(env["BOUNDARYMORPH_PORT"]))
        try:
            yield process
        finally:
            if started.poll() is None:
                process.signal(signal.SIGKILL)
                started.wait()

    def execute(self, *command: str, data: Path, **env: str) -> subprocess.CompletedProcess[str]:
        """A command in the image, as `running`, to its end."""
        return subprocess.run(self._command(command, data, env), capture_output=True, text=True, check=False)

    def _command(self, command: Sequence[str], data: Path, env: Mapping[str, str]) -> list[str]:
        run = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", RUN, "sh"]
        place = [str(self.root), str(data), self.config["WorkingDir"], self.config["User"]]
        variables = [f"{name}={value}" for name, value in env.items()]  # of two with one name, the later one counts
        return [*run, *place, *self.config["Env"], *variables, *command]


@dataclass(frozen=True)
class Process:
    """The first process of a container."""

    image: Image
    started: subprocess.Popen[bytes]
    log: Path
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Its number outside of its namespace."""
        started = self.started.pid
        return int(Path(f"/proc/{started}/task/{started}/children").read_text().split()[0])

    def status(self, name: str) -> list[str]:
        """A line of /proc/PID/status."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(line for line in lines if line.startswith(f"{name}:")).split()[1:]

    def healthy(self, data: Path) -> bool:
        """What the image's own health check says."""
        kind, *command = self.image.config["Healthcheck"]["Test"]
        assert kind == "CMD"
        return self.image.execute(*command, data=data, BOUNDARYMORPH_PORT=str(self.port)).returncode == 0

    def await_health(self, data: Path) -> None:
        """Return once the health check passes. Raises AssertionError if it does not in time."""

        def healthy() -> bool:
            assert self.started.poll() is None, self.log.read_text()
            return self.healthy(data)

        until(healthy, READY_SECONDS)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit code."""
        return self.started.wait(timeout=60)

    def metric(self, name: str) -> float:
        """A sample without labels."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])
