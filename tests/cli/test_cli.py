"""Test the commands as a user sees them: output, streams, and exit codes."""

import gzip
import os
import signal
import subprocess
import sys
from contextlib import closing, suppress
from io import BufferedReader, BytesIO
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest

from boundarymorph.access.callers import KeyRing, Scope
from boundarymorph.api.select_answers import SelectResponse
from boundarymorph.cli import index
from boundarymorph.errors import UnknownIndex
from boundarymorph.retrieval import build
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.server import process
from boundarymorph.settings import Settings
from tests.cli.conftest import Outcome, Run, error_line
from tests.patience import PATIENCE, until
from tests.system import forked
from tests.system.service import service

DOCUMENTS = [
    {"id": "violin", "text": "A violin has four strings.\nThey are tuned in fifths.", "title": "Violin"},
    {"id": "tram", "text": "Trams leave every ten minutes.", "metadata": {"line": 4}},
    {"id": "bread:key:1", "text": "Yeast makes the [dough] rise."},
    {"id": "harp", "text": "A harp stands upright; its strings are plucked."},
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "docs.jsonl"
    path.write_bytes(b"\n".join(map(orjson.dumps, DOCUMENTS)))
    return path


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["select", "index", " "], "query: "),
        (["select", "index", "q", "-N", "0"], "depth"),
        (["select", "index", "q", "--distinct", '{"at_most": 0}'], "distinct.at_most: "),
        (["select", "index", "q", "--boost", '{"weight": 0}'], "boost.0.weight: "),
        (["select", "index", "q", "--boost", "7"], "--boost must be a JSON object"),
        (["select", "index", "q", "-B", "2001"], "limit of 2,000 calls"),
        (["select", "index", "q", "--filter", "{"], "--filter"),
        (["select", "index", "q", "--filter", "[]"], "--filter"),
        (["select", "nowhere", "q"], "'nowhere'"),
        (["select", "No/Where", "q"], "'No/Where'"),
        (["index", "delete", "nowhere"], "'nowhere'"),
        pytest.param(["index", "delete", "nowhere", "--filter", "{}"], "delete the index", marks=pytest.mark.strangers),
        (["index", "build", "No Where", "--from", "docs.jsonl"], "'No Where'"),
        (["index", "list", "--data-directory", "docs.jsonl"], "data_directory: "),
        (["index", "build", "a", "--from", "docs.jsonl", "--data-directory", "docs.jsonl"], "data_directory: "),
        (["select", "a", "q", "--data-directory", "docs.jsonl/x"], "data_directory: "),
        (["serve", "--port", "65536"], "port: "),
        (["serve", "--log-level", "loud"], "log_level: "),
    ],
)
@pytest.mark.usefixtures("source", "tiny_weights")
def test_command_reports_invalid_values_in_one_line(run: Run, arguments: list[str], named: str) -> None:
    assert named in error_line(run(*arguments))


@pytest.mark.parametrize(
    "arguments",
    [["frobnicate"], ["select"], ["select", "a"], ["select", "a", "b", "-k", "x"], ["index", "build", "a"],
     ["index", "build", "a", "--from", "missing.jsonl"],
     ["index", "build", "a", "--from", "docs.jsonl", "--passages", "-1"],
     ["index", "build", "a", "--from", "docs.jsonl", "--dimension", "0"],
     ["index", "build", "a", "--from", "docs.jsonl", "--encoder", "bge"],
     *(["index", "build", "a", "--from", "docs.jsonl", "--encoder", "none", *option]
       for option in (["--dimension", "2"], ["--kind", "ivf"], ["--no-words"])),
     ["demo", "-k", "0"], ["demo", "--budget", "-1"]],
)  # fmt: skip
@pytest.mark.usefixtures("source")
def test_usage_error_exits_with_code_2(run: Run, arguments: list[str]) -> None:
    outcome = run(*arguments)
    assert outcome.code == 2
    assert "Usage: " in outcome.err and "Traceback" not in outcome.err


class TestConfig:
    def test_config_prints_the_effective_settings(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        Path("boundarymorph.toml").write_text("port = 1\nk = 2")
        monkeypatch.setenv("BOUNDARYMORPH_PORT", "3")
        shown = run("config")
        values = orjson.loads(shown.out)
        assert (shown.code, values["port"], values["k"], values["threads"]) == (0, 3, 2, None)

    def test_config_names_each_invalid_setting(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        Path("boundarymorph.toml").write_text("prot = 1\nk = 0")
        line = error_line(run("config"))
        assert "prot: " in line and "k: " in line
        monkeypatch.setenv("BOUNDARYMORPH_CONFIG", "missing.toml")
        assert "BOUNDARYMORPH_CONFIG" in error_line(run("config"))


@pytest.mark.usefixtures("tiny_weights")
class TestIndexes:
    def test_index_commands_build_inspect_and_delete_an_index(self, run: Run, source: Path) -> None:
        columns = "name documents dim kind encoder MB created"
        assert run("index", "list").out.split() == columns.split()

        built = run("index", "build", "few", "--from", str(source))
        assert (built.code, built.err) == (0, "")
        assert "few: 4 documents: 4 added; " in built.out and "skipped" not in built.out
        assert "0 added, 4 unchanged; " in run("index", "build", "few", "--from", str(source)).out
        source.write_bytes(source.read_bytes().replace(b"four", b"4"))
        assert "0 added, 1 updated, 3 unchanged" in run("index", "build", "few", "--from", str(source)).out

        assert "not kept" not in built.out
        source.write_bytes(source.read_bytes().replace(b'"metadata"', b'"meta"'))
        assert "which were not kept: 'meta' in 1;" in run("index", "build", "misspelt", "--from", str(source)).out
        assert run("index", "delete", "misspelt").code == 0

        row = run("index", "list").out.splitlines()[1].split()
        assert row[:4] == ["few", "4", "384", "flat"] and row[4].startswith("bge-small-en")

        selected = run("select", "few", "string [b]instruments[/b] :key:", "-B", "2", "-k", "3", "--rounds", "1")
        assert (selected.code, selected.err) == (0, "")
        assert "string [b]instruments[/b] :key:" in selected.out
        assert "violin" in selected.out and "A violin has 4 strings." in selected.out
        assert "2 of 2 cross-encoder calls in 1 round" in selected.out
        everything = run("select", "few", "bread", "-k", "9", "-B", "0").out
        assert "bread:key:1" in everything and "Yeast makes the [dough] rise." in everything

        filtered = run("select", "few", "strings", "-k", "9", "-B", "0", "--filter", '{"line": 4}', "--hybrid").out
        assert filtered.count("inferred ±") == 1 and "Trams leave" in filtered

        several = run("select", "few", "bread", "--also", "violins", "-B", "3", "-k", "2", "-N", "4", "--json")
        answer = SelectResponse.model_validate_json(several.out)
        assert (answer.usage.cross_encoder_calls, answer.pool_size) == (3, 4)
        assert {len(one.relevances or ()) for one in answer.documents} == {2}

        assert run("index", "delete", "few") == Outcome(0, "few deleted\n", "")
        assert "'few'" in error_line(run("select", "few", "q"))

    @pytest.mark.slow
    def test_select_answers_a_file_of_queries(
        self, run: Run, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The command selects with the service at a URL, or starts one."""
        assert run("index", "build", "few", "--from", str(source)).code == 0
        queries = tmp_path / "queries"
        lines = "strings", "", '{"id": "b", "query": "bread", "k": 1}', '{"query": "x", "index": "none"}'
        queries.write_text("\n".join((*lines, '{"queries": ["a", "b"]}\n')))
        command = ["select", "few", "--queries", str(queries), "-B", "2", "-k", "2"]
        with service(tmp_path / "data") as served:
            printed = run(*command, "--url", served.url)
            assert (
                printed.code == 1 and "selecting: 0 of 4" in printed.err and "1 of 4 selections failed" in printed.err
            )
            found = [orjson.loads(line) for line in printed.out.splitlines()]
            assert [line["id"] for line in found] == [1, "b", 4, 5]
            assert [len(line["answer"]["documents"]) for line in found if "answer" in line] == [2, 1, 2]
            assert "(404 unknown-index)" in found[2]["error"]
            monkeypatch.setenv("BOUNDARYMORPH_URL", served.url)
            queries.write_text("strings\n")
            assert run(*command).code == 0
        assert "cannot be reached" in orjson.loads(run(*command).out)["error"]
        monkeypatch.delenv("BOUNDARYMORPH_URL")
        started = run(*command)  # other weights made the vectors of this index
        assert "encoder" in orjson.loads(started.out)["error"]

    @pytest.mark.strangers
    @pytest.mark.parametrize("wrong", ['{"query": ""}', '{"query": " "}', '{"text": "bread"}', '{"queries": []}'])
    def test_select_checks_a_file_of_queries_before_any_request(self, run: Run, wrong: str) -> None:
        Path("queries").write_text('{"id": "a", "query": "strings"}\n\n' + wrong + "\nsteam\n")
        told = error_line(run("select", "few", "--queries", "queries", "--url", "http://127.0.0.1:9"))
        assert "line 3 has no 'query' to read" in told

    def test_index_snapshot_and_restore_copy_an_index(self, run: Run, source: Path) -> None:
        run("index", "build", "few", "--from", str(source))
        assert "few: 4 documents, " in run("index", "snapshot", "few", "--to", "copies/one").out
        assert "copies/one already exists" in error_line(run("index", "snapshot", "few", "--to", "copies/one"))
        assert run("index", "delete", "few").code == 0
        assert run("index", "restore", "few", "--from", "copies/one") == Outcome(0, "few: 4 documents restored\n", "")
        assert "0 added, 4 unchanged; " in run("index", "build", "few", "--from", str(source)).out
        assert "--replace" in error_line(run("index", "restore", "few", "--from", "copies/one"))
        assert run("index", "restore", "few", "--from", "copies/one", "--replace").code == 0
        assert "manifest.json" in error_line(run("index", "restore", "other", "--from", "copies"))
        store = Path("copies/one/index.sqlite3")
        store.write_bytes(store.read_bytes()[:-1] + b"!")
        assert str(store) in error_line(run("index", "restore", "other", "--from", "copies/one"))
        assert "'none'" in error_line(run("index", "snapshot", "none", "--to", "copies/none"))

    @pytest.mark.strangers
    def test_index_build_reports_skipped_lines(self, run: Run, source: Path) -> None:
        source.write_bytes(
            source.read_bytes() + b'\nnot json\n{"id": "x"}\n{"id": "y", "text": "\xe9"}\n' + b"[" * 2_000
        )
        outcome = run("index", "build", "few", "--from", str(source))
        assert outcome.code == index.SKIPPED
        assert "4 added" in outcome.out and "4 skipped" in outcome.out
        for line in (5, 6, 7, 8):
            assert f"\n  line {line} skipped: " in outcome.out
        strict = run("index", "build", "none", "--from", str(source), "--strict")
        assert strict.code == 1
        assert strict.err.startswith("error: line 5: ") and strict.err.count("\n") == 1
        assert [line.split()[:2] for line in run("index", "list").out.splitlines()[1:]] == [["few", "4"]]


@pytest.mark.strangers
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.usefixtures("tiny_weights")
def test_interrupted_index_build_resumes(run: Run, source: Path, tmp_path: Path, number: signal.Signals) -> None:
    """The build is killed while it waits for input.

    From the first passage on, selections are distinct by document.
    """
    count = 300
    lines = [orjson.dumps({"id": n, "text": f"the number {n}"}) + b"\n" for n in range(count)]
    source.write_bytes(b"".join(lines))
    os.mkfifo("pipe")
    options, errors = ["index", "build", "many", "--passages", "100", "--from"], tmp_path / "errors"
    with (
        errors.open("wb") as output,
        forked.start(
            [*options, "pipe"], output=output.fileno(), environment=os.environ, directory=tmp_path
        ) as building,
        Path("pipe").open("wb") as pipe,
    ):
        pipe.write(b"".join(lines[:80]))
        pipe.flush()
        until(lambda: stored() >= 64 or building.poll() is not None)
        building.send_signal(number)
        assert building.wait(timeout=PATIENCE) == (index.INTERRUPTED if number == signal.SIGINT else -number)
    printed = errors.read_bytes()
    assert b"Traceback" not in printed
    assert number != signal.SIGINT or b"stopped after 64 documents; repeat the command to go on" in printed
    assert LocalCatalog(Path("data/indexes")).artifacts("many").read().distinct == "document"
    outcome = run(*options, str(source))
    assert f"many: {count} passages of {count} documents: {count - 64} added, 64 unchanged; " in outcome.out
    assert stored() == count


def stored() -> int:
    if Path("data/indexes").exists():
        with suppress(UnknownIndex), closing(LocalCatalog(Path("data/indexes"))) as catalog:
            return catalog.get("many").count()
    return 0


def test_closed_output_pipe_prints_no_traceback() -> None:
    command, pipe = [sys.executable, "-m", "boundarymorph.cli", "config"], subprocess.PIPE
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, env=environment) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


class TestKeys:
    def test_key_command_prints_a_secret_and_a_matching_key(self, run: Run) -> None:
        made = run("key", "rag", "--scope", "select", "--scope", "write", "--index", "photos", "--index", "team-*")
        (_, secret), (_, line) = (text.split() for text in made.out.splitlines())
        assert line.endswith(":photos,team-*")
        caller = KeyRing([line]).caller(f"Bearer {secret}")
        assert caller.restrict(Scope.WRITE).name == "rag"
        assert caller.sees("team-a") and not caller.sees("other")
        assert "No Where" in error_line(run("key", "rag", "--index", "No Where"))

    def test_unknown_scope_and_open_address_without_keys_are_refused(self, run: Run) -> None:
        line = error_line(run("key", "rag", "--scope", "root"))
        assert "root" in line and "select" in line
        for role in ("serve", "scorer", "retriever"):
            assert "boundarymorph key" in run(role, "--host", "0.0.0.0", "--port", "0").err


def test_serve_takes_a_scorer_model_or_scorer_urls(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    served = list[Settings]()

    def serve(_: object, settings: Settings, *__: object) -> int:
        served.append(settings)
        return 0

    monkeypatch.setattr(process, "serve", serve)
    model, urls = ["--scorer", "bge-reranker-v2-m3"], ["--scorer-url", "tei://one", "--scorer-url", "tei://other"]
    for options in (model, urls, []):
        assert run("serve", *options).code == 0
    assert [each.scorer.model for each in served] == ["bge-reranker-v2-m3", None, None]
    assert [each.scorer.url for each in served] == [(), ("tei://one", "tei://other"), ()]
    assert "not both" in run("serve", *model, *urls).err


class TestWithoutTheEncoder:
    @pytest.fixture(autouse=True)
    def _no_encoder(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(build, "build_encoder", None)

    def test_index_build_takes_own_vectors_of_the_index_dimension(self, run: Run, source: Path) -> None:
        own = [{"id": n, "text": "t", "embedding": [1, n]} for n in range(3)]
        bad = [{"id": "none", "text": "t"}, {"id": "other", "text": "t", "embedding": [1, 2, 3]}]
        source.write_bytes(b"\n".join(map(orjson.dumps, [*own, *bad])))
        command = ["index", "build", "own", "--from", str(source), "--dimension"]
        outcome = run(*command, "2")
        assert (outcome.code, outcome.err) == (index.SKIPPED, "")
        assert "3 added" in outcome.out and "2 skipped" in outcome.out
        assert "line 4 skipped: no embedding" in outcome.out and "line 5 skipped: embedding: it has 3" in outcome.out
        told = index_info(run, "own")
        assert (told["dimension"], told["metric"], told["encoder"]) == ("2", "cosine", "own vectors")
        assert "2 dimensions" in error_line(run(*command, "3"))

    def test_index_build_without_encoder_makes_an_index_of_words(self, run: Run, source: Path) -> None:
        outcome = run("index", "build", "words", "--from", str(source), "--encoder", "none")
        assert (outcome.code, outcome.err) == (0, "")
        run("index", "describe", "words", "Talks about music.")
        told = index_info(run, "words")
        assert told["description"] == "Talks about music."
        assert (told["dimension"], told["kind"], told["encoder"]) == ("0", "words", "none")
        assert run("index", "compact", "words").code == 0


@pytest.fixture
def own_vectors_command(source: Path) -> list[str]:
    """Return the arguments that build an index of own vectors from `source` without an encoder."""
    records = [{"id": str(n), "text": "t", "metadata": {"n": n}, "embedding": [1, n]} for n in range(3)]
    source.write_bytes(b"\n".join(map(orjson.dumps, records)))
    return ["index", "build", "own", "--dimension", "2", "--from"]


def index_info(run: Run, name: str) -> dict[str, str]:
    """Return the output of `index info` by label."""
    return dict(line.split(maxsplit=1) for line in run("index", "info", name).out.splitlines())


def index_counts(run: Run) -> list[list[str]]:
    """Return the names of all indexes and their document counts."""
    return [line.split()[:2] for line in run("index", "list").out.splitlines()[1:]]


class TestSources:
    @pytest.mark.parametrize("packed", [False, True])
    @pytest.mark.parametrize("way", ["file", "-"])
    def test_index_build_reads_plain_and_gzip_sources(
        self,
        run: Run,
        source: Path,
        own_vectors_command: list[str],
        packed: bool,
        way: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Gzip files may have several members and any name, and may come from standard input."""
        if packed:
            lines = source.read_bytes().splitlines(keepends=True)
            source.write_bytes(gzip.compress(lines[0]) + gzip.compress(b"".join(lines[1:])))
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=BufferedReader(BytesIO(source.read_bytes()))))
        assert "own: 3 documents: 3 added; " in run(*own_vectors_command, str(source) if way == "file" else way).out
        assert index_counts(run) == [["own", "3"]]

    @pytest.mark.parametrize("cut", [slice(0, -8), slice(0, 11)])
    def test_index_build_names_a_damaged_gzip_file(
        self, run: Run, source: Path, own_vectors_command: list[str], cut: slice
    ) -> None:
        source.write_bytes(gzip.compress(source.read_bytes())[cut])
        assert "docs.jsonl is a damaged gzip file" in error_line(run(*own_vectors_command, str(source)))

    @pytest.mark.parametrize(
        ("body", "options", "told"),
        [(b"a\nb\n", (), "no line of"), (b"a\n", ("--strict",), "line 1: "), (b"\n", (), "")],
    )
    def test_index_build_without_usable_lines_leaves_no_index(
        self, run: Run, source: Path, own_vectors_command: list[str], body: bytes, options: tuple[str, ...], told: str
    ) -> None:
        whole = source.read_bytes()
        for before in ([], [["own", "3"]]):
            source.write_bytes(body)
            outcome = run(*own_vectors_command, str(source), *options)
            assert (outcome.code, outcome.err.count("\n")) == ((1, 1) if told else (0, 0))
            assert told in outcome.err and (told or "docs.jsonl is empty" in outcome.out)
            assert index_counts(run) == before
            source.write_bytes(whole)
            assert run(*own_vectors_command, str(source)).code == 0


STORE = "INDEX_STORE=lake STORES__LAKE__URL=milvus://milvus"
RETRIEVER = "RETRIEVER__URL=http://retriever:8082"
LOCAL = [["compact", "a"], ["words", "a"], ["snapshot", "a", "--to", "b"], ["restore", "a", "--from", "."]]
ANYWHERE = [["list"], ["info", "a"], ["describe", "a", "b"], ["delete", "a"], ["build", "a", "--from", "docs.jsonl"]]


class TestRemoteIndexes:
    """Commands use a service for the indexes of another machine, or say where the indexes are."""

    @pytest.mark.parametrize(
        ("setting", "command", "says"),
        [
            *((STORE, command, f"index_store is 'lake', and `index {command[0]}` is for indexes on this machine only")
              for command in LOCAL),
            *((RETRIEVER, command, "the indexes are at http://retriever:8082") for command in (*LOCAL, *ANYWHERE)),
        ],
    )  # fmt: skip
    @pytest.mark.usefixtures("source")
    def test_index_commands_refuse_indexes_that_are_elsewhere(
        self, run: Run, setting: str, command: list[str], says: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in (part.split("=") for part in setting.split()):
            monkeypatch.setenv(f"BOUNDARYMORPH_{name}", value)
        monkeypatch.setattr(build, "build_encoder", None)  # the command is refused before a model is loaded
        assert says in error_line(run("index", *command))
        assert not Path("data").exists()


@pytest.mark.usefixtures("tiny_weights")
def test_index_kind_is_shown_and_trained_on_compaction(run: Run, source: Path) -> None:
    assert run("index", "build", "few", "--from", str(source), "--kind", "ivf").code == 0
    told = index_info(run, "few")
    assert (told["kind"], told["documents"], told["dimension"]) == ("ivf", "4", "384")
    assert "trained" not in told
    assert run("index", "compact", "few").code == 0
    told = index_info(run, "few")
    assert "4 documents" in told["trained"]
    assert any(label.startswith("recall@") for label in told)
    assert "use one of flat, ivf" in error_line(run("index", "build", "new", "--from", str(source), "--kind", "hnsw"))
    assert run("index", "info", "none").code == 1
