"""Test the prompts and the pooling that a repository's files, or its family, specify."""

from typing import Any

import pytest

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.retrieval.encoders import WEB_SEARCH, Recipe, known_recipe
from boundarymorph.retrieval.encoders.transformer import described_recipe

TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}

DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}


def described(name: str = "model", **files: Any) -> Recipe:
    found = {
        "modules.json": files.get("modules"),
        "1_Pooling/config.json": files.get("pooling"),
        "config_sentence_transformers.json": files.get("config"),
        "sentence_bert_config.json": files.get("texts"),
    }
    return described_recipe(name, found.get)


@pytest.mark.parametrize(
    ("name", "pooling", "query", "document"),
    [
        ("intfloat/multilingual-e5-large", "mean", "query: ", "passage: "),
        ("intfloat/multilingual-e5-large-instruct", "mean", f"Instruct: {WEB_SEARCH}\nQuery: ", ""),
        ("intfloat/e5-mistral-7b-instruct", "last", f"Instruct: {WEB_SEARCH}\nQuery: ", ""),
        ("Qwen/Qwen3-Embedding-4B", "last", f"Instruct: {WEB_SEARCH}\nQuery:", ""),
        ("BAAI/bge-large-en-v1.5", "cls", "Represent this sentence for searching relevant passages: ", ""),
        ("BAAI/bge-m3", "cls", "", ""),
        ("Alibaba-NLP/gte-modernbert-base", "cls", "", ""),
        ("thenlper/gte-base", "mean", "", ""),
        ("nothing/known", "mean", "", ""),
    ],
)
def test_known_recipe_has_pooling_and_prompts_of_model_families(
    name: str, pooling: str, query: str, document: str
) -> None:
    recipe = known_recipe(name)
    assert (recipe.pooling, recipe.query, recipe.document) == (pooling, query, document)


class TestDescribed:
    @pytest.mark.parametrize(
        ("pooling", "expected"),
        [
            ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
            ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
            ({"pooling_mode_lasttoken": True, "include_prompt": True}, "last"),
            ({"embedding_dimension": 8, "pooling_mode": "lasttoken"}, "last"),
            ({"pooling_mode": ["cls"], "include_prompt": False}, "cls"),
        ],
    )
    def test_described_recipe_reads_old_and_new_pooling_files(self, pooling: dict[str, Any], expected: str) -> None:
        assert described(modules=[TRANSFORMER, POOLING, NORMALIZE], pooling=pooling).pooling == expected

    def test_described_recipe_reads_layers_length_and_case(self) -> None:
        assert described("Qwen3-Embedding-0.6B") == known_recipe("Qwen3-Embedding-0.6B")
        modules = [TRANSFORMER, POOLING, DENSE, DENSE | {"path": "3_Dense"}, NORMALIZE]
        texts = {"max_seq_length": 256, "do_lower_case": True}
        recipe = described(modules=modules, pooling={"pooling_mode": "mean"}, texts=texts)
        assert (recipe.dense, recipe.max_length, recipe.lower_case) == (("2_Dense", "3_Dense"), 256, True)
        assert (described().max_length, described().lower_case) == (None, False)
        files = {"modules.json": [TRANSFORMER, POOLING], "1_Pooling/config.json": {"pooling_mode": "max"}}
        assert described_recipe("model", files.get, "last").pooling == "last"  # the operator's choice

    @pytest.mark.parametrize(
        ("pooling", "message"),
        [
            ({"pooling_mode_max_tokens": True}, "pools by max"),
            ({"pooling_mode": ["cls", "mean"]}, "cls and mean"),
            ({}, "pools by nothing"),
            ({"pooling_mode": "mean", "include_prompt": False}, "excludes its prompts from the mean"),
        ],
    )
    def test_described_recipe_refuses_unsupported_poolings(self, pooling: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidConfiguration, match=message):
            described(modules=[TRANSFORMER, POOLING], pooling=pooling)

    def test_described_recipe_refuses_unsupported_modules(self) -> None:
        mean = {"pooling_mode": "mean"}
        for modules, message in (
            ([TRANSFORMER, DENSE], "Dense module after Transformer"),
            ([TRANSFORMER, POOLING, NORMALIZE, DENSE], "Dense module after Normalize"),
            ([{"path": "", "type": "sentence_transformers.models.WordEmbeddings"}], "WordEmbeddings module"),
        ):
            with pytest.raises(InvalidConfiguration, match=message):
                described(modules=modules, pooling=mean)
        with pytest.raises(InvalidConfiguration, match="folder 0_Transformer"):
            described(modules=[TRANSFORMER | {"path": "0_Transformer"}])

    @pytest.mark.parametrize(
        ("config", "query", "document"),
        [
            ({"prompts": {"query": "Q: ", "document": "D: "}}, "Q: ", "D: "),
            ({"prompts": {"query": "Q: ", "passage": "P: "}}, "Q: ", "P: "),
            ({"prompts": {"query": "Q: "}}, "Q: ", ""),
            ({"prompts": {"query": "Q: ", "all": "A: "}, "default_prompt_name": "all"}, "Q: ", "A: "),
            ({"prompts": {"query": "", "document": ""}}, "query: ", "passage: "),
            ({"prompts": {}, "default_prompt_name": None}, "query: ", "passage: "),
        ],
    )
    def test_described_recipe_reads_prompts(self, config: dict[str, Any], query: str, document: str) -> None:
        recipe = described("e5-small", config=config)
        assert (recipe.query, recipe.document) == (query, document)


def test_instructed_recipe_replaces_the_instruction_or_refuses() -> None:
    instructed = known_recipe("Qwen3-Embedding-8B").instructed(r"Find \1 timetables")
    assert instructed.query == "Instruct: Find \\1 timetables\nQuery:"
    with pytest.raises(InvalidConfiguration, match="query_prompt"):
        known_recipe("bge-small-en").instructed("Find it")
