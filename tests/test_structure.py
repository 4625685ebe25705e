"""Test the structure of the code: small files, short functions, no circular imports."""

import ast
import re
import tomllib
from collections.abc import Iterator
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
LINES_OF_A_FILE, LINES_OF_A_FUNCTION, PARAMETERS, FIELDS = 600, 80, 9, 8
OF_SELECTIONS = ("selection", "selector", "api")
AT_THE_ROOT = {"__init__.py", "database.py", "errors.py", "library.py", "notices.py", "reading.py"}


def test_source_files_are_short() -> None:
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


def nodes(*folders: str) -> Iterator[tuple[Path, ast.AST]]:
    """Yield the syntax nodes of the files in these folders of the package."""
    for folder in folders:
        for path in (PACKAGE / folder).rglob("*.py"):
            yield from ((path, node) for node in ast.walk(ast.parse(path.read_text())))


def test_selection_constructors_have_few_parameters() -> None:
    many = [
        f"{path.name}: {node.name}"
        for path, node in nodes(*OF_SELECTIONS)
        if isinstance(node, ast.FunctionDef)
        and node.name == "__init__"
        and len(node.args.args) + len(node.args.kwonlyargs) - 1 > PARAMETERS
    ]
    assert many == []


def test_selection_dataclasses_have_few_fields() -> None:
    many = [
        f"{path.name}: {node.name}"
        for path, node in nodes(*OF_SELECTIONS)
        if isinstance(node, ast.ClassDef)
        and any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
        and sum(isinstance(each, ast.AnnAssign) for each in node.body) > FIELDS
    ]
    assert many == ["result.py: Progress", "result.py: SelectionResult"]


def options_in_methods(source: str) -> Iterator[str]:
    """Yield the optional parameters of classes that a method tests, except in constructors."""
    for found in (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)):
        methods = [node for node in found.body if isinstance(node, ast.FunctionDef)]
        made = [each for method in methods if method.name == "__init__" for each in ast.walk(method.args)]
        declared = {ast.unparse(node.target): node.annotation for node in found.body if isinstance(node, ast.AnnAssign)}
        declared |= {node.arg: node.annotation for node in made if isinstance(node, ast.arg) and node.annotation}
        options = {name for name, kind in declared.items() if re.search(r"\bbool\b|None|Literal", ast.unparse(kind))}
        options -= {method.name for method in methods}  # a property may have the name of a parameter
        for method in (method for method in methods if not method.name.startswith("__")):
            tests = [node.test for node in ast.walk(method) if isinstance(node, ast.If | ast.IfExp | ast.While)]
            tests += [node for node in ast.walk(method) if isinstance(node, ast.BoolOp)]
            seen = {ast.unparse(node) for test in tests for node in ast.walk(test)}
            tested = {name for name in options if {f"self.{name}", f"self._{name}"} & seen}
            yield from (f"{found.name}.{method.name}: {name}" for name in sorted(tested))


def test_session_methods_do_not_branch_on_options() -> None:
    switched = "class A:\n    deep: bool\n    def find(self):\n        return 1 if self.deep else 0"
    assert list(options_in_methods(switched)) == ["A.find: deep"]
    for name in ("session", "boundary", "stop", "diversity", "outlook"):
        assert list(options_in_methods((PACKAGE / "selection" / f"{name}.py").read_text())) == []


def test_selection_modules_have_no_ignored_types() -> None:
    for folder in OF_SELECTIONS:
        assert [path.name for path in (PACKAGE / folder).rglob("*.py") if "type: ignore" in path.read_text()] == []


def test_code_never_checks_instances_of_its_protocols() -> None:
    classes = [node for _, node in nodes("") if isinstance(node, ast.ClassDef)]
    protocols = {node.name for node in classes if any("Protocol" in ast.unparse(base) for base in node.bases)}
    assert len(protocols) > 20
    asking = [
        f"{path.name}: {ast.unparse(node)}"
        for path, node in nodes("")
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("isinstance", "issubclass")
        and protocols & {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
    ]
    assert asking == []


def test_imports_for_typing_have_no_cycles() -> None:
    graph = grimp.build_graph("boundarymorph", *BESIDE, exclude_type_checking_imports=False)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_context_variables_are_only_for_traces_and_abandoned_threads() -> None:
    holding = {path.relative_to(PACKAGE.parent).as_posix() for path in FILES if "ContextVar" in path.read_text()}
    assert holding == {"boundarymorph/telemetry/tracing.py", "boundarymorph/inference/concurrency.py"}


def test_package_root_contains_only_known_modules() -> None:
    assert {path.name for path in PACKAGE.glob("*.py")} == AT_THE_ROOT


def test_workspace_packages_have_the_version_of_the_service() -> None:
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
