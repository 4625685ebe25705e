"""The files of deploy/kubernetes, and how a manifest is validated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

Manifest = dict[str, Any]
Schemas = Mapping[tuple[str, str], Manifest]  # of custom resources, by apiVersion and kind
KUBERNETES = Path(__file__).parents[2] / "deploy/kubernetes"
VERSION = "1.34"


@cache
def documents(path: Path) -> list[Manifest]:
    """Of a file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def kustomizations() -> dict[Path, Manifest]:
    """Each folder that kustomize reads, and what its kustomization.yaml says."""
    return {path.parent: documents(path)[0] for path in sorted(KUBERNETES.rglob("kustomization.yaml"))}


def resources() -> list[Manifest]:
    """All manifests that are whole, not patches of others."""
    listed = [folder / name for folder, found in kustomizations().items() for name in found.get("resources", [])]
    return [manifest for path in listed if path.is_file() for manifest in documents(path)]


def workloads() -> list[Manifest]:
    """Deployments and StatefulSets, patches of them included."""
    manifests = [manifest for path in sorted(KUBERNETES.rglob("*.yaml")) for manifest in documents(path)]
    return [manifest for manifest in manifests if manifest["kind"] in ("Deployment", "StatefulSet")]


def container(workload: Manifest) -> Manifest:
    """The only container of its pods."""
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def schemas(files: Iterable[Path]) -> Schemas:
    """Of the CustomResourceDefinitions in some files."""
    found: dict[tuple[str, str], Manifest] = {}
    for path in files:
        for definition in documents(path):
            for each in definition.get("items", [definition]):
                spec = each["spec"]
                for version in spec["versions"]:
                    kind = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
                    found[kind] = _closed(version["schema"]["openAPIV3Schema"])
    return found


def validate(manifest: Manifest, custom: Schemas) -> bool:
    """Whether there is a schema, which it then follows; fields that the schema does not have are mistakes.

    Raises the ValidationError of kubernetes_validate or of jsonschema.
    """
    if schema := custom.get((manifest["apiVersion"], manifest["kind"])):
        jsonschema.Draft202012Validator(schema).validate(manifest)
        return True
    try:
        kubernetes_validate.validate(manifest, VERSION, strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        return False
    return True


def _closed(schema: Manifest) -> Manifest:
    """A schema that takes no properties but its own, as the API server prunes all others."""
    closed = dict(schema)
    if properties := schema.get("properties"):
        closed["properties"] = {name: _closed(inner) for name, inner in properties.items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields") and "kind" not in properties:
            closed["additionalProperties"] = False
    if isinstance(more := schema.get("additionalProperties"), dict):
        closed["additionalProperties"] = _closed(more)
    if "items" in schema:
        closed["items"] = _closed(schema["items"])
    return closed
