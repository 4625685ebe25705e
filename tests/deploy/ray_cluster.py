"""The service on a Ray cluster of three nodes: the configuration of deploy/ray, deployed, loaded, broken and updated.

    python -m tests.deploy.ray_cluster --data data             # the folder that `make demo` left; it is copied

The nodes are processes of this machine, so only one of them has a proxy. The report is in build/ray.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import ray
import yaml
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.config import HTTPOptions
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

from load_tests import answers
from tests.faults.table import LOAD_HEAD, load_row
from tests.ports import free_port
from tests.system.load import Load, load
from tests.system.service import copied

RESULT = Path("build/ray.md")
FAULT = Path("build/faults-ray.md")
WAIT_SECONDS = 240.0
MANIFEST = Path(__file__).parents[2] / "deploy/ray/rayservice.yaml"
DOCUMENTS = "documents"  # the resource of the node that has the indexes on its disk
DECLARED = ("200 ", "429 ", "503 ")


class Service:
    """A cluster of a head, which has the documents, and two workers, and the service on it."""

    def __init__(self, data: Path) -> None:
        self.data, self.port = data, free_port()
        head = {"num_cpus": 2, "resources": {DOCUMENTS: 2}, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.workers = [self.cluster.add_node(num_cpus=2) for _ in range(2)]
        ray.init(address=self.cluster.address, log_to_driver=False)
        serve.start(proxy_location="HeadOnly", http_options=HTTPOptions(host="127.0.0.1", port=self.port))
        self.url = f"http://127.0.0.1:{self.port}"

    def deploy(self, scorers: int | tuple[int, int], **values: Any) -> None:
        """The configuration of the manifest, with so many scorers, or from so many to so many, and these settings. The
        indexes are on the disk of one node."""
        config = yaml.safe_load(yaml.safe_load(MANIFEST.read_text())["spec"]["serveConfigV2"])
        deployments = []
        for application in config["applications"]:
            role, given = application["name"], {**application["args"], **values, "data_directory": str(self.data)}
            given.pop("milvus", None)
            if role == "gateway":
                given |= {part: {"url": [f"{self.url}/{part}"]} for part in ("retriever", "scorer")}
            application["args"] = given
            (deployment,) = application["deployments"]
            deployment["ray_actor_options"] = {"num_cpus": 0.5}
            if role == "retriever":
                del deployment["autoscaling_config"]
                deployment |= {"num_replicas": 1, "ray_actor_options": {"num_cpus": 0.5, "resources": {DOCUMENTS: 1}}}
            else:
                deployment["autoscaling_config"]["max_replicas"] = 3
            deployments.append(deployment)
        scorer, _, gateway = deployments
        fast = {"upscale_delay_s": 2, "downscale_delay_s": 30, "metrics_interval_s": 1, "look_back_period_s": 5}
        if isinstance(scorers, int):
            del scorer["autoscaling_config"]
            scorer["num_replicas"] = scorers
        else:
            least, most = scorers
            scorer["autoscaling_config"] = {
                "min_replicas": least,
                "max_replicas": most,
                "target_ongoing_requests": 1,
                **fast,
            }
        gateway["ray_actor_options"]["resources"] = {DOCUMENTS: 0.1}  # on the head, which is not killed
        scorer["max_replicas_per_node"] = 1 if isinstance(scorers, int) else 2
        client = _get_global_client()
        assert client is not None
        client.deploy_apps(ServeDeploySchema.model_validate(config), _blocking=False)

    def nodes(self, role: str) -> list[str]:
        """The node of each replica that runs."""
        client = _get_global_client()
        assert client is not None
        application = client.get_serve_details()["applications"][role]
        replicas = application["deployments"][role]["replicas"]
        return [replica["node_id"] for replica in replicas if replica["state"] == "RUNNING"]

    def await_(self, condition: Callable[[], bool]) -> float:
        """Seconds until something is so. Raises AssertionError when it takes too long."""
        start = time.monotonic()
        while not condition():
            assert time.monotonic() - start < WAIT_SECONDS, serve.status()
            time.sleep(0.2)
        return time.monotonic() - start

    def running(self) -> bool:
        """Whether all applications are as they were deployed last."""
        applications = serve.status().applications
        return len(applications) == 3 and all(each.status == "RUNNING" for each in applications.values())

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=120)

    def load(self) -> AbstractContextManager[Load]:
        """Selections by some clients until the end of the block."""
        return load(self.url, request)

    def close(self) -> None:
        serve.shutdown()  # type: ignore[no-untyped-call]
        ray.shutdown()
        self.cluster.shutdown()  # type: ignore[no-untyped-call]


def request(number: int) -> dict[str, Any]:
    query = f"{answers.QUERIES[number % len(answers.QUERIES)]} {number}"
    return {"query": query, "index": answers.INDEX, "budget": 10, "k": 10}


def answers_are_the_same(service: Service, data: Path, folder: Path) -> str:
    with answers.service(copied(data, folder)) as client:
        expected = [answers.answer(client, request) for request in answers.requests()]
    with service.client() as client:
        found = [answers.answer(client, request) for request in answers.requests()]
    different = [was["request"] for was, now in zip(expected, found, strict=True) if was != now]
    assert not different, different
    return f"{len(found)} requests answered as by one process, byte for byte"


def a_node_is_killed(service: Service) -> str:
    """The row of the table in docs/monitoring.md goes to build/faults-ray.md."""
    service.deploy(scorers=2)
    service.await_(lambda: service.running() and len(set(service.nodes("scorer"))) == 2)
    taken = {worker.node_id: worker for worker in service.workers}
    victim = next(taken[node] for node in service.nodes("scorer") if node in taken)
    with service.load() as seen:
        service.await_(lambda: seen.is_normal(0.0))
        killed = time.monotonic()
        service.cluster.remove_node(victim, allow_graceful=False)
        service.await_(lambda: seen.goes_on(killed))
        restarted = time.monotonic()
        service.cluster.add_node(num_cpus=2)
        seconds = service.await_(lambda: len(set(service.nodes("scorer")) - {victim.node_id}) == 2)
        replaced = time.monotonic()
        service.await_(lambda: seen.is_normal(replaced))
    checked(seen)
    FAULT.write_text(f"{LOAD_HEAD}{load_row('a worker node of Ray', 'make test-ray', seen, killed, restarted)}\n")
    return f"two scorers again {seconds:.0f} s after another node came; {shown(seen)}"


def it_scales(service: Service) -> str:
    service.deploy(scorers=(1, 2))
    service.await_(lambda: service.running() and len(service.nodes("scorer")) == 1)
    with service.load() as seen:
        up = service.await_(lambda: len(service.nodes("scorer")) >= 2)
    down = service.await_(lambda: len(service.nodes("scorer")) == 1)
    checked(seen)
    return f"a second scorer after {up:.0f} s of load, and one again {down:.0f} s after it; {shown(seen)}"


def it_is_updated(service: Service) -> str:
    service.deploy(scorers=1)
    service.await_(lambda: service.running() and len(service.nodes("scorer")) == 1)
    with service.load() as seen:
        service.await_(lambda: seen.goes_on(0.0, 1))
        service.deploy(scorers=1, k=7)
        with service.client() as client:
            body = {"query": "sort", "index": answers.INDEX, "budget": 0}
            seconds = service.await_(lambda: len(client.post("/select", json=body).json()["documents"]) == 7)
            service.await_(service.running)
        updated = time.monotonic()
        service.await_(lambda: seen.goes_on(updated, 2))
    checked(seen)
    return f"new settings after {seconds:.0f} s; {shown(seen)}"


def checked(seen: Load) -> None:
    """Raises AssertionError for anything but answers and declared refusals."""
    undeclared = [outcome for outcome in seen.outcomes() if not outcome.startswith(DECLARED)]
    assert not undeclared, seen.outcomes()


def shown(seen: Load) -> str:
    return ", ".join(f"{count} times {outcome}" for outcome, count in seen.outcomes().most_common())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    options = parser.parse_args()
    RESULT.parent.mkdir(exist_ok=True)
    lines = ["| on three nodes | |", "|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        service = Service(copied(options.data, Path(folder)))
        try:
            service.deploy(scorers=1)
            service.await_(service.running)
            checks: dict[str, Callable[[], str]] = {
                "the same answers": lambda: answers_are_the_same(service, options.data, Path(folder)),
                "a worker node killed under load": lambda: a_node_is_killed(service),
                "autoscaling": lambda: it_scales(service),
                "an update under load": lambda: it_is_updated(service),
            }
            for name, check in checks.items():
                lines.append(f"| {name} | {check()} |")
                print(lines[-1], flush=True)
        finally:
            service.close()
    RESULT.write_text("\n".join(lines) + "\n")
    print(FAULT.read_text())


if __name__ == "__main__":
    main()
