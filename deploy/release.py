"""Check the packages in dist/, try them on each Python, and write notes: `make release`.

With `--tag v1.2.3` the packages must have that version, and CHANGELOG.md a section of it. The program publishes
nothing: .github/workflows/release.yml does that.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECTS = (".", "service/boundarymorph_evaluation", "service/boundarymorph_stores", "clients/python", "models")


class NotReady(Exception):
    """The release lacks something."""


def version() -> str:
    """Return the version of the service, which all packages but the models have.

    Raises:
        NotReady: The versions of the packages differ.
    """
    found: dict[str, str] = {
        folder: tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]["version"]
        for folder in PROJECTS
        if folder != "models"
    }
    found["clients/typescript"] = json.loads((ROOT / "clients/typescript/package.json").read_text())["version"]
    if len(set(found.values())) > 1:
        raise NotReady(f"the packages have different versions: {found}; give them the same")
    return found["."]


def notes(changelog: str, version: str, *, tagged: bool) -> str:
    """Return the section of a version in CHANGELOG.md.

    Without a tag the section may still be called "Unreleased".

    Raises:
        NotReady: There is no such section.
    """
    sections: dict[str, str] = dict(re.findall(r"(?ms)^## (\S+)[^\n]*\n(.*?)(?=^## |\Z)", changelog))
    found = sections.get(version) if tagged else sections.get("Unreleased", sections.get(version))
    if not (found and found.strip()):
        raise NotReady(f"CHANGELOG.md has no section '## {version}': rename 'Unreleased', and add the date")
    return found.strip() + "\n"


def packages(dist: Path, version: str) -> list[Path]:
    """Return the wheels and the npm package.

    Raises:
        NotReady: A package is missing, or there are others.
    """
    models = tomllib.loads((ROOT / "models" / "pyproject.toml").read_text())["project"]["version"]
    names = ("", "_client", "_evaluation", "_stores")
    expected = {f"boundarymorph{name}-{version}-py3-none-any.whl" for name in names}
    expected |= {f"boundarymorph_models-{models}-py3-none-any.whl", f"boundarymorph-client-{version}.tgz"}
    found = {path.name for path in dist.iterdir() if path.suffix in {".whl", ".tgz"}}
    if found != expected:
        raise NotReady(
            f"dist/ lacks {sorted(expected - found)} and has {sorted(found - expected)} in excess; remove "
            "the old files, and run make release again"
        )
    return [dist / name for name in sorted(expected)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", default="", help="such as v1.2.3")
    parser.add_argument("--twine", default="twine", help="the command")
    arguments = parser.parse_args()
    try:
        now = version()
        if arguments.tag and arguments.tag != f"v{now}":
            raise NotReady(f"the tag is {arguments.tag}, and the version of the packages {now}")
        text = notes((ROOT / "CHANGELOG.md").read_text(), now, tagged=bool(arguments.tag))
        found = packages(ROOT / "dist", now)
    except NotReady as error:
        sys.exit(f"not ready for a release: {error}")
    wheels = [str(path) for path in found if path.suffix == ".whl"]
    subprocess.run([arguments.twine, "check", "--strict", *wheels], check=True)
    subprocess.run([sys.executable, "-m", "tests.deploy.wheels", "--installer", "pip"], check=True, cwd=ROOT)
    target = ROOT / "build" / "release-notes.md"
    target.parent.mkdir(exist_ok=True)
    target.write_text(text)
    print(f"{len(found)} packages of version {now} are ready in dist/; the notes are in build/release-notes.md")


if __name__ == "__main__":
    main()
