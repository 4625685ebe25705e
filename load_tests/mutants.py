"""Find changes of one operator that no test sees: `make mutants MODULE=file TESTS="files"`.

A mutant is the module with one comparison, arithmetic or boolean operator, constant, or condition changed, drawn with
a seed. The tests run in a process of their own, with a fixed seed of Hypothesis and a time limit; a mutant that
exceeds it counts as killed, but is shown. The module is always put back.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from load_tests import report

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip


def mutants(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the change, and the source of every mutant of a module."""
    tree = ast.parse(source)
    decorators = [one for node in ast.walk(tree) for one in getattr(node, "decorator_list", ())]
    options = {part for decorator in decorators for part in ast.walk(decorator)}  # such as slots=True
    for number, node in enumerate(ast.walk(tree)):
        if node in options:
            continue
        for what, changed in _changes(node):
            whole = copy.deepcopy(tree)
            place = next(each for at, each in enumerate(ast.walk(whole)) if at == number)
            for name, value in changed.items():
                setattr(place, name, value)
            yield getattr(node, "lineno", 0), what, ast.unparse(ast.fix_missing_locations(whole))


def _changes(node: ast.AST) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield changed fields of a node, with a description."""
    if isinstance(node, ast.Compare):
        for at, operator in enumerate(node.ops):
            if other := OPERATORS.get(type(operator)):
                ops = [other() if place == at else each for place, each in enumerate(node.ops)]
                yield f"{ast.unparse(node)}: {other.__name__}", {"ops": ops}
    elif isinstance(node, ast.BoolOp | ast.BinOp | ast.AugAssign):
        if other := OPERATORS.get(type(node.op)):
            yield f"{ast.unparse(node)}: {other.__name__}", {"op": other()}
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield f"not ({ast.unparse(node.test)})", {"test": ast.UnaryOp(ast.Not(), node.test)}
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        value = not node.value if isinstance(node.value, bool) else node.value + 1
        yield f"{node.value} is {value}", {"value": value}


def verdict(tests: list[str], seconds: float) -> str:
    """Run the tests, and return "killed", "time-out" or "SURVIVES"."""
    command = [sys.executable, "-m", "pytest", "-n0", "-x", "-q", "--hypothesis-seed", "0", "-p", "no:cacheprovider"]
    # Without bytecode: a module that changes within a second would be taken from the cache.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run([*command, *tests], capture_output=True, timeout=seconds, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return "time-out"
    return "killed" if done.returncode else "SURVIVES"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", type=Path)
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--count", type=int, default=20, help="mutants that are drawn")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--seconds", type=float, default=120, help="for the tests of one mutant")
    given = parser.parse_args()
    source = given.module.read_text(encoding="utf-8")
    if verdict(given.tests, given.seconds) != "SURVIVES":
        raise SystemExit(f"the tests fail, or take more than {given.seconds:g} s, without any change")
    every = list(mutants(source))
    chosen = sorted(random.Random(given.seed).sample(range(len(every)), min(given.count, len(every))))
    alive = 0
    try:
        for line, what, mutated in (every[number] for number in chosen):
            given.module.write_text(mutated, encoding="utf-8")
            found = verdict(given.tests, given.seconds)
            alive += found == "SURVIVES"
            print(f"{found:9} {given.module}:{line}  {' '.join(what.split())[:100]}", flush=True)
    finally:
        given.module.write_text(source, encoding="utf-8")
    print(f"{alive} of {len(chosen)} mutants survive; the module has {len(every)}")


if __name__ == "__main__":
    report.run(main)
