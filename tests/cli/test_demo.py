"""Test the demo: its corpus, and the whole command on a small corpus."""

from collections.abc import Iterator
from contextlib import nullcontext
from io import StringIO
from pathlib import Path

import pytest

from boundarymorph.cli import demo
from boundarymorph.cli.common import new_console
from boundarymorph.retrieval.document import Document
from boundarymorph.settings import Settings


def test_demo_corpus_contains_docstrings_of_the_standard_library() -> None:
    documents = list(demo.docstrings())
    assert 5_000 < len(documents) < 9_000
    by_id = {document.id: document for document in documents}
    assert len(by_id) == len(documents)
    assert {"math.sqrt", "builtins.str.split", "pathlib.Path.glob", "asyncio.tasks.gather"} <= by_id.keys()
    assert by_id["json.loads"].metadata == {"kind": "function", "module": "json"}
    assert by_id["zipfile.ZipFile"].metadata["kind"] == "class"
    for document in documents:
        assert document.text.strip() and document.title == document.id
        assert len(document.id) <= 512
    assert not any(id.startswith(("test.", "idlelib.", "site-packages", "lib2to3.", "__")) for id in by_id)


@pytest.mark.servers
def test_second_demo_embeds_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def few() -> Iterator[Document]:
        for number in range(40):
            yield Document(f"pack.f{number}", f"Return a time zone, {number} hours from UTC.", f"pack.f{number}")

    monkeypatch.setattr(demo, "docstrings", few)
    settings = Settings(data_directory=tmp_path, host="::", port=8765)
    with demo.service(tmp_path) as client:
        monkeypatch.setattr(demo, "service", lambda data_directory: nullcontext(client))
        for outcome in ("40 added", "40 unchanged"):
            screen = StringIO()
            demo.run(new_console(file=screen, width=120), settings, "work with time zones", budget=4, k=8)
            shown = screen.getvalue()
            assert f"40 documents: {outcome}" in shown
            assert "POST http://127.0.0.1:" in shown
            assert f"`boundarymorph serve --data-directory {tmp_path}`, and http://[::1]:8765/playground" in shown
            assert "8 documents: " in shown and " of 4 cross-encoder calls" in shown
