"""Write docker/locked, the images' packages with the hashes of their files: `make lock`.

Each file has the packages that its list in docker/requirements adds to the earlier lists, as `pip install
--require-hashes --no-deps` expects. Packages that are not in constraints.txt, such as those of CUDA, are left out. So
is torch, since PyPI, PyTorch's own index and a folder have different wheels of it.
"""

import argparse
import re
import shlex
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCKED, REQUIREMENTS, CONSTRAINTS = ROOT / "docker/locked", ROOT / "docker/requirements", ROOT / "constraints.txt"
AFTER = {
    "common": (),
    "embedded": ("common",),
    "retriever-cpu": ("common", "embedded"),
    "scorer": ("common", "embedded"),
}
UNHASHED = {"torch"}
HEAD = "# Written by `make lock` from docker/requirements and constraints.txt.\n"


def locked(text: str) -> dict[str, str]:
    """Return each `NAME==VERSION` of a file with its hashes."""
    entries = re.findall(r"^([\w.-]+==[^\s;]+)(.*?(?:\\\n.*?)*)$", text, re.MULTILINE)
    return {pinned: pinned + rest for pinned, rest in entries}


def constrained() -> set[str]:
    """Return the `NAME==VERSION` lines of constraints.txt, with names normalised as pip does."""
    return {plain(line) for line in CONSTRAINTS.read_text().split()}


def plain(pinned: str) -> str:
    name, _, version = pinned.partition("==")
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}"


def write(uv: str) -> None:
    known = constrained()
    for name, before in AFTER.items():
        found = _compiled(uv, *(f"{each}.txt" for each in (*before, name)))
        earlier = {pinned for each in before for pinned in locked((LOCKED / f"{each}.txt").read_text())}
        kept = {
            pinned: entry
            for pinned, entry in found.items()
            if plain(pinned) in known and pinned not in earlier and pinned.partition("==")[0] not in UNHASHED
        }
        (LOCKED / f"{name}.txt").write_text(HEAD + "\n".join(kept[pinned] for pinned in sorted(kept)) + "\n")
        print(f"{name}: {len(kept)} packages")


def _compiled(uv: str, *arguments: str) -> dict[str, str]:
    options = shlex.split("--generate-hashes --no-annotate --no-header --python-version 3.11 --python-platform linux")
    command = [*shlex.split(uv), "pip", "compile", "--quiet", *options, "--constraint", str(CONSTRAINTS), *arguments]
    told = subprocess.run(command, cwd=REQUIREMENTS, check=True, stdout=subprocess.PIPE, text=True)
    return locked(told.stdout)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uv", default="uv", help="the command")
    write(parser.parse_args().uv)
