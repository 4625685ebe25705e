"""Test that warnings and refusals state the mistake, its value, and the remedy, in short."""

import ast
import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast, get_args

import httpx
import numpy as np
import orjson
import pytest
import pytest_asyncio

from boundarymorph import errors
from boundarymorph.access.admission import Admission
from boundarymorph.access.callers import Caller, KeyRing, Scope, make_key
from boundarymorph.access.rates import Decision, LimitState
from boundarymorph.api.lifecycle import Lifecycle
from boundarymorph.caching.scores import MemoryScoreCache
from boundarymorph.inference.concurrency import Deadline
from boundarymorph.inference.models import Weights
from boundarymorph.notices import Notice, Slug
from boundarymorph.retrieval.boosts import Boosts
from boundarymorph.retrieval.build import build_indexes
from boundarymorph.retrieval.candidates import PoolSource
from boundarymorph.retrieval.document import Document, Search
from boundarymorph.retrieval.filters import Bounds
from boundarymorph.retrieval.interfaces import IndexConfiguration
from boundarymorph.retrieval.stores.index import StoreIndex
from boundarymorph.retrieval.stores.table import FoundRows
from boundarymorph.scoring.scorer import Scores
from boundarymorph.selector.documents import MemoryLimits
from boundarymorph.selector.remarks import low_score_notices, script_notices
from boundarymorph.selector.scores import HARMFUL, SPARED
from boundarymorph.selector.selector import Selector
from boundarymorph.selector.task import SelectionTask
from boundarymorph.server.protocol import _too_many
from boundarymorph.settings import Limits, Settings
from boundarymorph.settings.sections import RerankSettings
from tests.fakes.scorer import SeededScorer
from tests.fakes.service import answer, application, faked, filled, on_socket, serving, texts
from tests.selector.fakes import FakeRetriever, changed, task
from tests.selector.test_scores import MADE
from tests.test_language import BANNED

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "api.md").read_text()
LONGEST = 300  # characters
SENTENCE = re.compile(r";\s|(?<=[\w)\]'\"])[.!?]\s+(?=[A-Za-z])")  # the end of a sentence, unlike a colon


def flaws(message: str) -> list[str]:
    """Return the faults in the form of a message."""
    banned = [match[0] for pattern in BANNED for match in re.finditer(pattern, message, re.IGNORECASE)]
    sentences = len(SENTENCE.split(message))
    return [
        *(f"has the phrase {phrase!r}" for phrase in banned),
        *([f"has {sentences} sentences"] if sentences > 2 else []),
        *([f"has {len(message)} characters"] if len(message) > LONGEST else []),
        *(["ends with a full stop"] if message.rstrip().endswith(".") else []),
        *(["begins with a capital"] if re.match(r"[A-Z][a-z]+ ", message) and not message.startswith(NAMES) else []),
    ]


NAMES = ("Elasticsearch", "FAISS", "LanceDB", "Milvus", "PostgreSQL", "PyTorch", "Qdrant", "Redis")


# Warnings


class Failing(FakeRetriever):
    """A retriever without an encoder that fails after `working` documents were read."""

    def __init__(self, working: float = 0) -> None:
        super().__init__()
        self.working = working

    async def documents(self, index: str, ids: Sequence[str], **options: Any) -> Mapping[str, Document]:
        if len(self.fetched) >= self.working:
            raise errors.RetrieverUnavailable("http://10.0.0.1 is away")
        return await super().documents(index, ids, **options)

    async def embed_documents(self, texts: Sequence[str], *, caller: str = "") -> Any:
        raise errors.RetrieverUnavailable("http://10.0.0.1 is away")


class Ungraded(SeededScorer):
    """A scorer that gives no score for the first text of each round."""

    async def score(self, query: str, texts: Sequence[str], **options: Any) -> Scores:
        scores = await super().score(query, texts, **options)
        return replace(scores, values=np.where(np.arange(len(texts)) == 0, np.nan, scores.values))


async def selected(task: SelectionTask, retriever: Any = None, scorer: Any = None) -> Sequence[Notice]:
    selector = Selector(retriever or FakeRetriever(), scorer or SeededScorer())
    try:
        return (await selector.select(task)).warnings
    finally:
        await selector.close()


async def selected_again() -> Sequence[Notice]:
    """Select when the retriever has failed since scores were cached."""
    retriever = Failing(working=np.inf)
    selector = Selector(retriever, SeededScorer(), MemoryScoreCache(2**20))
    try:
        await selector.select(task(reuse=True))
        retriever.working = 0
        return (await selector.select(task(reuse=True))).warnings
    finally:
        await selector.close()


def by_order(**fields: Any) -> SelectionTask:
    """Return a task with a pool in order, but without vectors.

    If the retriever fails, only the order remains.
    """
    return changed(
        task(k=2),
        source=PoolSource("query", [Document("a", "a"), Document("b", "b")], vectors="encoder", ranked=True),
        **fields,
    )


def gone() -> FakeRetriever:
    retriever = FakeRetriever()
    retriever.gone = {"d0", "d1"}
    return retriever


class Rows:
    """A table whose searches find these ids, and which supports no filter."""

    words, at_a_time = False, 1_000

    def __init__(
        self, ids: Sequence[str | None], *, vector: float = 1.0, exact: bool = True, endless: bool = False
    ) -> None:
        self.ids, self.vector, self.exact, self.endless = ids, vector, exact, endless

    def count(self) -> int:
        return 70_000

    def search(self, query: Any, depth: int, where: Any, *, vectors: bool = True, documents: bool = False) -> FoundRows:
        ids = [*self.ids] * (depth // len(self.ids)) if self.endless else self.ids
        found = self.rows(ids, vectors=vectors, documents=documents)
        return found._replace(exact=self.exact)

    def rows(self, ids: Any, *, vectors: bool = False, documents: bool = False) -> FoundRows:
        made = {id: Document(id, "text") for id in ids if id is not None}
        return FoundRows(ids, np.full((len(ids), 2), self.vector, np.float32) if vectors else None, made)

    def leaf(self, condition: Any) -> Bounds[Any]:
        return Bounds(True, False)


def searched(table: Rows, *, depth: int = 2, **options: Any) -> Sequence[Notice]:
    index = StoreIndex("docs", IndexConfiguration(None, 2, ""), cast("Any", table), "pgvector")
    return index.retrieve(Search("text", depth, [1, 1], **options)).warnings


def searched_on_gpu() -> Sequence[Notice]:
    """Search on a GPU that does not exist."""
    with TemporaryDirectory() as folder:
        catalog = build_indexes(Settings(data_directory=Path(folder), search_device="faiss:99"))
        index = catalog.create("docs", encoder=None, dimension=2)
        index.upsert([Document("a", "a")], np.ones((1, 2), np.float32))
        warnings = index.retrieve(Search("", 1, [1, 1])).warnings
        catalog.close()
    return warnings


POSTED: dict[str, tuple[str, str, dict[str, Any]]] = {  # slug: the named value, a path, and the body
    "budget-by-settings": ("1 of the 2", "/v1/rerank", {"documents": ["a", "b"]}),
    "documents-without-text": ("1 document has", "/select", {"pool": ["a", " "]}),
    "embedding-truncated": ("1 document was", "/select", {"pool": ["x" * 150, "a"], "vectors": "encoder"}),
    "field-not-found": ("'year'", "/select", {"index": "texts", "distinct": "year"}),
    "filter-type-mismatch": ("'from'", "/select", {"index": "texts", "filter": {"from": {"gt": 1}}}),
    "min-relevance-not-reached": ("reached 1", "/select", {"index": "texts", "min_relevance": 1}),
    "no-call-made": ('"spend": "order"', "/select", {"pool": ["a", "b"], "spend": "set"}),
    "no-document-passes-filter": ("filter", "/select", {"index": "texts", "filter": {"from": "nowhere"}}),
    "no-effect": ("'colour'", "/v1/rerank", {"documents": ["a", "b"], "colour": 1}),
    "no-word-found": ("word of the query", "/select", {"index": "words", "query": "violin"}),
    "passages-left-out": ("limits.document_passages", "/select", {"pool": ["word " * 2_000], "passages": True}),
    "query-truncated": ("20 characters", "/v1/rerank", {"documents": ["a", "b"], "query": "q" * 21}),
    "scoring-truncated": ("1 document was", "/select", {"pool": ["x" * 150, "a"], "spend": "order"}),
    "unreadable-artifacts": ("'distinct'", "/select", {"index": "damaged"}),
}
FAILED, AWAY, ONE_BYTE = errors.ScorerFailed("it says no"), errors.ScorerUnavailable("away"), MemoryLimits(answer=1)
CALLED: dict[str, tuple[str, Callable[[], Awaitable[Sequence[Notice]] | Sequence[Notice]]]] = {
    "all-scores-low": ("10 scores", lambda: low_score_notices([0.01] * 10)),
    "approximate-search": ("pgvector", lambda: searched(Rows(["a", "b"], exact=False))),
    "boost-not-used": ("'boost'", lambda: selected(by_order(boosts=Boosts(weights={"a": 2.0})), Failing())),
    "budget-not-spent": ("scorer", lambda: selected(task(), scorer=SeededScorer(error=FAILED, first=1))),
    "calibration-not-used": ("'old'", lambda: selected(task(calibration=replace(MADE, scorer="old")))),
    "documents-deleted": ("2 documents were", lambda: selected(task(budget=30, k=30), gone())),
    "documents-without-score": ("documents got", lambda: selected(task(), scorer=Ungraded())),
    "filter-not-exhaustive": ("65,536", lambda: searched(Rows(["a", "b"], endless=True), filter={"year": 1})),
    "harmful-scorer": ("'budget'", lambda: [HARMFUL]),
    "harmful-scorer-not-called": ("'budget'", lambda: [SPARED]),
    "hybrid-of-pool": ("pgvector", lambda: searched(Rows(["a", "b"]), hybrid=True)),
    "known-scores-not-used": ("retriever", selected_again),
    "min-relevance-not-used": ("'min_relevance'", lambda: selected(by_order(min_relevance=0.5), Failing())),
    "nothing-scored": ("scorer", lambda: selected(task(), scorer=SeededScorer(error=AWAY))),
    "rows-without-id": ("1 row has", lambda: searched(Rows(["a", None]))),
    "search-device-not-used": ("faiss:99", searched_on_gpu),
    "search-incomplete": ("2 of the 3", lambda: searched(Rows(["a", "b"], exact=False), depth=3)),
    "shared-ids": ("'a'", lambda: searched(Rows(["a", "a"]))),
    "texts-left-out": (
        "limits.body_bytes",
        lambda: selected(task(return_documents=True, optional_texts=True, memory=ONE_BYTE)),
    ),
    "texts-not-read": ("retriever", lambda: selected(task(budget=0, return_documents=True), Failing())),
    "unfamiliar-script": ("Cyrillic", lambda: script_notices("что это", "BAAI/bge-small-en-v1.5")),
    "vectors-without-direction": ("2 documents were", lambda: searched(Rows(["a", "b"], vector=0.0))),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a service with small limits, and empty, lexical and damaged indexes."""
    folder = tmp_path_factory.mktemp("messages")
    limits = Limits(query_characters=20, document_passages=1, body_bytes=50_000)
    settings = Settings(data_directory=folder, limits=limits, rerank=RerankSettings(budget=1), body_seconds=0.2)
    async with filled(settings) as client:
        for name, made in (("empty", {}), ("words", {"encoder": "none"}), ("damaged", {})):
            answer(await client.put(f"/indexes/{name}", json=made))
        for name in ("words", "damaged"):
            answer(await client.post(f"/indexes/{name}/documents", json=texts(3)))
        (folder / "indexes" / "damaged" / "artifacts.json").write_text("{")
        (folder / "indexes" / "broken").mkdir()
        yield client


async def warnings_of(slug: str, client: httpx.AsyncClient) -> Sequence[Notice]:
    if slug in CALLED:
        made = CALLED[slug][1]()
        return await made if isinstance(made, Awaitable) else made
    _, path, body = POSTED[slug]
    found = answer(await client.post(path, json={"query": "q"} | body))
    return [Notice(**warning) for warning in found.get("boundarymorph", found)["warnings"]]


@pytest.mark.parametrize("slug", get_args(Slug))
async def test_warning_names_the_value_in_two_sentences(slug: str, client: httpx.AsyncClient) -> None:
    (message,) = {warning.message for warning in await warnings_of(slug, client) if warning.slug == slug}
    value = (POSTED.get(slug) or CALLED[slug])[0]
    assert value in message and not flaws(message), (message, flaws(message))
    assert f"`{slug}`" in PAGE.partition("\n## Warnings\n")[2]


# Refusals

KEY = make_key("rag", [Scope.SELECT], ["photos"])[1]
POOL = [{"id": "a", "text": "a"}, {"id": "a", "text": "b"}]
REFUSED: dict[str, tuple[str, str, Any]] = {  # slug: the named value, a request, and its body
    "body-too-large": ("50,000 bytes", "POST /select", {"query": "q" * 50_000}),
    "corrupt-index": ("log", "GET /indexes/broken/documents", None),
    "duplicate-ids": ("'a'", "POST /select", {"query": "q", "pool": POOL}),
    "empty-index": ("'empty'", "POST /select", {"query": "q", "index": "empty"}),
    "index-conflict": ("'own'", "PUT /indexes/own", {"dimension": 3}),
    "invalid-embeddings": ("not 2", "POST /select", {"query": "q", "index": "own", "query_embedding": [1, 0]}),
    "invalid-index-name": ("'New'", "PUT /indexes/New", None),
    "invalid-input": ("'colour'", "POST /select", {"query": "q", "index": "texts", "colour": 1}),
    "limit-exceeded": ("20 characters", "POST /select", {"query": "q" * 21, "index": "texts"}),
    "method-not-allowed": ("POST", "GET /select", None),
    "no-documents": ("documents", "POST /v1/rerank", {"query": "q", "documents": []}),
    "not-found": ("/select", "POST /selct", None),
    "text-too-long": ("1 text is", "POST /v1/rerank", {"query": "q", "documents": ["x" * 150], "truncation": False}),
    "unknown-document": ("'none'", "GET /indexes/texts/documents/none", None),
    "unknown-index": ("'none'", "GET /indexes/none", None),
    "unknown-policy": ("'none'", "POST /p/none/select", {"query": "q", "index": "texts"}),
    "unsupported-media-type": ("text/plain", "POST /select", "query"),
}
RAISED: dict[str, tuple[str, Callable[[], object]]] = {
    "deadline-exceeded": ("deadline", Deadline(0.0).remaining),
    "forbidden": ("'admin'", lambda: Caller("rag", (KEY,)).restrict(Scope.ADMIN)),
    "model-unavailable": ("model.onnx", lambda: Weights("m", "int8", Path("/none"), "0").verify()),
    "not-ready": ("models", Lifecycle(Settings()).require),
    "overloaded": ("deadline", lambda: asyncio.run(late())),
    "rate-limited": ("100 requests", Decision(refused=LimitState(100, 60, 0, 7.0)).check),
    "unauthenticated": ("Bearer", lambda: KeyRing([str(KEY)]).caller(None)),
}
# Their messages for callers name neither hosts nor files; the log does.
SUMMARISED: list[type[errors.BoundaryMorphError]] = [
    errors.EncoderFailed, errors.EncoderUnavailable, errors.MalformedFrame, errors.RetrieverFailed,
    errors.RetrieverUnavailable, errors.ScorerFailed, errors.ScorerUnavailable, errors.StorageFull,
    errors.StorageUnavailable,
]  # fmt: skip


async def late() -> None:
    async with Admission(1).turn("rag", deadline=0.0):
        pass


@pytest.mark.parametrize("slug", REFUSED)
async def test_refusal_of_a_request(slug: str, client: httpx.AsyncClient) -> None:
    value, request, body = REFUSED[slug]
    given = {"content": body, "headers": {"content-type": "text/plain"}} if isinstance(body, str) else {"json": body}
    check_refusal(slug, value, (await client.request(*request.split(), **given)).json())


async def test_refusal_of_a_slow_body(client: httpx.AsyncClient) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(60)

    check_refusal("body-too-slow", "1 byte", (await client.post("/select", content=body())).json())


async def test_refusal_of_large_headers_and_of_a_bug(tmp_path: Path) -> None:
    async with on_socket(application("scorer", Settings())) as url, httpx.AsyncClient(base_url=url) as client:
        check_refusal("headers-too-large", "", (await client.get("/livez", headers={"x": "y" * 70_000})).json())
    async with serving(Settings(data_directory=tmp_path), faked(SeededScorer(error=ZeroDivisionError()))) as client:
        body = {"query": "q", "pool": ["a", "b"], "spend": "order"}
        check_refusal("internal-error", "log", (await client.post("/select", json=body)).json())


async def test_refusal_of_a_connection() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await _too_many({}, None, send)
    check_refusal("too-many-connections", "connections", orjson.loads(sent[1]["body"]))


@pytest.mark.parametrize("slug", RAISED)
def test_refusal_by_its_error(slug: str) -> None:
    value, call = RAISED[slug]
    with pytest.raises(errors.BoundaryMorphError) as raised:
        call()
    check_refusal(slug, value, {"type": errors.PROBLEM_TYPE + raised.value.slug, "detail": raised.value.public})


@pytest.mark.parametrize("kind", SUMMARISED)
def test_refusal_without_details_for_callers(kind: type[errors.BoundaryMorphError]) -> None:
    error = kind("http://10.0.0.1 is away")
    check_refusal(kind.slug, "", {"type": errors.PROBLEM_TYPE + error.slug, "detail": error.public})
    assert "10.0.0.1" not in error.public


def test_refusal_for_a_missing_package() -> None:
    error = errors.NotInstalled(errors.missing_package("/mcp", "mcp", "mcp"))
    check_refusal(
        "not-installed", "boundarymorph[mcp]", {"type": errors.PROBLEM_TYPE + error.slug, "detail": error.public}
    )


def check_refusal(slug: str, value: str, body: dict[str, Any]) -> None:
    message = body["detail"]
    assert body["type"] == errors.PROBLEM_TYPE + slug
    assert value in message and not flaws(message), (message, flaws(message))
    assert slug in DOCUMENTED


DOCUMENTED = {
    slug
    for row in re.findall(r"(?m)^\| (`.*?) \| \d{3}", PAGE.partition("\n## Errors\n")[2])
    for slug in re.findall(r"`([a-z-]+)`", row)
}
ELSEWHERE = {"body-too-slow", "headers-too-large", "internal-error", "too-many-connections", "not-installed"}


def test_each_documented_refusal_is_rendered() -> None:
    assert {*REFUSED, *RAISED, *(kind.slug for kind in SUMMARISED), *ELSEWHERE} == DOCUMENTED


# All messages in the source

SOURCES = sorted(path for path in (ROOT / "service").rglob("*.py") if not {".venv", "build"} & set(path.parts))


def kinds() -> set[str]:
    """Return the names of all exceptions of the service."""
    found = {"Exception", "ValueError"}
    bases = {
        node.name: {base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases}
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    while more := {name for name, given in bases.items() if given & found} - found:
        found |= more
    return found


LOGGED = ("info", "warning", "error", "critical")
MESSAGE = dict.fromkeys((*kinds(), *LOGGED), 0) | {"Notice": 1, "_counted": 2}  # the argument that is the message


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each message of an error, a warning, or the log.

    Values are shown as x.
    """
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[*given]) if name in MESSAGE:
                found = given[MESSAGE[name]] if len(given) > MESSAGE[name] else None
            case ast.Assign(targets=[ast.Name(id="said")], value=found):
                pass
            case _:
                continue
        if found is not None and (text := text_of(found)) is not None:
            yield node.lineno, text


def text_of(node: ast.expr) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in parts)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return None if text_of(left) is None else f"{text_of(left)}{text_of(right) or 'x'}"
    return None


def test_messages_have_at_most_two_sentences() -> None:
    found = [(path, line, text) for path in SOURCES for line, text in messages(path.read_text())]
    assert len(found) > 400, "the messages are found"
    flawed = [f"{path.relative_to(ROOT)}:{line}: {flaws(text)}: {text}" for path, line, text in found if flaws(text)]
    assert not flawed, "\n".join(flawed)
