"""The order of the code: small files, short functions, no circles of imports."""

from __future__ import annotations

import ast
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import grimp

import boundarymorph

PACKAGE = Path(boundarymorph.__file__).parent
PROJECT = PACKAGE.parents[1]
BESIDE = ("boundarymorph_evaluation", "boundarymorph_stores")
FILES = [
    path
    for found in (PACKAGE, *(PROJECT / "service" / name / "src" for name in BESIDE))
    for path in found.rglob("*.py")
]
LINES_OF_A_FILE, LINES_OF_A_FUNCTION, PARAMETERS = 600, 80, 9
AT_THE_ROOT = {"__init__.py", "database.py", "errors.py", "library.py", "notices.py", "reading.py"}


def test_files_are_small() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in FILES}
    assert [path.name for path, length in lengths.items() if length > LINES_OF_A_FILE] == []


def test_functions_are_short() -> None:
    long = [
        f"{path.name}: {node.name}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= LINES_OF_A_FUNCTION
    ]
    assert long == []


def test_constructors_of_selections_have_few_parameters() -> None:
    many = [
        f"{path.name}: {node.name}"
        for folder in ("selection", "selector", "api")
        for path in (PACKAGE / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and node.name == "__init__"
        and len(node.args.args) + len(node.args.kwonlyargs) - 1 > PARAMETERS
    ]
    assert many == []


def test_no_circle_between_files_for_typing_either() -> None:
    graph = grimp.build_graph("boundarymorph", *BESIDE, exclude_type_checking_imports=False)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_context_variables_tell_nothing_about_requests() -> None:
    """They are for traces, and for threads whose results nobody awaits."""
    holding = {path.relative_to(PACKAGE.parent).as_posix() for path in FILES if "ContextVar" in path.read_text()}
    assert holding == {"boundarymorph/telemetry/tracing.py", "boundarymorph/inference/concurrency.py"}


def test_everything_has_its_package() -> None:
    assert {path.name for path in PACKAGE.glob("*.py")} == AT_THE_ROOT


def test_packages_beside_the_service_have_its_version() -> None:
    def project(folder: Path) -> dict[str, Any]:
        return tomllib.loads((folder / "pyproject.toml").read_text())["project"]  # type: ignore[no-any-return]

    service = project(PROJECT)
    for name in BESIDE:
        package = project(PROJECT / "service" / name)
        assert package["version"] == service["version"]
        assert f"boundarymorph[service]=={service['version']}" in package["dependencies"]
    pinned = [each for extra in service["optional-dependencies"].values() for each in extra if "==" in each]
    assert {each.partition("==")[2] for each in pinned if not each.startswith("boundarymorph-models")} == {
        service["version"]
    }
