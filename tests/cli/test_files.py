"""Test `index build` with folders, tables, and long texts."""

import gzip
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from boundarymorph.cli import files, index
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.local.catalog import LocalCatalog
from tests.cli.conftest import Outcome, Run
from tests.texts import KINDS

GUIDE = "---\nauthor: Ada\ntitle: 'The guide: first steps'\n---\n# Install\n\nRun setup.\n\n## Use\n\nRead on.\n"
LONG = "\n\n".join(f"Paragraph {number} says {'a little more ' * 20}and ends." for number in range(12))


Build = Callable[..., Outcome]


@pytest.fixture
def build(run: Run) -> Build:
    """Return a function that runs `index build docs --from SOURCE --encoder none`."""

    def build(source: str, *options: str) -> Outcome:
        return run("index", "build", "docs", "--from", source, "--encoder", "none", *options)

    return build


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "a folder"
    (root / "deep" / "er").mkdir(parents=True)
    (root / ".hidden").mkdir()
    for name, content in (
        ("guide.md", GUIDE.encode()),
        ("deep/er/notes.TXT", b"\xef\xbb\xbfNotes of a day."),
        ("deep/heading.markdown", b"Before.\n\n## A *heading* ##\n\nAfter."),
        ("long.md", f"# Long\n\n{LONG}".encode()),
        ("plain.txt", b"# no heading here"),
        ("picture.png", b"\x89PNG\0"),
        (".hidden/secret.md", b"# Secret"),
        (".draft.txt", b"Draft."),
    ):
        (root / name).write_bytes(content)
    return root


def stored() -> dict[str, Document]:
    """Return the documents of the index by id."""
    with closing(LocalCatalog(Path("data/indexes"))) as catalog:
        return {document.id: document for document in catalog.get("docs").page("", 1_000)}


def distinct() -> str | None:
    with closing(LocalCatalog(Path("data/indexes"))) as catalog:
        return catalog.artifacts("docs").read().distinct


def test_index_build_reads_the_texts_of_a_folder(build: Build, folder: Path) -> None:
    (folder / "page.HTML").write_bytes(b"<p>A page")
    (folder / "deep" / "other.html").write_bytes(b"<p>Another")
    outcome = build(str(folder))
    assert outcome.code == 0
    assert "files that are not read: 2 .html, 1 .png; convert them to one of .md, .markdown, .txt\n" in outcome.out
    documents = stored()
    titles = {id: document.title for id, document in documents.items() if "#" not in id}
    assert titles == {
        "guide.md": "The guide: first steps",
        "deep/er/notes.TXT": "notes",
        "deep/heading.markdown": "A *heading*",
        "long.md": "Long",
        "plain.txt": "plain",
    }
    assert documents["guide.md"].text == "# Install\n\nRun setup.\n\n## Use\n\nRead on."
    assert documents["deep/er/notes.TXT"].text == "Notes of a day."
    assert distinct() == "document"


def test_long_files_become_numbered_passages(build: Build, folder: Path) -> None:
    build(str(folder / "long.md"))
    passages = sorted(stored().values(), key=lambda document: document.metadata["passage"])
    numbers = range(2, len(passages) + 1)
    assert [document.id for document in passages] == ["long.md", *(f"long.md#{number}" for number in numbers)]
    assert [document.metadata["passage"] for document in passages] == [1, *numbers]
    assert all((document.title, document.metadata["document"]) == ("Long", "long.md") for document in passages)
    texts = [document.text for document in passages]
    assert len(texts) >= 3 and all(len(text) <= files.PASSAGE_CHARACTERS for text in texts)
    assert all(text.startswith(("# Long", "Paragraph ")) and text.endswith("and ends.") for text in texts)
    assert "\n\n".join(texts) == f"# Long\n\n{LONG}"
    assert distinct() == "document"
    build(str(folder / "long.md"), "--passages", "0")
    assert stored()["long.md"].text == f"# Long\n\n{LONG}" and not stored()["long.md"].metadata


@pytest.mark.parametrize("at_once", [1_000, 3])
def test_passages_of_a_new_length_replace_the_old_ones(
    build: Build, folder: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(files, "MAX_VALUES", at_once)  # values of a filter
    build(str(folder))
    before = stored()
    assert "0 added, 8 unchanged" in build(str(folder)).out
    assert stored() == before
    assert build(str(folder), "--passages", "100000").code == 0
    assert set(stored()) == {id for id in before if "#" not in id}
    build(str(folder), "--passages", "200")
    assert len(stored()) > len(before)


WRONG = {
    "binary.txt": (b"text\0more", "it has a NUL at byte 5"),
    "empty.md": (b" \n", "has nothing to read"),
    "latin.txt": (b"caf\xe9", "it is not in UTF-8: byte 4 is 0xe9"),
    "utf16.md": ("# Hello".encode("utf-16"), "is in UTF-16"),
    "zipped.txt": (gzip.compress(b"text")[:-6], "cannot be read"),
}


@pytest.mark.strangers
def test_unreadable_file_of_a_folder_is_named_and_skipped(build: Build, folder: Path) -> None:
    for name, (content, _) in WRONG.items():
        (folder / name).write_bytes(content)
    (folder / os.fsdecode(b"caf\xe9.md")).write_text("Coffee.")
    outcome = build(str(folder))
    assert outcome.code == index.SKIPPED and f"{len(WRONG) + 1} skipped" in outcome.out
    assert r"caf\udce9.md: its name is not in UTF-8" in outcome.out
    for name, (_, reason) in WRONG.items():
        (line,) = [line for line in outcome.out.splitlines() if name in line]
        assert line.strip().startswith("file ") and reason in line
    assert {id for id in stored() if "#" not in id} >= {"guide.md", "plain.txt"} and not WRONG.keys() & stored().keys()


@pytest.mark.parametrize("name", WRONG)
def test_strict_build_writes_nothing_if_a_file_is_unreadable(build: Build, folder: Path, name: str) -> None:
    (folder / name).write_bytes(WRONG[name][0])
    outcome = build(str(folder), "--strict")
    assert outcome.code == 1 and name in outcome.err and "nothing was written" in outcome.err
    assert not list(Path("data/indexes").glob("*/*.sqlite3"))


def test_folder_without_text_files_is_refused(build: Build, tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    outcome = build(".")
    assert outcome.code == 1 and ".md, .markdown, .txt" in outcome.err


@pytest.mark.parametrize(
    ("content", "options"),
    [
        ("id,text,title,year\n1,sea,Sea,2020\nb,land,,\n", ()),
        ("ID;Text;Title;year\r\n1;sea;Sea;2020\r\nb;land;;\r\n", ()),
        ("year\ttitle\t_id\ttext\n2020\tSea\t1\tsea\n\t\tb\tland\n", ()),
        ("key,body,name,year\n1,sea,Sea,2020\n\nb,land,,\n",
         ("--id-column", "key", "--text-column", "Body", "--title-column", "name")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["table.csv", "table.tsv.gz"])
def test_index_build_reads_tables_of_every_delimiter(
    build: Build, content: str, options: tuple[str, ...], name: str
) -> None:
    data = b"\xef\xbb\xbf" + content.encode()
    Path(name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert build(name, *options).code == 0
    documents = stored()
    assert documents["1"] == Document("1", "sea", "Sea", {"year": "2020", "document": "1", "passage": 1})
    assert documents["b"].text == "land" and documents["b"].metadata == {"document": "b", "passage": 1}
    assert distinct() == "document"


def test_table_rows_without_ids_are_numbered(build: Build) -> None:
    Path("t.csv").write_text('text,note\n"one, ""two""\nthree",x\nfour\nfive,y\n,z\n')
    outcome = build("t.csv")
    assert outcome.code == index.SKIPPED and "2 skipped" in outcome.out
    assert "line 4 skipped: the row has 1 cells and the header 2" in outcome.out
    assert {id: document.text for id, document in stored().items()} == {"1": 'one, "two"\nthree', "3": "five"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"body,url\nsea,x\n", "no column 'text'; say --text-column: its columns are body, url"),
        (b"id,text\n1,caf\xe9\n", "t.csv, line 2: it is not in UTF-8"),
        (b'id,text\n1,"open\n', "t.csv, line 2: no CSV"),
        (b"", "no column 'text'"),
        ("id,text\n".encode("utf-16"), "UTF-16"),
    ],
)
def test_malformed_table_is_refused_in_one_line(build: Build, content: bytes, said: str) -> None:
    Path("t.csv").write_bytes(content)
    outcome = build("t.csv")
    assert outcome.code == 1 and said in outcome.err and outcome.err.count("\n") == 1


@pytest.mark.strangers
def test_symbolic_link_out_of_the_folder_is_skipped(build: Build, folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "elsewhere" / "secret.md"
    secret.parent.mkdir()
    secret.write_text("# Secret\n\nhunter2")
    (folder / "leak.md").symlink_to(secret)
    (folder / "leak.txt").symlink_to(Path("..") / "elsewhere" / "secret.md")
    (folder / "links").symlink_to(secret.parent)
    (folder / "again.md").symlink_to(folder / "guide.md")
    outcome = build(str(folder))
    assert outcome.code == index.SKIPPED
    for name in ("leak.md", "leak.txt"):
        assert f"skipped: {name} is a link to a file outside of this folder" in outcome.out
    assert "again.md" in stored()
    assert not any("hunter2" in document.text for document in stored().values())
    assert build(str(folder / "leak.md")).code == 0  # the user names the file


@pytest.mark.strangers
@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("---\n---\n" * 2_000, None),
        ("---\n---\n" * 2 + "# First\n", "First"),
        (f"# a{' ' * 50_000}b", f"a{' ' * 50_000}b"),
        (f"# a{' ' * 50_000}", "a"),
        ("#\n# \n# ##\n## b ##\r\n", "b"),
        (f"---\ntitle: a{' ' * 50_000}b\n---\n", f"a{' ' * 50_000}b"),
        ("---\ntitle: 'a'\n---\n# b", "a"),
        ('---\r\ntitle: "a"  \r\n---\r\n# b', "a"),
        ("# A title #\r\n\r\nSea.\r\n", "A title"),
        ("---\ntitle: 'a\n---\n# b", "'a"),
        ("---\ntitle:\n---\n# b", "b"),
        ("---\ntitle: ''\n---\n# b", "b"),
    ],
)
def test_title_comes_from_the_front_matter_or_the_first_heading(text: str, title: str | None) -> None:
    assert files.titled(text)[0] == title


@pytest.mark.strangers
@pytest.mark.parametrize("name", ["a.md", "a.txt"])
@pytest.mark.parametrize("kind", KINDS)
def test_passages_cover_any_text_completely(name: str, kind: str) -> None:
    text = KINDS[kind](20_000)
    passages = [passage.text for passage in files.PassageSplitter(100)._cut(Document(name, text))]
    assert max(map(len, passages)) <= 100 or not text.strip()
    assert "".join("".join(passages).split()) == "".join(text.split())


def test_unknown_column_option_is_refused(build: Build) -> None:
    Path("t.csv").write_text("id,text\n1,sea\n")
    assert "no column 'key'; its columns are id, text" in build("t.csv", "--id-column", "key").err
    Path("t.jsonl").write_text('{"id": 1, "text": "sea"}\n')
    assert build("t.jsonl", "--id-column", "id").code == 2


def test_json_documents_are_split_only_with_the_passages_option(build: Build) -> None:
    taken = {"id": "c", "text": "sea", "metadata": {"passage": 7}}
    lines = [{"id": "a", "text": LONG, "metadata": {"year": 2020}}, {"id": "b", "text": "sea"}, taken]
    for name, content in (("t.jsonl", b"\n".join(map(orjson.dumps, lines))), ("t.json", orjson.dumps(lines))):
        Path(name).write_bytes(content)
        assert build(name).code == 0
        assert stored()["a"].text == LONG and distinct() is None
    outcome = build("t.json", "--passages", "300")
    assert outcome.code == index.SKIPPED and "line 3 skipped: the field 'passage' is that of a passage" in outcome.out
    assert stored()["a#2"].metadata == {"year": 2020, "document": "a", "passage": 2}
    assert distinct() == "document"
