"""The manifests follow the schemas of Kubernetes and name what the code has."""

import re
from copy import deepcopy
from typing import Any

import kubernetes_validate
import pytest
from prometheus_client import REGISTRY

import boundarymorph.telemetry.metrics
from boundarymorph import __version__
from boundarymorph.access import callers
from boundarymorph.access.limits import PARSING_THREADS, READ_THREADS, WRITE_THREADS
from boundarymorph.server.process import LAST_SECONDS
from tests.deploy.dockerfile import TARGETS, stages
from tests.deploy.manifests import KUBERNETES, container, documents, kustomizations, resources, validate, workloads
from tests.deploy.named import COMMANDS, PORTS, check_command, paths, role_of, settings_from

IMPORTED = boundarymorph.telemetry.metrics
WHOLE = [each for each in resources() if each["kind"] in ("Deployment", "StatefulSet")]
CUSTOM = {
    "Milvus",
    "PrometheusRule",
    "Redis",
    "ScaledObject",
    "ServiceMonitor",
}  # of operators: `make check-deploy` validates them where it has their CRDs
MARGIN_SECONDS = 10  # between the end of a process by itself and its kill
ELSEWHERE = {53, 6379, 19530}  # DNS, Redis, Milvus
KEY = str(callers.make_key("tests", list(callers.Scope))[1])
FROM_SECRETS = {"keys": KEY, "secret": "bm_x", "url": "redis://redis:6379", "token": "root:Milvus"}


def named(manifest: dict[str, Any]) -> str:
    return f"{manifest['kind']} {manifest['metadata']['name']}"


def environment(workload: dict[str, Any]) -> dict[str, str]:
    """What its variables come to, with likely values for what comes from secrets."""
    found = {}
    for variable in container(workload).get("env", []):
        source = variable.get("valueFrom", {})
        if "secretKeyRef" in source:
            found[variable["name"]] = FROM_SECRETS[source["secretKeyRef"]["key"]]
        elif "resourceFieldRef" in source:
            assert source["resourceFieldRef"]["resource"] == "limits.cpu"
            found[variable["name"]] = container(workload)["resources"]["limits"]["cpu"]
        else:
            found[variable["name"]] = variable["value"]
    return found


@pytest.mark.parametrize("manifest", resources(), ids=named)
def test_schema(manifest: dict[str, Any]) -> None:
    assert validate(manifest, {}) == (manifest["kind"] not in CUSTOM)


def test_what_the_schema_does_not_have_is_a_mistake() -> None:
    manifest = deepcopy(documents(KUBERNETES / "base/gateway.yaml")[0])
    manifest["spec"]["template"]["spec"]["enableServiceLink"] = False
    with pytest.raises(kubernetes_validate.ValidationError, match="enableServiceLink"):
        validate(manifest, {})


def test_kustomize_finds_every_file() -> None:
    for folder, kustomization in kustomizations().items():
        listed = kustomization.get("resources", []) + [patch["path"] for patch in kustomization.get("patches", [])]
        for name in listed + kustomization.get("components", []):
            assert (folder / name).exists(), name
        assert {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"} <= set(listed)


def in_bytes(quantity: str) -> int:
    assert quantity.endswith("Gi")
    return int(quantity.removesuffix("Gi")) * 2**30


class TestWorkloads:
    @pytest.mark.parametrize("workload", WHOLE, ids=named)
    def test_probes_and_ports(self, workload: dict[str, Any]) -> None:
        role, only = workload["metadata"]["name"], container(workload)
        assert only["ports"] == [{"name": "http", "containerPort": PORTS[role]}]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert only[probe]["httpGet"]["port"] == "http"
            assert only[probe]["httpGet"]["path"] in paths(role)
        assert only["livenessProbe"]["httpGet"]["path"] == "/livez"

    @pytest.mark.parametrize("workload", workloads(), ids=named)
    def test_command_and_settings(self, workload: dict[str, Any]) -> None:
        role, only = workload["metadata"]["name"], container(workload)
        if "args" in only:
            assert only["args"][0] == COMMANDS[role]
            check_command(only["args"])
        settings = settings_from(environment(workload))
        for other in ("retriever", "scorer"):
            for url in getattr(settings, other).url:
                assert url == f"http://{other}:{PORTS[other]}"

    @pytest.mark.parametrize("workload", WHOLE, ids=named)
    def test_it_runs_as_make_images_ran_it(self, workload: dict[str, Any]) -> None:
        pod, only = workload["spec"]["template"]["spec"], container(workload)
        assert role_of(only["image"]) == workload["metadata"]["name"]
        assert only["image"].removeprefix("boundarymorph-") in TARGETS
        assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 10001
        assert only["securityContext"]["readOnlyRootFilesystem"] is True
        mounts = {mount["mountPath"] for mount in only["volumeMounts"]}
        assert "/tmp" in mounts
        assert mounts <= {"/tmp", "/data", "/cache", "/weights"}
        assert ("/data" in mounts) == (workload["kind"] == "StatefulSet")
        settings = settings_from(
            {**stages()[only["image"].removeprefix("boundarymorph-")].env, **environment(workload)}
        )
        assert settings.keys
        longest = settings.drain_seconds + settings.grace_seconds + LAST_SECONDS
        assert longest + MARGIN_SECONDS <= pod["terminationGracePeriodSeconds"]

    @pytest.mark.parametrize("workload", WHOLE, ids=named)
    def test_settings_fit_the_memory(self, workload: dict[str, Any]) -> None:
        """By the arithmetic of docs/settings.md#memory; of the retriever, without the vectors of its open indexes."""
        pod, role = workload["spec"]["template"]["spec"], workload["metadata"]["name"]
        settings = settings_from(environment(workload))
        limits, threads = settings.limits, PARSING_THREADS
        if role == "retriever":
            threads += settings.search_threads + READ_THREADS + WRITE_THREADS
        most = 300e6 + 3 * limits.bytes_in_flight + threads * 200 * 2**20
        assert most <= in_bytes(container(workload)["resources"]["limits"]["memory"])
        (folder,) = (volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "tmp")
        assert limits.bytes_in_flight <= in_bytes(folder["sizeLimit"])  # strict uploads are kept there

    @pytest.mark.parametrize("workload", WHOLE, ids=named)
    def test_replicas_are_left_to_the_autoscaler(self, workload: dict[str, Any]) -> None:
        scaled = {
            each["spec"]["scaleTargetRef"]["name"] for each in resources() if "scaleTargetRef" in each.get("spec", {})
        }
        assert ("replicas" in workload["spec"]) == (workload["metadata"]["name"] not in scaled)


def test_services_and_budgets() -> None:
    for role in COMMANDS:
        by_kind = {each["kind"]: each for each in documents(KUBERNETES / f"base/{role}.yaml")}
        (service_port,) = by_kind["Service"]["spec"]["ports"]
        assert service_port == {"name": "http", "port": PORTS[role], "targetPort": "http"}
        selector = {"app.kubernetes.io/component": role}
        workload = by_kind.get("Deployment") or by_kind["StatefulSet"]
        assert by_kind["Service"]["spec"]["selector"] == selector
        assert workload["spec"]["template"]["metadata"]["labels"] == selector
        assert workload["spec"]["selector"]["matchLabels"] == selector
        assert by_kind["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == selector


def test_network_policies_open_what_is_there() -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in resources() if each["kind"] == "NetworkPolicy"}
    for role in COMMANDS:
        assert [rule["ports"] for rule in policies[role]["ingress"]] == [[{"port": PORTS[role]}]]
    for spec in policies.values():
        for rule in spec.get("egress", []):
            assert {port["port"] for port in rule["ports"]} <= {*PORTS.values(), *ELSEWHERE}
    assert "ingress" not in policies["nothing-else"]


def test_redis_has_a_password_and_is_for_gateways_alone() -> None:
    (redis,) = (each for each in resources() if each["kind"] == "Redis")
    where, spec = redis["metadata"]["namespace"], redis["spec"]
    assert spec["kubernetesConfig"]["redisSecret"] == {"name": "redis", "key": "password"}
    assert spec["podSecurityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    policies = [each for each in resources() if each["kind"] == "NetworkPolicy"]
    (policy,) = (each["spec"] for each in policies if each["metadata"].get("namespace") == where)
    assert policy["podSelector"] == {} and policy["policyTypes"] == ["Ingress", "Egress"] and "egress" not in policy
    (rule,) = policy["ingress"]
    (origin,) = rule["from"]
    ours = {"kubernetes.io/metadata.name": kustomizations()[KUBERNETES / "base"]["namespace"]}
    assert origin["namespaceSelector"]["matchLabels"] == ours
    gateway = documents(KUBERNETES / "base/gateway.yaml")[0]["spec"]["template"]["metadata"]["labels"]
    assert origin["podSelector"]["matchLabels"] == gateway
    assert rule["ports"] == [{"port": 6379}]


def test_autoscaling_asks_for_metrics_that_are_there() -> None:
    scaled = [each for each in resources() if each["metadata"]["name"] == "scorer" and "scaleTargetRef" in each["spec"]]
    assert {each["kind"] for each in scaled} == {"ScaledObject", "HorizontalPodAutoscaler"}
    for each in scaled:
        asked = set(re.findall(r"boundarymorph_\w+", str(each["spec"])))
        assert asked == {"boundarymorph_scorer_queue_tokens"}
        assert asked <= set(REGISTRY._names_to_collectors)


def test_metrics_are_scraped_where_they_are() -> None:
    (monitor,) = (each["spec"] for each in resources() if each["kind"] == "ServiceMonitor")
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] == "http"
    for role in COMMANDS:
        assert endpoint["path"] in paths(role)
    (label,) = kustomizations()[KUBERNETES / "base"]["labels"]
    assert monitor["selector"]["matchLabels"] == label["pairs"]


def test_alerts_are_those_of_prometheus() -> None:
    (rule,) = (each["spec"] for each in resources() if each["kind"] == "PrometheusRule")
    (alerts,) = documents(KUBERNETES.parent / "prometheus/alerts.yaml")
    assert rule == alerts


def test_milvus_is_asked_where_its_operator_puts_it() -> None:
    (milvus,) = (each["metadata"] for each in resources() if each["kind"] == "Milvus")
    (patch,) = documents(KUBERNETES / "components/milvus/retriever.yaml")
    assert (
        environment(patch)["BOUNDARYMORPH_STORES__MILVUS__URL"]
        == f"milvus://{milvus['name']}-milvus.{milvus['namespace']}:19530"
    )


def test_images_of_the_overlays() -> None:
    for folder, kustomization in kustomizations().items():
        for image in kustomization.get("images", []):
            assert image["name"].removeprefix("boundarymorph-") in TARGETS
            assert image["newName"].rpartition("boundarymorph-")[2] in TARGETS
            if folder.parent.name == "overlays":
                assert image["newTag"] == __version__
