"""Distribute the tests among the workers of `pytest-xdist`, and order them."""

import gc
import os
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import typer.main
from xdist.scheduler import LoadFileScheduling

from boundarymorph.inference import models
from load_tests import processes
from tests import weights
from tests.stateful import profile as profile  # importing it registers profiles for the command line
from tests.system import forked

TESTS = Path(__file__).parent
TOGETHER = ("faults",)  # packages whose files share slow fixtures
os.environ["BOUNDARYMORPH_METRICS_SECONDS"] = "0"  # tests read metrics without a delay
os.environ["BOUNDARYMORPH_RELEVANCE"] = "scorer"  # most tests expect the best set by the scorer's scores
# Packages and files that only `make test-all` runs, beside the tests with the marker.
SLOW = (
    "cli/test_demo.py",
    "clients/test_components.py",
    "clients/test_filters.py",
    "clients/test_haystack.py",
    "clients/test_langchain.py",
    "clients/test_llamaindex.py",
    "deploy/test_ray.py",
    "faults",
    "fuzz",
    "library/test_light.py",
    "load_tests",
    "retrieval/test_encoders_transformer.py",
    "stores/test_frameworks.py",
    "scoring/chat/test_openai_sdk.py",
    "system/test_exit.py",
    "system/test_leavers.py",
    "system/test_neighbours.py",
    "system/test_scorer.py",
    "system/test_uploads.py",
    "test_memory.py",
    "web/test_browser.py",
)
NOT_SLOW = "not slow"  # the marker expression of `make test`
# Packages and files with slow imports. Only one worker collects and runs each of these groups.
SHARES = (
    ("inference", "retrieval/test_encoders_recipe.py", "scoring"),  # torch
    ("clients/test_encoding.py", "stores"),  # the clients of stores
    ("evaluation", "selection"),  # matplotlib, scipy.stats
    ("agents", "compatibility", "library", "web"),  # the protocol of tools, Playwright
)
OTHER_SHARES = pytest.StashKey[Sequence[str]]()  # the groups of other workers
LONGEST_FIRST = (  # packages and files
    "stores",
    "retrieval/test_blocks.py",
    "faults",
    "fuzz",
    "system",
    "telemetry",
    "scoring",
    "agents",
    "cli",
    "clients",
    "evaluation",
    "api",
    "retrieval",
)


@pytest.fixture
def tiny_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put tiny weights in place of the embedded ones, which take long to open."""
    monkeypatch.setenv(weights.VARIABLE, str(weights.written()))
    monkeypatch.setattr(models, "_embedded", weights.tiny)
    # This applies to servers that benchmarks start, too.
    monkeypatch.setattr(processes, "start", _forked)


def _forked(arguments: Sequence[str], environment: Mapping[str, str]) -> forked.Forked:
    return forked.start(arguments, output=2, environment=environment, directory=Path.cwd())


class ByFile(LoadFileScheduling):  # type: ignore[misc]
    """Give each file, and each package in TOGETHER, to one worker that has collected it."""

    def __init__(self, config: Any, log: Any) -> None:
        super().__init__(config, log)
        self._collected: dict[Any, set[str]] = {}

    def _split_scope(self, nodeid: str) -> str:
        file = PurePosixPath(nodeid.partition("::")[0])
        return file.parts[1] if file.parts[1] in TOGETHER else str(file)

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        self.registered_collections[node] = list(collection)
        self._collected[node] = set(map(self._split_scope, collection))

    def _check_nodes_have_same_collection(self) -> bool:
        """Return True, although the workers have collected different tests.

        The scheduler reads the tests of the first worker, so the tests of the others are added to these.
        """
        first, *others = self.registered_collections.values()
        had = set(first)
        first.extend(dict.fromkeys(nodeid for nodeid in chain(*others) if nodeid not in had))
        self.config.pluginmanager.get_plugin("session").testscollected = len(first)  # for the progress in percent
        return True

    def _assign_work_unit(self, node: Any) -> None:
        """Give a worker the tests that few others have first."""
        takers = {scope: [taker for taker, own in self._collected.items() if scope in own] for scope in self.workqueue}
        mine = [scope for scope in takers if node in takers[scope]]
        if not mine:
            node.shutdown()
            return
        self.workqueue.move_to_end(min(mine, key=lambda scope: len(takers[scope])), last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> ByFile:
    return ByFile(config, log)


def pytest_configure(config: pytest.Config) -> None:
    # Commands are made from functions once, not for each call, which would take a third of these tests' time.
    pytest.MonkeyPatch().setattr(typer.main, "get_command", cache(typer.main.get_command))
    gc.disable()  # imports are faster without the collector
    if hasattr(config, "workerinput") and config.args == config.getini("testpaths"):
        worker, workers = int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"]
        others = [paths for number, paths in enumerate(SHARES) if (number - worker) % workers]
        config.stash[OTHER_SHARES] = tuple(chain(*others))
        config.args = [part for part in _rotated_tests(worker, workers) if not _is_ignored(Path(part), config)]


def _rotated_tests(worker: int, workers: int) -> list[str]:
    """Return all tests, starting at another place for each worker.

    In this way a worker finds files whose assertions another worker has rewritten already.
    """
    parts = sorted(map(str, (*TESTS.glob("[a-z]*/"), *TESTS.glob("test_*.py"))))
    first = len(parts) * worker // workers
    return parts[first:] + parts[:first]


def _is_in(path: Path, parts: Sequence[str]) -> bool:
    here = path.relative_to(TESTS)
    return any(parent.as_posix() in parts for parent in (here, *here.parents))


def _is_ignored(path: Path, config: pytest.Config) -> bool:
    """Return whether a path is not imported, since it is slow or belongs to another worker."""
    slow = config.option.markexpr == NOT_SLOW and _is_in(path, SLOW)
    return slow or _is_in(path, config.stash.get(OTHER_SHARES, ()))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if collection_path.is_relative_to(TESTS) and _is_ignored(collection_path, config) else None


@pytest.hookimpl(tryfirst=True)  # before deselection
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the longest tests, so that no worker ends late."""
    for item in items:
        if _is_in(item.path, SLOW):
            item.add_marker("slow")
    items.sort(key=_turn)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def _turn(item: pytest.Item) -> tuple[int, Path]:
    here = item.path.relative_to(TESTS)
    places = (n for n, first in enumerate(LONGEST_FIRST) if first in (here.as_posix(), here.parts[0]))
    return next(places, len(LONGEST_FIRST)), item.path
