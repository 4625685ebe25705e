"""Are deploy/ray and the overlays of deploy/kubernetes, as kubectl renders them, valid by the schemas of their kinds?

    python -m tests.deploy.rendered [FILE ...]

FILE: CustomResourceDefinitions, such as those of your cluster: `kubectl get crd -o yaml > crds.yaml`.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from tests.deploy.manifests import KUBERNETES, Manifest, Schemas, documents, schemas, validate


def main() -> None:
    if shutil.which("kubectl") is None:
        sys.exit("kubectl, which has kustomize built in, is not in the PATH")
    custom = schemas(map(Path, sys.argv[1:]))
    for overlay in [*sorted((KUBERNETES / "overlays").iterdir()), KUBERNETES / "operators"]:
        text = subprocess.run(["kubectl", "kustomize", str(overlay)], check=True, stdout=subprocess.PIPE).stdout
        check(overlay.name, list(yaml.safe_load_all(text)), custom)
    check("ray", documents(KUBERNETES.parent / "ray/rayservice.yaml"), custom)


def check(name: str, manifests: list[Manifest], custom: Schemas) -> None:
    """Print what is valid, and what there is no schema for. Raises ValidationError."""
    unknown = [manifest["kind"] for manifest in manifests if not validate(manifest, custom)]
    print(
        f"{name}: {len(manifests) - len(unknown)} manifests are valid",
        *(f"no schema for {kind}" for kind in unknown),
        sep="; ",
    )


if __name__ == "__main__":
    main()
