"""Test dual encoders of every architecture against transformers and sentence-transformers."""

from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling as TheirPooling
from tokenizers import Tokenizer, processors
from transformers import AutoModel, AutoTokenizer

from boundarymorph.errors import EncoderFailed, InvalidConfiguration
from boundarymorph.retrieval.encoders import WEB_SEARCH
from boundarymorph.retrieval.encoders.encoder import BatchingEncoder
from boundarymorph.retrieval.encoders.transformer import TransformerDualEncoder
from tests.contract.encoder import EncoderContract
from tests.scoring.transformer import tiny
from tests.scoring.transformer.tiny import LONG, QUERY, TEXTS

Folder = Callable[[str], Path]
INSTRUCTION = f"Instruct: {WEB_SEARCH}\nQuery:"
PASSAGES = "Represent this sentence for searching relevant passages: "
ASKED = {
    "multilingual-e5-tiny": ("mean", "query: ", "passage: "),
    "bge-small-en-tiny": ("cls", PASSAGES, ""),
    "Qwen3-Embedding-tiny": ("last", INSTRUCTION, ""),
    "gte-modernbert-tiny": ("cls", "", ""),
    "gte-tiny": ("mean", "", ""),
    "deberta-tiny": ("mean", "", ""),
    "windowed-Qwen3-Embedding-tiny": ("last", INSTRUCTION, ""),
}
THEIR_POOLING = {"mean": "mean", "cls": "cls", "last": "lasttoken"}


def ended(folder: Path) -> Path:
    """Use the tokenizer of Qwen3-Embedding, which adds an end token to each text."""
    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", pair="$A <|endoftext|> $B <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
    )
    tokenizer.save(path)
    return folder


MADE: dict[str, Callable[[Path], Path]] = {
    "multilingual-e5-tiny": tiny.xlm_roberta,
    "bge-small-en-tiny": tiny.bert,
    "Qwen3-Embedding-tiny": lambda folder: ended(tiny.qwen3(folder)),
    "gte-modernbert-tiny": tiny.modernbert,
    "gte-tiny": tiny.xlm_roberta,
    "deberta-tiny": tiny.deberta,
    "windowed-Qwen3-Embedding-tiny": lambda folder: ended(tiny.qwen2(folder)),
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    @cache
    def made(name: str) -> Path:
        return MADE[name](tmp_path_factory.mktemp("encoders") / name)

    return made


def load(folder: Path, **options: Any) -> TransformerDualEncoder:
    return TransformerDualEncoder.load(str(folder), **{"device": "cpu", "threads": 1} | options)  # type: ignore[arg-type]


def queries(encoder: TransformerDualEncoder, *texts: str) -> NDArray[np.float32]:
    return encoder.run([encoder.tokenize_query(text) for text in texts])


def documents(encoder: TransformerDualEncoder, *texts: str) -> NDArray[np.float32]:
    return encoder.run(encoder.tokenize_documents(texts))


def by_hand(folder: Path, pooling: str, *texts: str, length: int = 96) -> NDArray[np.float64]:
    """Encode each text alone, without padding, with plain transformers."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModel.from_pretrained(folder)
    rows = []
    with torch.no_grad():
        for text in texts:
            features = tokenizer(text, return_tensors="pt", truncation=True, max_length=length)
            states = model(**features).last_hidden_state[0].double()
            rows.append(states.mean(dim=0) if pooling == "mean" else states[0 if pooling == "cls" else -1])
    vectors: NDArray[np.float64] = torch.nn.functional.normalize(torch.stack(rows)).numpy()
    return vectors


def described(folder: Path, target: Path, **options: Any) -> SentenceTransformer:
    """Return the model with the files that sentence-transformers writes for it."""
    transformer: Any = Transformer(str(folder))
    pooling = TheirPooling(transformer.get_embedding_dimension(), options.pop("pooling"))
    theirs = SentenceTransformer(modules=[transformer, pooling, Normalize()], device="cpu", **options)
    theirs.save(str(target))
    return theirs


class TestVectors:
    @pytest.mark.parametrize("name", MADE)
    def test_vectors_equal_those_of_transformers(self, folder: Folder, name: str) -> None:
        pooling, query, document = ASKED[name]
        encoder = load(folder(name), max_length=96)
        asked = [QUERY, "", "what has four strings?"]
        expected = by_hand(folder(name), pooling, *(query + text for text in asked))
        np.testing.assert_allclose(queries(encoder, *asked), expected, rtol=0, atol=1e-5)
        told = [*TEXTS, LONG]
        expected = by_hand(folder(name), pooling, *(document + text for text in told))
        assert np.ptp(expected @ expected.T) > 0.01
        np.testing.assert_allclose(documents(encoder, *told), expected, rtol=0, atol=1e-5)

    @pytest.mark.parametrize(
        ("name", "prompts"),
        [
            ("multilingual-e5-tiny", {"query": "query: ", "document": "passage: "}),
            ("bge-small-en-tiny", {"query": PASSAGES}),
            ("Qwen3-Embedding-tiny", {"query": INSTRUCTION, "document": ""}),
            ("gte-modernbert-tiny", {"query": "find: ", "passage": "found: "}),
            ("deberta-tiny", {}),
        ],
    )
    def test_vectors_equal_those_of_sentence_transformers(
        self, folder: Folder, tmp_path: Path, name: str, prompts: dict[str, str]
    ) -> None:
        theirs = described(folder(name), tmp_path / "described", pooling=THEIR_POOLING[ASKED[name][0]], prompts=prompts)
        encoder = load(tmp_path / "described")
        told = [text for text in TEXTS if text]
        expected = theirs.encode_query([QUERY, told[0]], show_progress_bar=False)
        np.testing.assert_allclose(queries(encoder, QUERY, told[0]), expected, rtol=0, atol=1e-5)
        expected = theirs.encode_document(told, show_progress_bar=False)
        np.testing.assert_allclose(documents(encoder, *told), expected, rtol=0, atol=1e-5)

    def test_dense_layers_after_the_pooling_are_applied(self, folder: Folder, tmp_path: Path) -> None:
        transformer: Any = Transformer(str(folder("multilingual-e5-tiny")))
        torch.manual_seed(4)
        layers = [Dense(32, 48, bias=False, activation_function=torch.nn.Identity()), Dense(48, 24)]
        modules = [transformer, TheirPooling(32, "mean"), *layers, Normalize()]
        theirs = SentenceTransformer(modules=modules, device="cpu")
        theirs.save(str(tmp_path / "layered"))
        told = [text for text in TEXTS if text]
        expected = theirs.encode(told, show_progress_bar=False)
        encoder = load(tmp_path / "layered", document_prompt="")
        assert encoder.dimension == 24
        np.testing.assert_allclose(documents(encoder, *told), expected, rtol=0, atol=1e-5)

    def test_options_override_what_the_model_describes(self, folder: Folder, tmp_path: Path) -> None:
        path = folder("multilingual-e5-tiny")
        encoder = load(path, pooling="last", query_prompt="Q ", document_prompt="")
        np.testing.assert_allclose(queries(encoder, QUERY), by_hand(path, "last", f"Q {QUERY}"), rtol=0, atol=1e-5)
        np.testing.assert_allclose(documents(encoder, *TEXTS), by_hand(path, "last", *TEXTS), rtol=0, atol=1e-5)
        path = folder("Qwen3-Embedding-tiny")
        encoder = load(path, instruction="Find timetables", dimension=8)
        expected = by_hand(path, "last", f"Instruct: Find timetables\nQuery:{QUERY}")[:, :8]
        found = queries(encoder, QUERY)
        np.testing.assert_allclose(found, expected / np.linalg.norm(expected, axis=1, keepdims=True), rtol=0, atol=1e-5)
        short = load(folder("gte-tiny"), max_length=24)
        assert [text.truncated for text in short.tokenize_documents([LONG, "short"])] == [True, False]
        encoder.close()
        with pytest.raises(EncoderFailed, match="closed"):
            queries(encoder, QUERY)
        endless = load(tiny.qwen3(tmp_path / "endless"))
        assert [len(text) for text in endless.tokenize_documents(["", "x"])] == [1, 1]


@pytest.mark.parametrize(
    ("precision", "tolerance", "least"), [("fp32", 2e-6, 0.999999), ("bf16", 2e-2, 0.99), ("fp16", 4e-3, 0.9999)]
)
@pytest.mark.parametrize("name", MADE)
def test_vector_of_a_text_is_independent_of_its_batch(
    folder: Folder, name: str, precision: str, tolerance: float, least: float
) -> None:
    encoder = load(folder(name), precision=precision)
    texts = encoder.tokenize_documents([*TEXTS, LONG])
    together = encoder.run(texts)
    backwards = encoder.run(texts[::-1])[::-1]
    alone = np.concatenate([encoder.run([text]) for text in texts])
    with ThreadPoolExecutor(3) as threads:
        concurrently = list(threads.map(encoder.run, [texts] * 3))
    for vectors in (backwards, alone, *concurrently):
        np.testing.assert_allclose(vectors, together, rtol=0, atol=tolerance)
    exact = documents(load(folder(name)), *TEXTS, LONG)
    assert (together * exact).sum(axis=1).min() > least
    assert precision == "fp32" or np.abs(together - exact).max() > 0


class TestContract(EncoderContract):
    tolerance = 2e-6

    @pytest.fixture
    async def encoder(self, folder: Folder) -> AsyncIterator[BatchingEncoder]:
        encoder = BatchingEncoder(load(folder("bge-small-en-tiny"), threads=2))
        yield encoder
        await encoder.close()


def test_encoder_name_reflects_everything_that_changes_vectors(folder: Folder) -> None:
    encoder = load(folder("bge-small-en-tiny"), precision="bf16", max_length=64)
    model, _, rest = encoder.name.partition("@")
    revision, precision, length, recipe = rest.split("/")
    assert (model, len(revision), precision, length, len(recipe)) == ("bge-small-en-tiny", 12, "bf16", "64", 8)
    path = folder("Qwen3-Embedding-tiny")
    differing: list[dict[str, Any]] = [
        {},
        {"instruction": "Find timetables"},
        {"query_prompt": ""},
        {"document_prompt": "passage: "},
        {"pooling": "mean"},
        {"dimension": 16},
        {"max_length": 256},
    ]
    assert len({load(path, **options).name for options in differing}) == len(differing)
    same: list[dict[str, Any]] = [{}, {"instruction": WEB_SEARCH}, {"pooling": "last", "dimension": 32}]
    assert len({load(path, **options).name for options in same}) == 1


class TestSettings:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"instruction": "Find it"}, "take no instruction"),
            ({"dimension": 33}, "1 to 32 dimensions"),
            ({"max_length": 97}, "8 to 96"),
            ({"device": "abacus"}, "abacus"),
            ({"query_prompt": "[CLS] Q: "}, "special tokens"),
            ({"document_prompt": LONG}, "leaves no room"),
        ],
    )
    def test_options_that_do_not_fit_the_model_are_refused(
        self, folder: Folder, options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(InvalidConfiguration, match=message):
            load(folder("bge-small-en-tiny"), **options)
