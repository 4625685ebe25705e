"""Which tests a worker of pytest-xdist takes, and in which order."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from boundarymorph.inference import models
from load_tests import processes
from tests import weights
from tests.stateful import profile as profile  # registers its profiles before the command line is read
from tests.system import forked

TESTS = Path(__file__).parent
TOGETHER = ("faults",)  # packages whose files share what is slow to start
os.environ["BOUNDARYMORPH_METRICS_SECONDS"] = "0"  # tests look at once
os.environ["BOUNDARYMORPH_MEMORY__ENABLED"] = "false"  # most expect one answer to a request, whatever came before
os.environ["BOUNDARYMORPH_RELEVANCE"] = "scorer"  # most know the best set by the scores that they serve
# Packages and files that `make test` leaves to `make test-all`, beside the tests with the marker.
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
    "load_tests",
    "retrieval/test_encoders_transformer.py",
    "retrieval/test_frameworks.py",
    "scoring/judge/test_openai_sdk.py",
    "system/test_belongings.py",
    "system/test_calibrate.py",
    "system/test_exit.py",
    "system/test_index_metrics.py",
    "system/test_kill.py",
    "system/test_leavers.py",
    "system/test_neighbours.py",
    "system/test_scorer.py",
    "system/test_soak_index.py",
    "system/test_uploads.py",
    "telemetry/test_workers.py",
    "web/test_browser.py",
)
NOT_SLOW = "not slow"  # what `make test` asks for
LONGEST_FIRST = (  # packages and files
    "retrieval/test_collections.py",
    "retrieval/test_stores_service.py",
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
    """In the place of the embedded ones; a fixture, for the cost of those shows in every test that opens them."""
    monkeypatch.setenv(weights.VARIABLE, str(weights.written()))
    monkeypatch.setattr(models, "_embedded", weights.tiny)
    # And of the servers that benchmarks start, which are forked as those of other tests are.
    monkeypatch.setattr(processes, "start", _forked)


def _forked(arguments: Sequence[str], environment: Mapping[str, str]) -> forked.Forked:
    return forked.start(arguments, output=2, environment=environment, directory=Path.cwd())


class ByFile(LoadFileScheduling):  # type: ignore[misc]
    """A file is one worker's, and so is a package in TOGETHER."""

    def _split_scope(self, nodeid: str) -> str:
        file = PurePosixPath(nodeid.partition("::")[0])
        return file.parts[1] if file.parts[1] in TOGETHER else str(file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> ByFile:
    return ByFile(config, log)


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until everything is imported, which takes a sixth less without
    if hasattr(config, "workerinput") and config.args == config.getini("testpaths"):
        config.args = _from(int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"])


def _from(worker: int, workers: int) -> list[str]:
    """All tests, from another place on for each worker, which finds what the others have rewritten of assertions."""
    parts = sorted(map(str, (*TESTS.glob("[a-z]*/"), *TESTS.glob("test_*.py"))))
    first = len(parts) * worker // workers
    return parts[first:] + parts[:first]


def _is_slow(path: Path) -> bool:
    here = path.relative_to(TESTS).as_posix()
    return here in SLOW or here.partition("/")[0] in SLOW


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import what is not wanted: each worker would, and the libraries of slow tests take long to import."""
    wanted = config.option.markexpr != NOT_SLOW or not collection_path.is_relative_to(TESTS)
    return None if wanted or not _is_slow(collection_path) else True


@pytest.hookimpl(tryfirst=True)  # before those that are not wanted are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins, so that no worker ends late."""
    for item in items:
        if _is_slow(item.path):
            item.add_marker("slow")
    items.sort(key=_turn)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def _turn(item: pytest.Item) -> tuple[int, Path]:
    here = item.path.relative_to(TESTS)
    places = (n for n, first in enumerate(LONGEST_FIRST) if first in (here.as_posix(), here.parts[0]))
    return next(places, len(LONGEST_FIRST)), item.path
