"""The benchmarks that nobody here can run for real still run."""

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import orjson
import pytest
import torch

from boundarymorph.evaluation.methods import agentic
from boundarymorph.evaluation.methods.agentic import Chat
from boundarymorph.evaluation.problem import Question, QuestionTexts
from boundarymorph.evaluation.run import run_once
from boundarymorph.inference.transformer import transfers
from boundarymorph.inference.transformer.transfers import Transfers
from boundarymorph.scoring.transformer.model import TransformerCrossEncoder
from boundarymorph.selection import Pool
from load_tests import bench_sessions, gpu_check, report
from load_tests.bench_selection import round_sizes
from load_tests.evaluation_agents import ScriptedAgent
from load_tests.gpu_techniques import TECHNIQUES, Bench, filled, pageable, sent_one_by_one
from tests.faults import stand_in
from tests.patience import PATIENCE
from tests.scoring.transformer import tiny

REPOSITORY = Path(__file__).parents[2]


def test_the_gpu_check_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--device", "cpu", "--models", "smoke", "smoke-qwen", "--pairs", "6", "--batch-tokens", "256"]
    options += ["--precisions", "bf16", "--documents", "3000", "--dimension", "16", "--depth", "500", "--repeats", "1"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gpu_check", *options])
    gpu_check.main()
    for model in ("smoke", "smoke-qwen"):
        results = [orjson.loads(path.read_bytes()) for path in (tmp_path / "build/bench").glob(f"*-{model}.json")]
        assert len(results) == 4
        correctness = next(result for result in results if "from_float32_fp32" in result["ratios"])
        assert correctness["ratios"]["from_float32_fp32"] < 1e-5
        assert correctness["ratios"]["from_float32_bf16"] < 0.05
    table = (tmp_path / "build/bench/gpu.md").read_text().splitlines()
    for line in table[2:-2]:
        _, name, *_, gains, _ = (cell.strip() for cell in line.split("|"))
        found = [word for word in gains.replace(",", "").split() if word.startswith("smoke")]
        assert found == (["smoke", "smoke-qwen"] if TECHNIQUES[name].anywhere else [])
    searched = orjson.loads((tmp_path / "build/bench/gpu-search.json").read_bytes())["rows"]
    assert [(row["index"], row["depth"], row["same_ids"]) for row in searched] == [
        ("FlatIndex", 500, True),
        ("TorchIndex", 500, True),
    ]


def test_every_technique_of_the_gpu_page_is_measured() -> None:
    rows = filled(gpu_check.PAGE.read_text(), {"torch.compile": {"22M": 2.0, "8B": 1.25}}).splitlines()
    cells = {row.split("|")[1].strip(): row.split("|")[-2] for row in rows[2:]}
    assert list(cells) == list(TECHNIQUES)
    assert cells.pop("torch.compile") == " 22M 2.00, 8B 1.25 "
    assert not any(map(str.strip, cells.values()))


def test_what_is_measured_on_gpus_only_runs_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = []

    class Graph:
        def __init__(self) -> None:
            graphs.append(self)

        def replay(self) -> None:
            assert graphs == [self]

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", nullcontext)
    monkeypatch.setattr(torch, "compile", lambda call, *, dynamic: call if dynamic else None)
    load = partial(TransformerCrossEncoder.load, str(tiny.bert(tmp_path)), device="cpu")
    pairs = load().tokenize(tiny.QUERY, tiny.TEXTS)
    bench = Bench(load, pairs, batch_tokens=100, repeats=1, device="cpu")
    for technique in TECHNIQUES.values():
        if not technique.anywhere:
            without, with_it = technique.measure(bench)
            assert min(without, with_it) > 0
    assert len(graphs) == 1


def test_batches_that_are_sent_otherwise_have_the_same_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = TransformerCrossEncoder.load(str(tiny.bert(tmp_path)), device="cpu")
    pairs = model.tokenize(tiny.QUERY, tiny.TEXTS)
    expected = model.run(pairs)
    monkeypatch.setattr(Transfers, "send", sent_one_by_one)
    monkeypatch.setattr(transfers, "empty", pageable)
    np.testing.assert_array_equal(model.run(pairs), expected)


def test_the_gpu_check_says_when_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_check"])
    with pytest.raises(SystemExit, match="no GPU here"):
        gpu_check.main()


def test_sessions_a_second_are_measured_in_the_rounds_of_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert round_sizes("auto", 50) == [2, 2, 2, 3, 4, 5, 6, 7, 7, 6, 6]
    assert round_sizes("5", 12) == [5, 5, 2]
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    options = ["--pools", "60", "--dimensions", "8", "--budgets", "5", "10", "--repeats", "1", "--requests", "0"]
    monkeypatch.setattr(sys, "argv", ["bench_sessions", *options])
    bench_sessions.main()
    rows = orjson.loads((tmp_path / "sessions.json").read_bytes())["rows"]
    assert [(row["budget"], row["round_trips"]) for row in rows] == [(5, 3), (10, 5)]
    assert all(row["sessions_a_second_and_core"] == pytest.approx(1e3 / row["cpu_ms"]) for row in rows)


def test_a_script_plays_the_agent_over_a_socket() -> None:
    """It finds what is like the best of what it read before, which the query alone would not have found."""
    texts = [f"{name} text\n\n[see {name}]" for name in ("east", "north", "south", "west")]
    embeddings = np.array([[1.0, 0.0], [0.8, 0.6], [0.6, -0.8], [-0.6, 0.8]])
    pool = Pool.of(["e", "n", "s", "w"], embeddings, np.array([1.0, 0.0]))
    question = Question("q", pool, np.array([0.1, 0.0, 0.0, 0.9]), texts=QuestionTexts("the need", texts))
    searches: list[str] = []

    def embed(search: str) -> np.ndarray:
        searches.append(search)
        return np.array([-0.6, 0.8]) if "east" in search else np.array([1.0, 0.0])

    script = ScriptedAgent({("the need", text): score for text, score in zip(texts, question.scores, strict=True)})
    with stand_in.running(script) as server:
        chat = Chat(f"http://127.0.0.1:{server.port}/v1", "scripted")
        (agent,) = agentic.contestants(chat, embed, hops=(2,))
        run, ranking = run_once(agent.settings[0], question, 2, 2)
        chat.close()
    assert searches == ["the need", "the need east text [see east]"]
    assert run.prompts == len(server.asked) == 4
    assert [pool.ids[document] for document in ranking] == ["w", "e", "n", "s"]


def test_a_benchmark_that_is_stopped_has_told_what_it_has(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "load_tests.bench_selection", "--pool", "200", "--dimensions", "8"]
    command += ["--repeats", "1", "--k", "5", "--budgets", *["5"] * 10_000]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # which what runs the tests may ignore
    ) as running:
        assert running.stdout is not None
        first = running.stdout.readline()
        running.send_signal(signal.SIGINT)
        rest, errors = running.communicate(timeout=PATIENCE)
    assert first.startswith("pool 200  dimension 8  budget 5  ")
    assert (running.returncode, errors) == (130, "")
    assert rest.splitlines()[-1] == "stopped; what was measured by then is in build/bench"
    results = orjson.loads((tmp_path / "build/bench/selection.json").read_bytes())
    assert results["complete"] is False
    assert len(results["rows"]) - len(rest.splitlines()) in (0, 1)  # the last may be written and not printed
