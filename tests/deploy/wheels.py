"""Install the wheels of dist/ as a new user does, with `pip` and `uv`, on every Python.

`make check-wheels` tries the library alone, with a first selection and the README's first program. Then it tries the
service, and the README's way to a selection from own documents.
"""

import argparse
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import orjson

from tests.documented import check_printed

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
INSTALLERS = ("uv", "pip")
TEXTS = (
    "Waves broke over the pier all night.",
    "The harbour master counted the boats after the gale.",
    "Bread rises best in a warm kitchen.",
    "A barometer falls before a storm comes in from the sea.",
    "Trains were late on Monday.",
    "The lifeboat crew went out in winds of seventy knots.",
)
LIBRARY = """
import sys
from boundarymorph import Selector
texts = [f"text {i} about the sea and number {i % 7}" for i in range(1_000)]
chosen = Selector(lambda query, texts: [0.5] * len(texts)).select("the sea", texts, budget=25, k=10)
assert len(chosen.documents) == 10
assert not {"faiss", "fastapi", "onnxruntime", "redis", "scipy"} & set(sys.modules)
"""
README = (Path(__file__).parents[2] / "README.md").read_text()
PROGRAM, PRINTED = re.findall(r"(?ms)^```python\n(.*?)^```\n+```text\n(.*?)^```", README)[0]
CLIENT = "import boundarymorph_client as c; print(c.__version__, c.Client())"
QUIET = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_QUIET": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", default=[], help="instead of those that are found; repeatable")
    parser.add_argument("--installer", choices=INSTALLERS, action="append", default=[], help="instead of both")
    arguments = parser.parse_args()
    wheels = sorted(map(str, Path("dist").resolve().glob("boundarymorph*.whl")))
    assert len(wheels) == 5, f"dist/ has {wheels}; make wheels"
    with tempfile.TemporaryDirectory() as folder:
        _run([sys.executable, "-m", "venv", f"{folder}/uv"], Path(folder))
        _run([f"{folder}/uv/bin/pip", "install", "uv"], Path(folder))
        found = arguments.python or list(pythons())
        for installer, python in itertools.product(arguments.installer or INSTALLERS, found):
            newcomer(Path(folder) / "new", python, None if installer == "pip" else f"{folder}/uv/bin/uv", wheels)
            print(f"{python}, by {installer}: every step succeeded", flush=True)


def pythons() -> Iterator[str]:
    """Yield an interpreter of each of the VERSIONS, from the PATH or from `pyenv`."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in VERSIONS:
        candidates = [shutil.which(f"python{version}"), *sorted(map(str, pyenv.glob(f"{version}.*/bin/python")))]
        # A shim of pyenv may not run.
        runs = [
            each for each in candidates if each and not subprocess.run([each, "-V"], capture_output=True).returncode
        ]
        if runs:
            yield runs[0]
        else:
            print(f"not tested, since it is not installed: Python {version}")


def newcomer(folder: Path, python: str, uv: str | None, wheels: list[str]) -> None:
    """Install and run everything in a fresh environment.

    Raises:
        AssertionError: A step has failed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    lines = (orjson.dumps({"id": str(number), "text": text}) for number, text in enumerate(TEXTS))
    (folder / "docs.jsonl").write_bytes(b"\n".join(lines))
    venv = folder / "env"
    program = str(venv / "bin" / "boundarymorph")
    made = str(venv / "bin" / "python")
    if uv is None:
        make, install = [python, "-m", "venv", str(venv)], [str(venv / "bin" / "pip"), "install"]
    else:
        make, install = [uv, "venv", "--python", python, str(venv)], [uv, "pip", "install", "--python", made]
    (plain,) = (wheel for wheel in wheels if Path(wheel).name.startswith("boundarymorph-0"))  # the plain wheel
    found = ["--find-links", str(Path(plain).parent)]
    for command in (make, [*install, plain], [made, "-I", "-c", LIBRARY]):
        _run(command, folder)
    check_printed(_run([made, "-I", "-c", PROGRAM], folder), PRINTED)
    for command in (
        [*install, *found, "boundarymorph[models,evaluation,pgvector]", "boundarymorph-client"],
        [program, "index", "build", "mine", "--from", "docs.jsonl"],
        [made, "-I", "-c", CLIENT],
    ):
        _run(command, folder)
    output = _run([program, "select", "mine", "storms at sea", "-B", "4", "-k", "3"], folder)
    assert "3 documents" in output and "4 of 4 cross-encoder calls" in output, output


def _run(command: list[str], folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | QUIET
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


if __name__ == "__main__":
    main()
