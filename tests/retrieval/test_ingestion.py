"""Test uploads to an index: parsing, wrong lines, unchanged documents, and strict uploads."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import orjson
import pytest

from boundarymorph.errors import InvalidInput
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.local.catalog import LocalCatalog, LocalIndex
from boundarymorph.retrieval.uploads import (
    AT_A_TIME,
    MAX_PROBLEMS,
    WRITTEN_AT_A_TIME,
    BadLine,
    IngestReport,
    ParsedDocument,
    parse_array,
    parse_ndjson,
)
from tests.retrieval.fakes import SeededEncoder, ingest, nearest, vector_of

MANY = b"[" + b"{}," * 1_500_000 + b"{}]"  # objects that take far more memory than their text


async def stream(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def parse(*chunks: bytes, dimension: int = 2, **options: Any) -> list[ParsedDocument | BadLine]:
    return [entry async for entry in parse_ndjson(stream(*chunks), dimension, **options)]


def upload(*records: dict[str, Any]) -> AsyncIterator[ParsedDocument | BadLine]:
    return parse_ndjson(stream(b"\n".join(orjson.dumps(record) for record in records)), 32)


@pytest.fixture
def index(catalog: LocalCatalog) -> LocalIndex:
    return catalog.create("seeded", encoder="seeded", dimension=32)


@pytest.fixture
def own(catalog: LocalCatalog) -> LocalIndex:
    return catalog.create("own", encoder=None, dimension=32)


class TestParsing:
    @pytest.mark.parametrize("line", [b"\n", b"x\n", b'{"id":"a","text":"t"}\n'])
    async def test_parser_gives_way_within_a_chunk_of_many_lines(self, line: bytes) -> None:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        async def run(function: Any, found: Any) -> Any:
            assert len(found) <= AT_A_TIME
            return function(found)

        counting = asyncio.create_task(count())
        entries = await parse(line * 20 * AT_A_TIME, run=run)
        counting.cancel()
        assert len(entries) == (0 if line == b"\n" else 20 * AT_A_TIME)
        assert turns >= 19

    async def test_parser_turns_lines_into_documents(self) -> None:
        entries = await parse(
            b'\xef\xbb\xbf{"id": "a", "text": "one", "extra": 1}\r\n'
            b"\n   \n"
            b'{"id": 7, "text": "", "title": "two", "metadata": {"k": [1]}, "embedding": [3, -4.0]}'
        )
        first, second = entries
        assert first == ParsedDocument(1, Document("a", "one"), unknown=("extra",))
        assert isinstance(second, ParsedDocument)
        assert (second.line, second.document) == (4, Document("7", "", "two", {"k": [1]}))
        assert second.embedding is not None
        np.testing.assert_allclose(second.embedding, [0.6, -0.8], rtol=1e-6)

    @pytest.mark.parametrize("size", [1, 2, 7, 1000])
    async def test_parser_accepts_chunks_that_end_anywhere(self, size: int) -> None:
        """A chunk may end within a character."""
        records = [{"id": str(number), "text": text} for number, text in enumerate(["ä.", "漢字\n", "🙂", "plain"])]
        body = b"\n".join(map(orjson.dumps, records))
        entries = await parse(*(body[start : start + size] for start in range(0, len(body), size)))
        expected = [Document(str(record["id"]), str(record["text"])) for record in records]
        assert entries == [ParsedDocument(number, each) for number, each in enumerate(expected, start=1)]

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            (b"{", "not JSON"),
            (b'{"id": "a", "text": "\xff"}', "not in UTF-8"),
            (b'{"id": "a", "text": "\\ud800"}', "nothing to read"),
            (b'{"id": "a", "text": "x", "embedding": [NaN, 1]}', "JSON has no NaN or Infinity"),
            (b"id,text", "it looks like CSV"),
            (b'["a"]', "a document must be a JSON object; send an array of them as application/json"),
            (b"[" * 5_000, "not JSON"),
            *(
                (
                    b'{"id": "a", "text": "x", "metadata": ' + b'{"a":' * deep + b"1}" + b"}" * deep,
                    "metadata: cannot be stored",
                )
                for deep in (252, 253, 254, 400)  # the responses of retrievers have two more levels around it
            ),
            (b'{"text": "x"}', "id is missing: a document has id and text; this one has text"),
            (b'{"body": "x", "id": 1}', "text is missing: a document has id and text; this one has body, id"),
            (b"{}", "this one has nothing"),
            (b'{"id": 1.5, "text": "x"}', "id"),
            (b'{"id": 123456789012345678901234567890, "text": "x"}', "id"),
            (b'{"id": "", "text": "x"}', "id"),
            (b'{"id": "' + b"a" * 513 + b'", "text": "x"}', "id"),
            (b'{"id": "a", "text": null, "title": "t"}', "text"),
            (b'{"id": "a", "text": ""}', "title"),
            (b'{"id": "a", "text": "x", "metadata": [1]}', "metadata: Input should be an object"),
            (b'{"id": "a", "text": "x", "embedding": [1, "2"]}', "embedding.1: Input should be a valid number"),
            (b'{"id": "a", "text": "x", "embedding": [true, false]}', "embedding.0: Input should be a valid number"),
            (b'{"id": "a", "text": "x", "embedding": [1]}', "1 dimensions and the index 2"),
            (b'{"id": "a", "text": "x", "embedding": [0, 0.0]}', "direction"),
            (b'{"id": "a", "text": "x", "embedding": [1e308, 1e308]}', "direction"),
        ],
    )
    async def test_parser_names_the_mistake_in_a_bad_line(self, line: bytes, reason: str) -> None:
        good = b'{"id": "g", "text": "good"}'
        before, bad, after = await parse(good + b"\n" + line + b"\n" + good)
        assert isinstance(before, ParsedDocument)
        assert isinstance(after, ParsedDocument)
        assert isinstance(bad, BadLine)
        assert bad.line == 2
        assert reason in bad.reason

    async def test_parser_skips_a_line_that_is_too_long(self) -> None:
        pieces = [b'{"id": "a", "text": "', *[b"x" * 1000] * 500, b'"}\n{"id": "b", "text": "y"}']
        bad, good = await parse(*pieces, max_line_bytes=2000)
        assert bad == BadLine(1, "longer than 2000 bytes")
        assert good == ParsedDocument(2, Document("b", "y"))
        line = b'{"id": "a", "text": "y"}'
        assert await parse(line, max_line_bytes=len(line)) == [ParsedDocument(1, Document("a", "y"))]
        assert await parse(line, max_line_bytes=len(line) - 1) == [BadLine(1, f"longer than {len(line) - 1} bytes")]

    async def test_parsed_entries_have_the_offsets_of_their_line_ends(self) -> None:
        line = b'{"id": "\xc3\xa9", "text": "y"}'
        body, n = b"\n".join([line, b"\r", line, line]), len(line)
        for end in (b"", b"\n"):
            for size in (1, 7, 1000):
                entries = await parse(*(body[start : start + size] for start in range(0, len(body), size)), end)
                ends = [entry.end for entry in entries if isinstance(entry, ParsedDocument)]
                assert ends == [n + 1, 2 * n + 4, 3 * n + 4 + len(end)]


class TestIngesting:
    async def test_ingest_encodes_only_changed_documents(self, index: LocalIndex) -> None:
        encoder = SeededEncoder()
        records = [{"id": i, "text": f"text {i}"} for i in range(10)]
        await ingest(index, encoder, upload(*records), batch_size=4)
        encoder.encoded.clear()
        records[3]["text"] = "changed"
        records[5]["metadata"] = {"new": True}
        records.append({"id": "x", "text": "new" * 40, "title": "T"})
        report = await ingest(index, encoder, upload(*records), batch_size=4)
        assert report == IngestReport(added=1, updated=2, unchanged=8, truncated=1)
        assert encoder.encoded == ["changed", "text 5", "T\n" + "new" * 40]
        assert list(nearest(index, vector_of("T\n" + "new" * 40), 1).ids) == ["x"]
        assert index.documents(["3"])["3"].text == "changed"
        assert index.documents(["5"])["5"].metadata == {"new": True}

    @pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
    async def test_ingest_keeps_the_last_of_repeated_ids(self, index: LocalIndex, batch_size: int) -> None:
        records = [{"id": "a", "text": text} for text in ("one", "two", "two", "one", "three")]
        report = await ingest(index, SeededEncoder(), upload(*records), batch_size=batch_size)
        assert report.added == 1
        assert report.added + report.updated + report.unchanged + report.superseded == 5
        assert report.superseded >= {1: 0, 2: 2, 3: 3, 100: 4}[batch_size]
        assert index.documents(["a"])["a"].text == "three"
        assert nearest(index, vector_of("three"), 5).scores[0] > 0.999

    async def test_ingest_uses_given_embeddings(self, index: LocalIndex, own: LocalIndex) -> None:
        record = {"id": "a", "text": "one", "embedding": (5 * vector_of("elsewhere")).tolist()}
        for target, encoder in ((index, SeededEncoder()), (own, None)):
            assert await ingest(target, encoder, upload(record)) == IngestReport(added=1)
            assert await ingest(target, encoder, upload(record)) == IngestReport(unchanged=1)
            assert nearest(target, vector_of("elsewhere"), 1).scores[0] > 0.999
            moved = {**record, "embedding": vector_of("moved").tolist()}
            assert await ingest(target, encoder, upload(moved)) == IngestReport(updated=1)
            assert nearest(target, vector_of("moved"), 1).scores[0] > 0.999

    async def test_ingest_reports_texts_it_cannot_encode_as_bad_lines(
        self, own: LocalIndex, catalog: LocalCatalog
    ) -> None:
        foreign = catalog.create("foreign", encoder="other-encoder", dimension=32)
        for target, encoder, reason in (
            (own, SeededEncoder(), "own vectors"),
            (own, None, "own vectors"),
            (foreign, SeededEncoder(), "other-encoder"),
        ):
            report = await ingest(target, encoder, upload({"id": "a", "text": "one"}))
            assert (report.added, report.skipped) == (0, 1)
            assert reason in report.problems[0].reason
            assert target.count() == 0

    async def test_ingest_skips_and_reports_bad_lines(self, index: LocalIndex) -> None:
        records: list[dict[str, Any]] = [{"id": "a", "text": "one"}, {"id": "b"}, {"id": "c", "text": "two"}]
        report = await ingest(index, SeededEncoder(), upload(*records))
        reason = "text is missing: a document has id and text; this one has id"
        assert report == IngestReport(added=2, skipped=1, problems=[BadLine(2, reason)])
        many = await ingest(index, SeededEncoder(), upload(*[{"id": "b"}] * (MAX_PROBLEMS + 50)))
        assert (many.skipped, len(many.problems)) == (MAX_PROBLEMS + 50, MAX_PROBLEMS)

    async def test_strict_ingest_writes_all_documents_or_none(self, index: LocalIndex) -> None:
        encoder = SeededEncoder()
        good: list[dict[str, Any]] = [{"id": i, "text": f"text {i}"} for i in range(50)]
        good[7]["embedding"] = vector_of("given").tolist()
        with pytest.raises(InvalidInput, match=r"line 51: text is missing.* nothing was written"):
            await ingest(index, encoder, upload(*good, {"id": "bad"}), batch_size=4, strict=True)
        assert index.count() == 0
        assert encoder.encoded == []
        report = await ingest(index, encoder, upload(*good), batch_size=4, strict=True)
        assert report == IngestReport(added=50)
        assert list(nearest(index, vector_of("given"), 1).ids) == ["7"]

    async def test_ingest_bounds_the_bytes_of_a_batch(self, own: LocalIndex) -> None:
        """A batch may exceed the bound by one line."""
        vector = vector_of("v").tolist()
        records = [{"id": i, "text": "x" * 2**20, "embedding": vector} for i in range(20)]
        seen: list[tuple[int, int]] = []

        async def uploaded(*records: dict[str, Any]) -> list[tuple[int, int]]:
            seen.clear()
            await ingest(own, None, upload(*records), on_progress=lambda r: seen.append((r.documents, own.count())))
            return seen

        assert await uploaded(*records) == [(8, 8), (16, 16), (20, 20)]
        small = [{"id": f"s{i}", "text": "y", "embedding": vector} for i in range(WRITTEN_AT_A_TIME + 1)]
        assert [told for told, _ in await uploaded(*small)] == [WRITTEN_AT_A_TIME, WRITTEN_AT_A_TIME + 1]

    async def test_report_counts_a_batch_that_was_written_while_its_upload_was_cancelled(self, own: LocalIndex) -> None:
        async def run(function: Any, *arguments: Any) -> Any:
            result = function(*arguments)
            if own.count():
                raise asyncio.CancelledError
            return result

        report = IngestReport()
        with pytest.raises(asyncio.CancelledError):
            await ingest(own, None, upload({"id": "a", "text": "x", "embedding": [1.0] * 32}), run=run, report=report)
        assert (report.added, report.stored) == (1, 1)


class TestArrays:
    async def test_array_parser_skips_bad_elements(self) -> None:
        long = {"id": "long", "text": "t" * 100}
        size = len(orjson.dumps(long))
        great = b'{"id": "a", "text": "a", "metadata": {"n": 1234567890123456789012}}'
        body = b"[" + b", ".join([b'{"id": 1, "text": "one"}', b"5", great, orjson.dumps(long)]) + b"]"
        found = [entry async for entry in parse_array(body, 2, max_line_bytes=size - 1)]
        assert found[:2] == [
            ParsedDocument(1, Document("1", "one")),
            BadLine(2, "a document must be a JSON object; send an array of them as application/json"),
        ]
        assert isinstance(found[2], BadLine) and found[2].line == 3 and "64-bit" in found[2].reason
        assert found[3:] == [BadLine(4, f"longer than {size - 1} bytes")]
        last = [entry async for entry in parse_array(body, 2, max_line_bytes=size)][-1]
        assert isinstance(last, ParsedDocument)

    async def test_array_parser_refuses_malformed_and_oversized_arrays(self) -> None:
        body = orjson.dumps([{"id": str(number), "text": "t" * 100} for number in range(5_000)])
        deep = b"[" + b'{"metadata":' * 300 + b"1" + b"}" * 300 + b"]"
        wrong = (body[:-1], body[:-2] + b"]", body + b"]", body[:-1] + b",]", deep, MANY, b'{"id": 1}', b"[", b"")
        for each in wrong:
            with pytest.raises(InvalidInput):
                await anext(parse_array(each, 2))
