"""Test cross-encoders of every architecture against transformers and sentence-transformers."""

import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from boundarymorph.errors import InvalidConfiguration, ModelUnavailable, ScorerFailed
from boundarymorph.inference.models import DeviceLost, OutOfMemory
from boundarymorph.inference.transformer import Precision, run_on_device
from boundarymorph.scoring.scorer import CrossEncoder
from boundarymorph.scoring.transformer import TransformerCrossEncoder
from tests.scoring.transformer import reference, tiny
from tests.scoring.transformer.conftest import Folder, Opened
from tests.scoring.transformer.tiny import CLASSIFIERS, GENERATORS, LONG, OTHER_QUERY, QUERY, TEXTS

WITH_ROOM = [text for text in TEXTS if len(text) < 120]
CHAT_TEMPLATE = (
    "<|im_start|>system\n{{ messages | selectattr('role', 'eq', 'system') | map(attribute='content') | first "
    "| default('Find what answers.') }}<|im_end|>\n<|im_start|>user\n"
    "Q: {{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }}\n"
    "D: {{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}<|im_end|>\n"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def load(folder: Path, **options: object) -> TransformerCrossEncoder:
    return TransformerCrossEncoder.load(str(folder), **{"device": "cpu", "threads": 1} | options)  # type: ignore[arg-type]


def scores(encoder: CrossEncoder, query: str, texts: list[str]) -> NDArray[np.float64]:
    return encoder.run(encoder.tokenize(query, texts))


def theirs_of(folder: Path) -> Any:
    """Return the sentence-transformers model of a folder; the import takes seconds."""
    from sentence_transformers import CrossEncoder as TheirCrossEncoder

    return TheirCrossEncoder(str(folder), device="cpu", local_files_only=True)


class TestScores:
    @pytest.mark.parametrize("name", CLASSIFIERS)
    def test_classifier_scores_equal_those_of_sentence_transformers(
        self, folder: Folder, opened: Opened, name: str
    ) -> None:
        theirs = theirs_of(folder(name))
        for query in (QUERY, OTHER_QUERY):
            expected = theirs.predict(
                [(query, text) for text in WITH_ROOM], activation_fn=torch.nn.Sigmoid(), show_progress_bar=False
            )
            found = scores(opened(name, "fp32"), query, WITH_ROOM)
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)

    def test_classifier_of_two_labels_scores_by_softmax(self, tmp_path: Path) -> None:
        found = scores(load(tiny.bert(tmp_path, labels=2)), QUERY, TEXTS)
        expected = reference.classifier_scores(tmp_path, QUERY, TEXTS)
        assert np.ptp(expected) > 0.01
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)

    @pytest.mark.parametrize("name", GENERATORS)
    def test_causal_model_scores_equal_those_of_transformers(self, folder: Folder, opened: Opened, name: str) -> None:
        family = name.partition("-")[0]
        ask = {"zerank": reference.yes_logit, "mxbai": reference.one_against_zero}.get(family, reference.yes_against_no)
        encoder = opened(name, "fp32")
        for query in (QUERY, ""):
            expected = ask(folder(name), query, TEXTS)
            assert np.ptp(expected) > 0.02
            np.testing.assert_allclose(scores(encoder, query, TEXTS), expected, rtol=0, atol=1e-5)

    @pytest.mark.parametrize("name", [*CLASSIFIERS, *GENERATORS])
    @pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 6e-2), ("fp16", 1e-2)])
    def test_lower_precisions_give_close_scores(
        self, opened: Opened, name: str, precision: Precision, tolerance: float
    ) -> None:
        exact = scores(opened(name, "fp32"), QUERY, TEXTS)
        rounded = scores(opened(name, precision), QUERY, TEXTS)
        np.testing.assert_allclose(rounded, exact, rtol=0, atol=tolerance)
        assert np.abs(rounded - exact).max() > 0

    def test_nan_score_raises_scorer_failed(self, tmp_path: Path) -> None:
        encoder = load(spoiled(tiny.bert(tmp_path), "classifier.bias"))
        with pytest.raises(ScorerFailed, match="not a number"):
            scores(encoder, QUERY, TEXTS)

    def test_closed_model_refuses_to_score(self, folder: Folder) -> None:
        encoder = load(folder("bert"))
        pairs = encoder.tokenize(QUERY, TEXTS)
        encoder.close()
        with pytest.raises(ScorerFailed, match="closed"):
            encoder.run(pairs)


def spoiled(folder: Path, weight: str) -> Path:
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights[weight] = torch.full_like(weights[weight], float("nan"))
    save_file(weights, path, metadata={"format": "pt"})
    return folder


CONTRACTED: list[tuple[str, Precision]] = [
    *((name, "fp32") for name in ("bert", "deberta", "modernbert", "Qwen3-Reranker-tiny", "Qwen3-Reranker-windowed")),
    ("bert", "bf16"),
    ("Qwen3-Reranker-tiny", "fp16"),
]


class TestContract:
    tolerance: float

    @pytest.fixture(params=CONTRACTED, ids=lambda chosen: "-".join(chosen))
    def encoder(self, opened: Opened, request: pytest.FixtureRequest) -> CrossEncoder:
        name, precision = request.param
        self.tolerance = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 1e-2}[precision]
        return opened(name, precision)

    def test_model_scores_are_floats_within_0_and_1(self, encoder: CrossEncoder) -> None:
        scores = encoder.run(encoder.tokenize(QUERY, TEXTS))
        assert scores.shape == (len(TEXTS),)
        assert scores.dtype == np.float64
        assert ((scores >= 0) & (scores <= 1)).all()
        assert np.ptp(scores) > 0.05

    def test_score_of_a_pair_is_independent_of_its_batch(self, encoder: CrossEncoder) -> None:
        pairs = encoder.tokenize(QUERY, TEXTS)
        others = encoder.tokenize(OTHER_QUERY, TEXTS)
        together = encoder.run(pairs)
        backwards = encoder.run(pairs[::-1])[::-1]
        alone = np.concatenate([encoder.run([pair]) for pair in pairs])
        mixed = encoder.run([pair for both in zip(pairs, others, strict=True) for pair in both])[::2]
        twice = encoder.run([pairs[0], *pairs, *pairs[:3]])[1 : len(pairs) + 1]
        for scores in (backwards, alone, mixed, twice):
            np.testing.assert_allclose(scores, together, rtol=0, atol=self.tolerance)

    def test_model_scores_equally_from_several_threads(self, encoder: CrossEncoder) -> None:
        batches = [encoder.tokenize(query, TEXTS[:5]) for query in (QUERY, OTHER_QUERY)] * 2
        with ThreadPoolExecutor(3) as threads:
            concurrently = list(threads.map(encoder.run, batches))
        for batch, scores in zip(batches, concurrently, strict=True):
            np.testing.assert_allclose(scores, encoder.run(batch), rtol=0, atol=self.tolerance)

    def test_tokenized_pairs_are_cut_to_the_max_length(self, encoder: CrossEncoder) -> None:
        pairs = encoder.tokenize(QUERY, [*TEXTS, LONG * 20])
        assert [pair.truncated for pair in pairs][-1]
        assert len(pairs[-1]) == encoder.max_length
        assert all(len(pair) <= encoder.max_length for pair in pairs)
        assert not any(pair.truncated for pair in pairs[:3])

    def test_model_accepts_empty_texts_and_no_texts(self, encoder: CrossEncoder) -> None:
        assert encoder.tokenize(QUERY, []) == []
        assert encoder.run([]).shape == (0,)
        assert np.isfinite(encoder.run(encoder.tokenize("", ["", "x"]))).all()


class TestDescribed:
    """Repositories whose sentence-transformers files describe the prompt."""

    @pytest.fixture
    def described(self, tmp_path: Path) -> Path:
        folder = tiny.qwen3(tmp_path / "reranker")
        tiny.describe(folder, chat_template=CHAT_TEMPLATE, yes="yes", no="no")
        return folder

    @pytest.mark.parametrize(("no", "prompts"), [("no", None), (None, {"default": "Find timetables."})])
    def test_described_model_is_prompted_like_sentence_transformers(
        self, tmp_path: Path, no: str | None, prompts: dict[str, str] | None
    ) -> None:
        folder = tiny.qwen3(tmp_path / "reranker")
        tiny.describe(folder, chat_template=CHAT_TEMPLATE, yes="Yes", no=no, prompts=prompts)
        theirs = theirs_of(folder)
        expected = theirs.predict([(QUERY, text) for text in TEXTS], show_progress_bar=False)
        assert np.ptp(expected) > 0.02
        np.testing.assert_allclose(scores(load(folder), QUERY, TEXTS), expected, rtol=0, atol=1e-5)

    def test_described_model_takes_the_configured_instruction(self, described: Path) -> None:
        theirs = theirs_of(described)
        expected = theirs.predict([(QUERY, text) for text in TEXTS], prompt="Find buses.", show_progress_bar=False)
        encoder = load(described, instruction="Find buses.")
        np.testing.assert_allclose(scores(encoder, QUERY, TEXTS), expected, rtol=0, atol=1e-5)
        assert encoder.name != load(described).name

    @pytest.mark.parametrize(
        "template", ["{{ messages[0].content }}", "{{ raise_exception('no') }}", CHAT_TEMPLATE + CHAT_TEMPLATE]
    )
    def test_chat_template_without_pair_fields_is_refused(self, described: Path, template: str) -> None:
        (described / "chat_template.jinja").write_text(template, encoding="utf-8")
        with pytest.raises(InvalidConfiguration, match="chat template"):
            load(described)


class TestName:
    def test_transformer_name_has_model_revision_precision_and_length(self, folder: Folder) -> None:
        encoder = load(folder("bert"), precision="bf16", max_length=64)
        model, _, rest = encoder.name.partition("@")
        revision, precision, length = rest.split("/")
        assert (model, len(revision), precision, length) == ("bert", 12, "bf16", "64")
        assert encoder.backend == "torch-cpu"

    def test_transformer_name_depends_on_prompt_and_instruction(self, folder: Folder) -> None:
        path = folder("Qwen3-Reranker-tiny")
        names = {
            load(path).name,
            load(path, instruction="Find timetables").name,
            load(path, instruction="Find violins").name,
            load(path, prompt="zerank").name,
        }
        assert len(names) == 4
        assert load(path, instruction=reference.WEB_SEARCH).name == load(path).name


class TestSettings:
    @pytest.mark.parametrize("name", ["bert", "xlm-roberta", "deberta", "modernbert"])
    def test_max_length_defaults_to_the_positions_of_the_model(self, folder: Folder, name: str) -> None:
        encoder = load(folder(name))
        assert encoder.max_length == 96
        (pair,) = encoder.tokenize(QUERY, [LONG * 10])
        assert len(pair) == 96
        assert np.isfinite(encoder.run([pair])).all()

    @pytest.mark.parametrize(
        ("name", "options", "message"),
        [
            ("bert", {"prompt": "llama"}, "qwen3, zerank, mxbai, chat"),
            ("bert", {"prompt": "chat"}, "qwen3, zerank, mxbai, chat"),
            ("bert", {"instruction": "Find timetables"}, "takes no instruction"),
            ("bert", {"device": "abacus"}, "abacus"),
            ("bert", {"device": "cuda:99"}, "cuda:99"),
            ("xlm-roberta", {"max_length": 7}, "8 to 96"),
            ("xlm-roberta", {"max_length": 97}, "8 to 96"),
            ("Qwen3-Reranker-tiny", {"max_length": 64}, "leave no room"),
        ],
    )
    def test_options_that_do_not_fit_the_model_are_refused(
        self, folder: Folder, name: str, options: dict[str, object], message: str
    ) -> None:
        with pytest.raises(InvalidConfiguration, match=message):
            load(folder(name), **options)

    def test_causal_model_without_a_known_prompt_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidConfiguration, match="choose a --prompt of qwen3, zerank, mxbai, chat"):
            load(tiny.qwen3(tmp_path / "chatty"))
        assert load(tmp_path / "chatty", prompt="zerank").name

    def test_model_not_trained_to_rank_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidConfiguration, match="3 labels"):
            load(tiny.bert(tmp_path / "topics", labels=3))
        path = tiny.bert(tmp_path / "body")
        weights = {name: w for name, w in load_file(path / "model.safetensors").items() if "classifier" not in name}
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(InvalidConfiguration, match=r"classifier\.\w+ is missing"):
            load(path)
        config = path / "config.json"
        config.write_text(config.read_text(encoding="utf-8").replace("SequenceClassification", "MaskedLM"))
        with pytest.raises(InvalidConfiguration, match="BertForMaskedLM"):
            load(path)


class TestFiles:
    @pytest.mark.parametrize(
        ("name", "size"),
        [("config.json", 0), ("tokenizer.json", 0), ("model.safetensors", 0), ("model.safetensors", 1_000)],
    )
    def test_incomplete_download_is_reported_as_unavailable(
        self, tmp_path: Path, folder: Folder, name: str, size: int
    ) -> None:
        """The file has `size` bytes, or is missing.

        A pickle beside it is never opened.
        """
        path = Path(shutil.copytree(folder("bert"), tmp_path / "bert"))
        torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
        begun = (path / name).read_bytes()[:size]
        (path / name).write_bytes(begun) if size else (path / name).unlink()
        with pytest.raises(ModelUnavailable, match="download it again"):
            load(path)


class TestFailures:
    @pytest.mark.parametrize(
        ("error", "translated"),
        [
            (torch.OutOfMemoryError("CUDA out of memory"), OutOfMemory),
            (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"), OutOfMemory),
            (torch.AcceleratorError("CUDA error: device-side assert triggered"), DeviceLost),
            (RuntimeError("CUDA error: an illegal memory access was encountered"), DeviceLost),
            (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), DeviceLost),
            (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), RuntimeError),
        ],
    )
    def test_device_errors_become_typed_errors(self, error: Exception, translated: type[Exception]) -> None:
        def fail() -> None:
            raise error

        with pytest.raises(translated, match=str(error)[:20]):
            run_on_device(fail)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
