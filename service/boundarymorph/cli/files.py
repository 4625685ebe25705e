"""Read documents from folders and tables, and cut long texts into passages."""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from semantic_text_splitter import MarkdownSplitter, TextSplitter

from boundarymorph import reading
from boundarymorph.cli import source as sources
from boundarymorph.errors import InvalidInput, LimitExceeded
from boundarymorph.reading import Stream, has_content
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.filters import MAX_VALUES, Filter
from boundarymorph.retrieval.interfaces import Index
from boundarymorph.retrieval.passages import blocks
from boundarymorph.retrieval.uploads import BadLine, ParsedDocument, parse_array, parse_ndjson, parse_record

PASSAGE_CHARACTERS = 1_200  # about 300 tokens; common models read that together with a query
MARKDOWN = (".md", ".markdown")
SUFFIXES = (*MARKDOWN, ".txt")
DOCUMENT, PASSAGE = "document", "passage"  # fields of a passage's metadata: the id of its text, and its number from 1
FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r"^title:(.*)", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6}[ \t]++([^\n#].*)", re.MULTILINE)
_BLOCK = 20  # passages to cut at a time, because the splitters' time grows with the square of the length
_BORDERS = (("\n#", 0), ("\n\n", 0), ("\n", 0), (" ", 0))  # between blocks: a heading, a paragraph, a line, a word
Entry = ParsedDocument | BadLine


@contextmanager
def open_documents(
    source: Path, columns: TableColumns, dimension: int, most: int, whole: int, *, strict: bool = False
) -> Iterator[tuple[AsyncIterator[Entry], int | None]]:
    """Open a source, and yield its documents and its size in bytes, if that is known.

    Args:
        source: A folder, a file, or `-` for standard input.
        columns: The columns of a table.
        dimension: The length of vectors.
        most: Most bytes of a document.
        whole: Most bytes of a JSON array.
        strict: Whether a bad file of a folder raises InvalidInput.

    Raises:
        InvalidInput: If the source cannot be read.
        LimitExceeded: If an array is too large.
    """
    if is_texts(source):
        folder, files = (source, files_in(source)) if source.is_dir() else (source.parent, [source])
        inside = source.resolve() if source.is_dir() else None
        yield (
            folder_documents(folder, files, most, inside=inside, strict=strict),
            sum(path.stat().st_size for path in files),
        )
        return
    with sources.open_source(source) as (stream, length):
        if is_table(source):
            yield table_documents(stream, source, columns, most), length
        elif source.name.lower().removesuffix(".gz").endswith(".json"):
            yield array_documents(stream, source, dimension, most, whole), length
        else:
            yield parse_ndjson(sources.chunks(stream, source), dimension, max_line_bytes=most), length


def is_texts(source: Path) -> bool:
    return source.is_dir() or source.suffix.lower() in MARKDOWN


def is_table(source: Path) -> bool:
    return source.name.lower().removesuffix(".gz").endswith((".csv", ".tsv"))


def files_in(folder: Path) -> list[Path]:
    """Return the files with one of SUFFIXES, by path, without hidden ones.

    Raises:
        InvalidInput: If there are none.
    """
    found = [path for path in _visible(folder) if path.suffix.lower() in SUFFIXES]
    if not found:
        raise InvalidInput(f"there is no file in {folder} whose name ends in {', '.join(SUFFIXES)}")
    return found


def other_suffixes(folder: Path) -> dict[str, int]:
    """Count the files that `files_in` leaves out by their suffixes, the most frequent first."""
    return dict(
        Counter(path.suffix.lower() for path in _visible(folder) if path.suffix.lower() not in SUFFIXES).most_common()
    )


def _visible(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


async def folder_documents(
    folder: Path, files: Iterable[Path], most: int, *, inside: Path | None = None, strict: bool = False
) -> AsyncIterator[Entry]:
    """Yield a document of each file; its id is its path within the folder.

    A file that is not UTF-8, has no content or more than `most` bytes becomes a bad line, and so does a link to a file
    outside of the folder `inside`. With `strict`, such a file raises InvalidInput instead.
    """
    position = 0
    for number, path in enumerate(files, start=1):
        id = path.relative_to(folder).as_posix()
        try:
            if (shown := id.encode(errors="backslashreplace").decode()) != id:
                raise InvalidInput(f"{shown}: its name is not in UTF-8; rename it")
            if inside is not None and not path.resolve().is_relative_to(inside):
                raise InvalidInput(f"{id} is a link to a file outside of this folder; put a copy in place of the link")
            with reading.open_path(path) as stream:
                content = stream.read(most + 1)
            position += len(content)
            yield parse_record(_record(id, path, content, most), number, 0, position)
        except InvalidInput as error:
            if strict:
                raise InvalidInput(f"{error}; nothing was written") from None
            yield BadLine(number, str(error))


def _record(id: str, path: Path, content: bytes, most: int) -> dict[str, str]:
    if len(content) > most:
        raise InvalidInput(f"{id} has more than {most:,} bytes (limits.line_bytes)")
    if (wrong := reading.complaint(content := reading.without_byte_order_mark(content, id))) is not None:
        raise InvalidInput(f"{id}: {wrong}")
    text = content.decode()
    if not has_content(text):
        raise InvalidInput(f"{id} has nothing to read")
    title, text = titled(text) if path.suffix.lower() in MARKDOWN else (None, text)
    return {"id": id, "title": title or path.stem, "text": text}


def titled(text: str) -> tuple[str | None, str]:
    """Return the title of a Markdown text and the text without its front matter.

    The title comes from the front matter or from the first heading.
    """
    if (front := FRONT_MATTER.match(text)) is not None:
        text = text[front.end() :]
        if (given := _TITLE.search(front[1])) is not None:
            title = given[1].strip()
            if len(title) > 1 and title[0] in "'\"" and title[0] == title[-1]:
                title = title[1:-1]
            if title:
                return title, text
    heading = _HEADING.search(text)
    return (heading[1].rstrip(" \t\r#") if heading else None), text


async def array_documents(stream: Stream, source: Path, dimension: int, most: int, whole: int) -> AsyncIterator[Entry]:
    """Yield the documents of a JSON array.

    `most` and `whole` bound the bytes of a document and of the array.
    """
    with sources.report_damage(source):
        body = stream.read(whole + 1)
    lines = "write one object a line, to a file whose name ends in `.jsonl`"
    if len(body) > whole:
        raise LimitExceeded(f"{source}: a JSON array may have {whole:,} bytes (limits.body_bytes); {lines}")
    try:
        async for entry in parse_array(body, dimension, max_line_bytes=most):
            yield entry
    except InvalidInput as error:
        raise InvalidInput(f"{source}: {error}; or {lines}") from None


@dataclass(frozen=True, slots=True)
class TableColumns:
    id: str | None = None
    text: str | None = None
    title: str | None = None


async def table_documents(stream: Stream, source: Path, columns: TableColumns, most: int) -> AsyncIterator[Entry]:
    """Yield a document of each row of a table with a header.

    Commas, semicolons, or tabs separate the cells. Columns without a role become metadata, without empty cells. Without
    a column of ids, the id of a row is its number. A row has at most `most` bytes.

    Raises:
        InvalidInput: With the line, if the table is malformed.
    """
    position, begin, name = 0, 0, sources.named(source)  # byte at which the row begins

    def decoded() -> Iterator[str]:
        nonlocal position
        with sources.report_damage(source, sources.WRITTEN):
            for number, line in enumerate(iter(lambda: stream.readline(most + 1), b""), start=1):
                position += len(line)
                if position - begin > most:
                    raise InvalidInput(
                        f"{name}, line {number}: the row has more than {most:,} bytes (limits.line_bytes); is a quote "
                        "never closed?"
                    )
                text = line if number > 1 else reading.without_byte_order_mark(line, name)
                if (wrong := reading.complaint(text)) is not None:
                    raise InvalidInput(f"{name}, line {number}: {wrong}")
                yield text.decode()

    def filled(rows: Iterator[list[str]]) -> Iterator[list[str]]:
        nonlocal begin
        for row in rows:
            begin = position
            if row:
                yield row

    csv.field_size_limit(most)
    try:
        lines = decoded()
        first = next(lines, "")
        rows = csv.reader(chain([first], lines), delimiter=max(",;\t", key=first.count), strict=True)
        header, begin = next(rows, []), position
        id, text, title = _places(header, columns, name)
        for number, row in enumerate(filled(rows), start=1):
            if len(row) != len(header):
                yield BadLine(rows.line_num, f"the row has {len(row)} cells and the header {len(header)}")
                continue
            taken = {id, text, title}
            metadata = {header[at]: cell for at, cell in enumerate(row) if cell and at not in taken}
            record = {"id": str(number) if id is None else row[id], "text": row[text], "metadata": metadata}
            record |= {} if title is None else {"title": row[title]}
            yield parse_record(record, rows.line_num, 0, position)
    except csv.Error as error:
        raise InvalidInput(f"{name}, line {rows.line_num}: no CSV: {error}") from None


def _places(header: list[str], columns: TableColumns, name: str) -> tuple[int | None, int, int | None]:
    names = [cell.strip().lower() for cell in header]

    def place(given: str | None, *usual: str) -> int | None:
        if given is not None and given.strip().lower() not in names:
            raise InvalidInput(f"{name} has no column {given!r}; its columns are {', '.join(header)}")
        wanted = usual if given is None else (given.strip().lower(),)
        return next((names.index(each) for each in wanted if each in names), None)

    text = place(columns.text, "text")
    if text is None:
        raise InvalidInput(f"{name} has no column 'text'; say --text-column: its columns are {', '.join(header)}")
    return place(columns.id, "id", "_id"), text, place(columns.title, "title")


@dataclass(slots=True)
class PassageSplitter:
    """Cuts documents into passages of at most `characters`, at headings and sentences.

    A passage has the title of its document and the metadata `document`, the document's id, and `passage`, its number
    from 1. The first passage has the document's id; others append `#` and their number.
    """

    characters: int
    _counts: dict[str, int] = field(default_factory=dict)  # number of passages, by document

    async def split(self, entries: AsyncIterable[Entry]) -> AsyncIterator[Entry]:
        """Yield the passages of the documents, or with 0 characters the documents.

        A document with a vector stays whole.
        """
        async for entry in entries:
            if not self.characters or isinstance(entry, BadLine) or entry.embedding is not None:
                yield entry
            elif taken := {DOCUMENT, PASSAGE} & entry.document.metadata.keys():
                yield BadLine(entry.line, f"the field {min(taken)!r} is that of a passage; rename it")
            else:
                for passage in self._cut(entry.document):
                    yield replace(entry, document=passage)

    def _cut(self, document: Document) -> Iterator[Document]:
        splitter = MarkdownSplitter if document.id.lower().endswith(MARKDOWN) else TextSplitter
        cut, whole = splitter(self.characters).chunks, document.text
        parts = blocks(whole, _BLOCK * self.characters, borders=_BORDERS)
        texts = list(chain.from_iterable(cut(whole[start:end]) for start, end in parts)) or [whole]
        self._counts[document.id] = len(texts)
        for number, text in enumerate(texts, start=1):
            id = document.id if number == 1 else f"{document.id}#{number}"
            metadata: Mapping[str, object] = {**document.metadata, DOCUMENT: document.id, PASSAGE: number}
            yield Document(id, text, document.title, metadata)

    @property
    def documents(self) -> int:
        return len(self._counts)

    def remove_old(self, index: Index) -> None:
        """Remove the passages that documents had before and no longer have."""
        of_count = defaultdict(list)
        for document, count in self._counts.items():
            of_count[count].append(document)
        for count, documents in of_count.items():
            for start in range(0, len(documents), MAX_VALUES - 1):
                some = documents[start : start + MAX_VALUES - 1]
                index.delete_matching(Filter({DOCUMENT: {"in": some}, PASSAGE: {"gt": count}}))
