"""`boundarymorph retriever check`, over the retriever of clients/examples and over ours."""

import importlib.util
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI
from typer.testing import CliRunner

from boundarymorph.cli.main import app as commands
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.system.service import REPOSITORY, boundarymorph, retriever, service


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=(port := free_port()), log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + PATIENCE
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


class Forgetful(dict[str, object]):
    """Holds what it does not find."""

    def __contains__(self, key: object) -> bool:
        return False


@pytest.fixture
def example() -> ModuleType:
    path = REPOSITORY / "clients" / "examples" / "retriever_over_a_dict.py"
    spec = importlib.util.spec_from_file_location("retriever_over_a_dict", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def checked(url: str, index: str = "notes") -> tuple[int, str]:
    done = CliRunner().invoke(commands, ["retriever", "check", url, "--index", index, "--query", "a violin of 1600"])
    return done.exit_code, done.output


def test_the_example_is_right_and_a_service_selects_from_it(example: ModuleType, tmp_path: Path) -> None:
    with serving(example.app) as url:
        code, said = checked(url)
        assert (code, said.count("ok  ")) == (0, 12), said
        with service(tmp_path / "data", "--retriever-url", url) as running:
            request = {"query": "a violin", "index": "notes", "budget": 2, "k": 2, "return_documents": True}
            answer = running.select(**request, filter={"year": 1600})
            assert [each["text"] for each in answer["documents"]] == ["A violin has four strings."]
            assert len(running.select(**request)["documents"]) == 2


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("YEARS", {}, ""),
        ("INDEXES", {"notes": {}}, "1 to depth documents"),
        (
            "INDEXES",
            {"notes": Forgetful(tram={"id": "tram", "text": "", "title": None, "metadata": {}})},
            "can be read",
        ),
        ("encoded", lambda texts: np.ones((len(texts), 4), np.float32), "unit length"),
        ("problem", lambda status, kind, detail: {"detail": detail}, "unknown index"),
    ],
)
def test_a_fault_of_the_retriever_is_described(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, wrong: object, said: str
) -> None:
    monkeypatch.setattr(example, name, wrong)
    with serving(example.app) as url:
        code, output = checked(url)
    assert (code == 1) is bool(said), output
    assert said in output


def test_nobody_is_there() -> None:
    code, output = checked(f"http://127.0.0.1:{free_port()}")
    assert code == 1 and "wrong" in output


def test_ours_is_right(tmp_path: Path) -> None:
    lines = tmp_path / "notes.ndjson"
    lines.write_text('{"id": "a", "text": "A violin.", "metadata": {"year": 1600}}\n{"id": "b", "text": "A tram."}\n')
    assert boundarymorph("index", "build", "notes", "--from", str(lines), data=tmp_path / "data").returncode == 0
    with retriever(tmp_path / "data") as running:
        code, output = checked(running.url)
    assert (code, output.count("ok  ")) == (0, 12), output
