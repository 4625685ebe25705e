"""Test that the manifests follow the schemas of Kubernetes and match the code."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from prometheus_client import REGISTRY

import boundarymorph.telemetry.metrics  # noqa: F401 - registers them
from boundarymorph import __version__
from boundarymorph.access import callers
from boundarymorph.access.limits import PARSING_THREADS, READ_THREADS, WRITE_THREADS
from boundarymorph.server.process import LAST_SECONDS
from tests.deploy.dockerfile import TARGETS, stages
from tests.deploy.named import COMMANDS, PORTS, check_command, paths, role_of, settings_from

Manifest = dict[str, Any]
KUBERNETES = Path(__file__).parents[2] / "deploy/kubernetes"
CUSTOM = {
    "Milvus",
    "PrometheusRule",
    "Redis",
    "ScaledObject",
    "ServiceMonitor",
}  # kinds of operators, for which there is no schema
MARGIN_SECONDS = 10  # from the expected end of a process to its kill
ELSEWHERE = {53, 6379, 19530}  # DNS, Redis, Milvus
KEY = str(callers.make_key("tests", list(callers.Scope))[1])
FROM_SECRETS = {"keys": KEY, "secret": "bm_x", "url": "redis://redis:6379", "token": "root:Milvus"}
FILES: dict[Path, list[Manifest]] = {
    path: [each for each in yaml.safe_load_all(path.read_text()) if each] for path in sorted(KUBERNETES.rglob("*.yaml"))
}
KUSTOMIZATIONS = {path.parent: found[0] for path, found in FILES.items() if path.name == "kustomization.yaml"}
WHOLE = [  # manifests that are no patches
    manifest
    for folder, found in KUSTOMIZATIONS.items()
    for name in found.get("resources", [])
    for manifest in FILES.get(folder / name, [])
]
WORKLOADS = [each for found in FILES.values() for each in found if each["kind"] in ("Deployment", "StatefulSet")]
WHOLE_WORKLOADS = [each for each in WORKLOADS if each in WHOLE]


def of_kind(kind: str) -> list[Manifest]:
    return [each for each in WHOLE if each["kind"] == kind]


def container(workload: Manifest) -> Manifest:
    """Return the only container of a workload's pods."""
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def environment(workload: Manifest) -> dict[str, str]:
    """Return the environment variables, with likely values for secrets."""
    found = {}
    for variable in container(workload).get("env", []):
        source = variable.get("valueFrom", {})
        if "secretKeyRef" in source:
            found[variable["name"]] = FROM_SECRETS[source["secretKeyRef"]["key"]]
        elif "resourceFieldRef" in source:
            found[variable["name"]] = container(workload)["resources"]["limits"]["cpu"]
        else:
            found[variable["name"]] = variable["value"]
    return found


def in_bytes(quantity: str) -> int:
    return int(quantity.removesuffix("Gi")) * 2**30


def test_manifests_validate_against_the_kubernetes_schemas() -> None:
    without = set()
    for manifest in WHOLE:
        try:
            kubernetes_validate.validate(manifest, "1.34", strict=True)
        except kubernetes_validate.SchemaNotFoundError:
            without.add(manifest["kind"])
    assert without == CUSTOM


def test_kustomizations_list_every_file_and_the_project_images() -> None:
    for folder, kustomization in KUSTOMIZATIONS.items():
        listed = kustomization.get("resources", []) + [patch["path"] for patch in kustomization.get("patches", [])]
        assert all((folder / name).exists() for name in listed + kustomization.get("components", []))
        assert {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"} <= set(listed)
        for image in kustomization.get("images", []):
            assert image["name"].removeprefix("boundarymorph-") in TARGETS
            assert image["newName"].rpartition("boundarymorph-")[2] in TARGETS
            assert folder.parent.name != "overlays" or image["newTag"] == __version__


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda each: each["metadata"]["name"])
def test_workload_has_a_valid_command_and_settings(workload: Manifest) -> None:
    if "args" in container(workload):
        assert container(workload)["args"][0] == COMMANDS[workload["metadata"]["name"]]
        check_command(container(workload)["args"])
    settings = settings_from(environment(workload))
    for other in ("retriever", "scorer"):
        assert set(getattr(settings, other).url) <= {f"http://{other}:{PORTS[other]}"}


@pytest.mark.parametrize("role", COMMANDS)
def test_workload_fits_its_image_service_and_limits(role: str) -> None:
    (workload,) = (each for each in WHOLE_WORKLOADS if each["metadata"]["name"] == role)
    spec, pod, only = workload["spec"], workload["spec"]["template"]["spec"], container(workload)
    assert only["ports"] == [{"name": "http", "containerPort": PORTS[role]}]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert only[probe]["httpGet"]["port"] == "http" and only[probe]["httpGet"]["path"] in paths(role)
    assert only["livenessProbe"]["httpGet"]["path"] == "/livez"

    # `make images` runs the containers with the same confinement.
    target = only["image"].removeprefix("boundarymorph-")
    assert target in TARGETS and role_of(target) == role
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 10001
    assert only["securityContext"]["readOnlyRootFilesystem"] is True
    mounts = {mount["mountPath"] for mount in only["volumeMounts"]}
    assert {"/tmp"} <= mounts <= {"/tmp", "/data", "/cache", "/weights"}
    assert ("/data" in mounts) == (workload["kind"] == "StatefulSet")
    settings = settings_from({**stages()[target].env, **environment(workload)})
    assert settings.keys
    longest = settings.drain_seconds + settings.grace_seconds + LAST_SECONDS
    assert longest + MARGIN_SECONDS <= pod["terminationGracePeriodSeconds"]

    # The formula is in docs/running.md#memory; for a retriever it has no vectors of open indexes.
    threads = PARSING_THREADS
    if role == "retriever":
        threads += settings.search_threads + READ_THREADS + WRITE_THREADS
    most = 300e6 + 3 * settings.limits.bytes_in_flight + threads * 200 * 2**20
    assert most <= in_bytes(only["resources"]["limits"]["memory"])
    volumes = {each["name"]: each for each in pod["volumes"]}  # strict uploads are kept in /tmp
    assert settings.limits.bytes_in_flight <= in_bytes(volumes["tmp"]["emptyDir"]["sizeLimit"])

    scaled = {each["spec"]["scaleTargetRef"]["name"] for each in WHOLE if "scaleTargetRef" in each.get("spec", {})}
    assert ("replicas" in spec) == (role not in scaled)
    beside = {each["kind"]: each["spec"] for each in FILES[KUBERNETES / f"base/{role}.yaml"]}
    labels, service = {"app.kubernetes.io/component": role}, beside["Service"]
    assert service["ports"] == [{"name": "http", "port": PORTS[role], "targetPort": "http"}]
    assert service["selector"] == beside["PodDisruptionBudget"]["selector"]["matchLabels"] == labels
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"] == labels


def test_network_policies_open_exactly_the_ports_of_the_roles() -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in of_kind("NetworkPolicy")}
    for role in COMMANDS:
        assert [rule["ports"] for rule in policies[role]["ingress"]] == [[{"port": PORTS[role]}]]
    for spec in policies.values():
        for rule in spec.get("egress", []):
            assert {port["port"] for port in rule["ports"]} <= {*PORTS.values(), *ELSEWHERE}
    assert "ingress" not in policies["nothing-else"]


def test_autoscaling_and_monitoring_use_existing_metrics() -> None:
    scaled = [each for each in WHOLE if each["metadata"]["name"] == "scorer" and "scaleTargetRef" in each["spec"]]
    assert {each["kind"] for each in scaled} == {"ScaledObject", "HorizontalPodAutoscaler"}
    for each in scaled:
        asked = set(re.findall(r"boundarymorph_\w+", str(each["spec"])))
        assert asked == {"boundarymorph_scorer_queue_tokens"} <= set(REGISTRY._names_to_collectors)
    (monitor,) = (each["spec"] for each in of_kind("ServiceMonitor"))
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] == "http" and all(endpoint["path"] in paths(role) for role in COMMANDS)
    (label,) = KUSTOMIZATIONS[KUBERNETES / "base"]["labels"]
    assert monitor["selector"]["matchLabels"] == label["pairs"]
    (rule,) = of_kind("PrometheusRule")
    assert rule["spec"] == yaml.safe_load((KUBERNETES.parent / "prometheus/alerts.yaml").read_text())
