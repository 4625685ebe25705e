"""`make images COMPOSE=...`: docker/compose.yaml as docs/deployment.md has it, by Docker or podman, with built images.

    python -m tests.deploy.compose --compose "docker compose" --without grafana

A selection goes through all of its services, Prometheus is asked whom it scrapes, and everything is stopped and started
again. The report is in build/compose.md. Containers and volumes of the project are removed at the end.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import yaml

from boundarymorph.access import callers
from tests.deploy.named import PORTS

FILE = Path(__file__).parents[2] / "docker/compose.yaml"
RESULT = Path("build/compose.md")
GATEWAY, PROMETHEUS, GRAFANA = (f"http://127.0.0.1:{port}" for port in (PORTS["gateway"], 9090, 3000))
WAIT_SECONDS = 180.0
SUBJECTS = ("violin", "tram", "bread", "harbour", "planet", "glacier", "letter", "engine")
DOCUMENTS = [{"id": f"{subject}-{n}", "text": f"Tale {n} of the {subject}."} for subject in SUBJECTS for n in range(5)]
SELECT = {"query": "tales of music", "index": "tales", "budget": 10, "k": 5}


@dataclass(frozen=True)
class Project:
    """command: of Compose, with the variables that it is given; services: those that run."""

    command: Sequence[str]
    variables: dict[str, str]
    services: Sequence[str]
    client: httpx.Client

    def compose(self, *arguments: str) -> None:
        """Raises CalledProcessError."""
        subprocess.run([*self.command, "-f", str(FILE), *arguments], check=True, env=os.environ | self.variables)

    @contextmanager
    def running(self) -> Iterator[None]:
        try:
            self.compose("up", "--detach", *self.services)
            yield
        finally:
            self.compose("down")

    def select(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.client.post("/select", json=SELECT).raise_for_status().json()
        assert answer["status"] == "complete", answer
        assert len(answer["documents"]) == SELECT["k"]
        return answer


def until(holds: Callable[[], bool], what: str) -> float:
    """Seconds until something is so. Raises AssertionError when it takes too long."""
    start = time.monotonic()
    while True:
        try:
            if holds():
                return time.monotonic() - start
        except httpx.TransportError:
            pass
        assert time.monotonic() - start < WAIT_SECONDS, f"it does not come about that {what}"
        time.sleep(0.5)


def is_ready(project: Project) -> bool:
    return project.client.get("/readyz").is_success


def a_selection(project: Project) -> str:
    assert httpx.post(f"{GATEWAY}/select", json=SELECT).status_code == 401
    project.client.put("/indexes/tales").raise_for_status()
    lines = b"\n".join(map(orjson.dumps, DOCUMENTS))
    headers = {"content-type": "application/x-ndjson"}
    uploaded = project.client.post("/indexes/tales/documents", content=lines, headers=headers).raise_for_status()
    assert uploaded.json()["added"] == len(DOCUMENTS)
    assert project.select()["usage"]["cross_encoder_calls"] == SELECT["budget"]
    chosen = f"{SELECT['k']} of {len(DOCUMENTS)} uploaded documents with {SELECT['budget']} calls"
    return f"{chosen}; 401 without a key"


def only_the_gateway(_: Project) -> str:
    for role in ("retriever", "scorer"):
        try:
            httpx.get(f"http://127.0.0.1:{PORTS[role]}/livez")
        except httpx.ConnectError:
            continue
        raise AssertionError(f"the {role} can be reached")
    return "retriever and scorer refuse connections from outside"


def redis_remembers(project: Project) -> str:
    """A gateway that was restarted has nothing in its own memory."""
    project.compose("restart", "gateway")
    until(lambda: is_ready(project), "the gateway is ready again")
    assert project.select()["usage"]["cross_encoder_calls"] == 0
    return "after a restart of the gateway the same request makes no call"


def prometheus_scrapes(_: Project) -> str:
    def up() -> bool:
        targets = httpx.get(f"{PROMETHEUS}/api/v1/targets").json()["data"]["activeTargets"]
        return {target["scrapeUrl"].rpartition(":")[2] for target in targets if target["health"] == "up"} == {
            f"{port}/metrics" for port in PORTS.values()
        }

    until(up, "every role is scraped")
    groups = httpx.get(f"{PROMETHEUS}/api/v1/rules").json()["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert rules
    assert all(rule["health"] != "err" for rule in rules), rules
    alerts = sum(rule["type"] == "alerting" for rule in rules)
    return f"the targets of all three roles are up, {alerts} alerts are loaded"


def grafana_shows(_: Project) -> str:
    until(lambda: httpx.get(f"{GRAFANA}/api/health").is_success, "Grafana answers")
    found = httpx.get(f"{GRAFANA}/api/search", params={"type": "dash-db"}).raise_for_status().json()
    assert found
    return f"has the dashboard {found[0]['title']!r}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compose", default="docker compose", help="the command of Compose")
    parser.add_argument("--without", action="append", default=[], help="a service to leave out; repeatable")
    options = parser.parse_args()
    services = [name for name in yaml.safe_load(FILE.read_text())["services"] if name not in options.without]
    secret, key = callers.make_key("compose", list(callers.Scope))
    variables = {"BOUNDARYMORPH_KEYS": str(key)}
    lines = [f"`{options.compose}`, {', '.join(services)}", "", "| check | |", "|---|---|"]

    def report(name: str, found: str) -> None:
        lines.append(f"| {name} | {found} |")
        print(lines[-1], flush=True)

    with httpx.Client(base_url=GATEWAY, timeout=60, headers={"Authorization": f"Bearer {secret}"}) as client:
        project = Project(shlex.split(options.compose), variables, services, client)
        checks: dict[str, Callable[[Project], str]] = {
            "a selection": a_selection,
            "networks": only_the_gateway,
            "Redis": redis_remembers,
            "Prometheus": prometheus_scrapes,
            "Grafana": grafana_shows,
        }
        try:
            with project.running():
                report("up", f"ready after {until(lambda: is_ready(project), 'the gateway is ready'):.0f} s")
                for name, check in checks.items():
                    if name.lower() not in options.without:
                        report(name, check(project))
            with project.running():
                until(lambda: is_ready(project), "the gateway is ready again")
                project.select()
                report("down and up", "the index is still there")
        finally:
            project.compose("down", "--volumes")
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
