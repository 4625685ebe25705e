"""Tiny models of the true architectures with random weights, and small tokenizers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers.pre_tokenizers import PreTokenizer
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

QUERY = "how often do trams run on weekdays?"
TEXTS = [
    "Trams run every ten minutes on weekdays and every fifteen minutes on Sundays.",
    "A violin has four strings.",
    "",
    "The timetable of the tram: one leaves each quarter of an hour, from five in the morning until midnight, and "
    "on some lines the whole night through.",
    "Ärzte empfehlen 8 Stunden Schlaf 🙂",
    "yes",
    "A violin has four strings. A cello has four strings. " * 3,
    "no, trams do not run",
]
OTHER_QUERY = "what has four strings?"
LONG = "the tram leaves the depot and runs along the river until the bridge " * 12

_CORPUS = [*TEXTS, QUERY, OTHER_QUERY, LONG, "Judge whether the Document meets the requirements", "Yes No yes no"] * 3
_WIDTH = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
_CHAT_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_WRAPPED: Any = PreTrainedTokenizerFast
_THINKING = ["<think>", "</think>"]
_QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def bert(folder: Path, *, labels: int = 1) -> Path:
    """Make a model like cross-encoder/ms-marco-MiniLM-L12-v2."""
    config = _configuration(BertConfig, num_labels=labels)
    return _save(folder, BertForSequenceClassification(config), word_pieces(types=True))


def xlm_roberta(folder: Path) -> Path:
    """Make a model like BAAI/bge-reranker-base."""
    config = _configuration(
        XLMRobertaConfig, max_position_embeddings=98, type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2
    )
    return _save(folder, XLMRobertaForSequenceClassification(config), _sentence_pieces())


def deberta(folder: Path) -> Path:
    """Make a model like mixedbread-ai/mxbai-rerank-base-v1."""
    config = _configuration(
        DebertaV2Config,
        relative_attention=True,
        position_buckets=16,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        type_vocab_size=0,
        pad_token_id=0,
    )
    return _save(folder, DebertaV2ForSequenceClassification(config), word_pieces(types=True))


def modernbert(folder: Path, *, pooling: str = "mean") -> Path:
    """Make a model like Alibaba-NLP/gte-reranker-modernbert-base."""
    config = _configuration(
        ModernBertConfig,
        classifier_pooling=pooling,
        local_attention=8,
        global_attn_every_n_layers=3,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
        cls_token_id=2,
        sep_token_id=3,
    )
    return _save(folder, ModernBertForSequenceClassification(config), word_pieces(types=False))


def qwen3(folder: Path, **options: Any) -> Path:
    """Make a model like Qwen3-Reranker and zerank-2."""
    return _save(folder, Qwen3ForCausalLM(_qwen(Qwen3Config, head_dim=12, **options)), byte_pairs())


def qwen3_untied(folder: Path) -> Path:
    return qwen3(folder, tie_word_embeddings=False)


def qwen2(folder: Path) -> Path:
    """Make a model with layers that attend to a window of tokens."""
    config = _qwen(Qwen2Config, use_sliding_window=True, sliding_window=9, max_window_layers=1)
    return _save(folder, Qwen2ForCausalLM(config), byte_pairs())


def qwen3_classifier(folder: Path) -> Path:
    kind: Any = Qwen3ForSequenceClassification
    return _save(folder, kind(_qwen(Qwen3Config, head_dim=12)), byte_pairs())


CLASSIFIERS: dict[str, Callable[[Path], Path]] = {
    "bert": bert,
    "xlm-roberta": xlm_roberta,
    "deberta": deberta,
    "modernbert": modernbert,
    "qwen3-classifier": qwen3_classifier,
}
GENERATORS: dict[str, Callable[[Path], Path]] = {
    "Qwen3-Reranker-tiny": qwen3,
    "Qwen3-Reranker-untied": qwen3_untied,
    "Qwen3-Reranker-windowed": qwen2,
    "zerank-tiny": qwen3,
    "mxbai-rerank-base-v2-tiny": qwen2,
}


def describe(
    folder: Path, *, chat_template: str, yes: str, no: str | None, prompts: dict[str, str] | None = None
) -> None:
    """Add the files by which sentence-transformers recognises a causal reranker."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    kind = "sentence_transformers.base.modules.transformer.Transformer"
    score = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
    files: dict[str, Any] = {
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": kind},
            {"idx": 1, "name": "1", "path": "1_LogitScore", "type": score},
        ],
        "1_LogitScore/config.json": {
            "true_token_id": tokenizer.token_to_id(yes),
            "false_token_id": None if no is None else tokenizer.token_to_id(no),
        },
        "sentence_bert_config.json": {
            "transformer_task": "text-generation",
            "modality_config": {
                "text": {"method": "forward", "method_output_name": "logits"},
                "message": {"method": "forward", "method_output_name": "logits", "format": "flat"},
            },
            "module_output_name": "causal_logits",
            "processing_kwargs": {"chat_template": {"add_generation_prompt": True}},
        },
        "config_sentence_transformers.json": {
            "model_type": "CrossEncoder",
            "prompts": prompts or {},
            "default_prompt_name": next(iter(prompts), None) if prompts else None,
            "activation_fn": "torch.nn.modules.activation.Sigmoid",
        },
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")


def _configuration(kind: Any, **options: Any) -> Any:
    settings = {"vocab_size": 400, "max_position_embeddings": 96, "num_labels": 1, "initializer_range": 0.3}
    return kind(**_WIDTH | settings | options)


def _qwen(kind: Any, **options: Any) -> Any:
    settings = {
        "vocab_size": 700,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "eos_token_id": 2,
    }
    return _configuration(kind, **settings | options)


def _save(folder: Path, model: Any, tokenizer: Any) -> Path:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.5 if "bias" in name else model.config.initializer_range
            shift = 1.0 if parameter.ndim == 1 and "bias" not in name else 0.0
            parameter.copy_(shift + spread * torch.randn(parameter.shape, generator=generator))
    assert len(tokenizer) <= model.config.vocab_size
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def word_pieces(*, types: bool) -> Any:
    """Return a tokenizer like BERT's or, without types, ModernBERT's."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    text = normalizer.normalize_str(" ".join(_CORPUS))
    pieces = sorted(_halves({word for word, _ in splitter.pre_tokenize_str(text)}))
    vocabulary = {piece: number for number, piece in enumerate([*special, *pieces])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, special.index(token)) for token in ("[CLS]", "[SEP]")],
    )
    inputs = ["input_ids", "token_type_ids", "attention_mask"] if types else ["input_ids", "attention_mask"]
    return _WRAPPED(
        tokenizer_object=tokenizer,
        model_max_length=96,
        model_input_names=inputs,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def _halves(words: set[str]) -> set[str]:
    """Return both halves of each word, and every letter.

    The library's trainer would choose other pieces in each process.
    """
    letters = set("".join(words))
    pieces = letters | {f"##{letter}" for letter in letters}
    for word in words:
        half = len(word) // 2
        pieces |= {word[:half], f"##{word[half:]}"} - {""}
    return pieces


def _sentence_pieces() -> Any:
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=380, special_tokens=special, unk_token="<unk>")
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return _WRAPPED(
        tokenizer_object=tokenizer,
        model_max_length=96,
        model_input_names=["input_ids", "attention_mask"],
        bos_token="<s>",
        eos_token="</s>",
        cls_token="<s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
    )


def byte_pairs() -> Any:
    """Return a tokenizer like Qwen3's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split: list[PreTokenizer] = [
        pre_tokenizers.Split(Regex(_QWEN_SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=_CHAT_TOKENS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(["yes no Yes No yes\nno\nYes\nNo"] * 50 + _CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in _THINKING])
    return _WRAPPED(
        tokenizer_object=tokenizer,
        model_max_length=4096,
        model_input_names=["input_ids", "attention_mask"],
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
    )
