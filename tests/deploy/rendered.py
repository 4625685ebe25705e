"""Every overlay of deploy/kubernetes as kubectl renders it, validated against the schemas of Kubernetes and of CRDs.

    python -m tests.deploy.rendered [FILE ...]

FILE: CustomResourceDefinitions, such as those of your cluster: `kubectl get crd -o yaml > crds.yaml`.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from tests.deploy.manifests import KUBERNETES, schemas, validate


def main() -> None:
    if shutil.which("kubectl") is None:
        sys.exit("kubectl, which has kustomize built in, is not in the PATH")
    custom = schemas(map(Path, sys.argv[1:]))
    for overlay in sorted((KUBERNETES / "overlays").iterdir()):
        text = subprocess.run(["kubectl", "kustomize", str(overlay)], check=True, stdout=subprocess.PIPE).stdout
        manifests = list(yaml.safe_load_all(text))
        unknown = [manifest["kind"] for manifest in manifests if not validate(manifest, custom)]
        without = f", but {', '.join(unknown)}: no schema for them" if unknown else ""
        print(f"{overlay.name}: {len(manifests)} manifests are valid{without}")


if __name__ == "__main__":
    main()
