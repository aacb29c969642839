"""Tiny folders of encoders with random weights, written by transformers and sentence-transformers, and changes to them.

A change sets one key of one file to one value. Tests compare our reader with what the original library makes of the
changed folder.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

WIDTH, PLACES, SPARE = 32, 48, 8
WORDS = ["harbour", "Harbour", "ferry", "late", "Late", "the", "The", "##ing", "ing", "[ENT]", "covid", "19", "@@s"]
LETTERS = [*string.ascii_letters, *string.digits, *".,;:!?[]()-#@<>/_'\"", *"éÉüßşİıçàÀ漢字ー한ä\u0301\u0327\u0130"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
VOCABULARY += [*dict.fromkeys(LETTERS), *(f"##{c}" for c in dict.fromkeys(LETTERS))]
VOCABULARY = [*dict.fromkeys(VOCABULARY)]

TEXTS = [
    "The Harbour ferry is LATE.", "the harbour", "", "Éa àÀ cafe\u0301 e\u0327\u0301", "漢字 the 漢ferry",
    "a [SEP] b [MASK]c [ENT] d", "a[ENT]b the[ENT]", "covid19 Covid19 COVID19 xcovid19",
    "tab\there\u00a0there\u2028\u0085x\x00y\x01z",
    "İstanbul ışık ß ﬁ", "x" * 101 + " y", "abcdefg the", "the ferry " * 40, "<s> the <img> [FOO] </s>",
    "under_score don't",
    "a\u200bb \ufffd c", "한국 harbouring", "lateing Theing @@s",
]  # fmt: skip
DROP: Any = object()


class Change(NamedTuple):
    """A change of one key in one file. where: the path of keys that leads to it. The value DROP removes the key."""

    file: str
    where: tuple[Any, ...]
    value: Any

    @property
    def names(self) -> set[str]:
        """Return the words that a refusal may quote: keys and values with letters.

        Values such as "1" or "True" are left out, because many messages contain them by chance.
        """

        def keys(value: Any) -> set[str]:
            """Return all keys and values inside a value, however deeply nested."""
            return set().union({*map(str, value)}, *map(keys, value.values())) if isinstance(value, dict) else set()

        every = {str(one) for one in self.where} | {str(self.value)} | keys(self.value)
        return {name for name in every if re.search("[a-z]{3}|<|\\[", name, re.IGNORECASE)} - {"True", "False", "None"}

    def apply(self, folder: Path) -> None:
        path = folder / self.file
        about = json.loads(path.read_text()) if path.is_file() else {}
        at = about
        for key in self.where[:-1]:
            at = at.setdefault(key, {}) if isinstance(at, dict) else at[key]
        if self.value is DROP:
            at.pop(self.where[-1], None)
        else:
            at[self.where[-1]] = self.value
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(about))


def tokenizer(stored: bool) -> Any:
    """Return BERT's tokenizer, in the form that tokenizer.json stores if `stored`."""
    import transformers

    built = transformers.BertTokenizer(vocab={word: i for i, word in enumerate(VOCABULARY)}, model_max_length=PLACES)
    return (
        transformers.PreTrainedTokenizerFast(tokenizer_object=built.backend_tokenizer, **_SPECIAL) if stored else built
    )


_SPECIAL = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}


def classifier(folder: Path, kind: str = "bert", stored: bool = False, classes: int = 3, **config: Any) -> Path:
    """Save a classifier as transformers does, and return its folder."""
    return _saved(folder, f"{_CLASSES[kind]}ForSequenceClassification", kind, stored, num_labels=classes, **config)


def vectors(folder: Path, kind: str = "bert", stored: bool = False, more: Sequence[str] = (), **config: Any) -> Path:
    """Save an encoder as sentence-transformers does, and return its folder.

    more: the modules after the pooling, "Dense" and "Normalize".
    """
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules.pooling import Pooling

    plain = _saved(folder.with_name(folder.name + "-plain"), f"{_CLASSES[kind]}Model", kind, stored, **config)
    torch.manual_seed(1)
    made = {"Dense": lambda: Dense(WIDTH, WIDTH), "Normalize": Normalize}
    modules = [Transformer(str(plain)), Pooling(WIDTH, "mean"), *(made[one]() for one in more)]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder), create_model_card=False)
    return folder


_CLASSES = {"bert": "Bert", "distilbert": "DistilBert", "gte": "Gte"}


def _saved(folder: Path, model_class: str, kind: str, stored: bool, **config: Any) -> Path:
    import torch
    import transformers

    sizes = {"vocab_size": len(VOCABULARY) + SPARE, "max_position_embeddings": PLACES}
    if kind != "distilbert":
        sizes |= {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    else:
        sizes |= {"dim": WIDTH, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
    torch.manual_seed(7)
    model = getattr(transformers, model_class)(getattr(transformers, f"{_CLASSES[kind]}Config")(**{**sizes, **config}))
    for weight in model.parameters():  # otherwise all texts have nearly the same scores
        weight.data.normal_(0, 0.4) if weight.dim() > 1 else weight.data.add_(torch.randn_like(weight) * 0.1)
    model.eval().save_pretrained(folder)
    tokenizer(stored).save_pretrained(folder)
    return folder


def scores_of_the_original(folder: Path, texts: Sequence[str]) -> list[dict[str, float] | None]:
    """Return the scores of all labels for each text, computed by transformers; None for a text where it fails."""
    import torch
    import transformers

    pipeline = transformers.pipeline("text-classification", str(folder), dtype=torch.float32, device="cpu")

    def of(text: str) -> dict[str, float]:
        return {one["label"]: one["score"] for one in pipeline(text, top_k=None, truncation=True)}

    return [_or_none(of, text) for text in texts]


def vectors_of_the_original(folder: Path, texts: Sequence[str]) -> list[NDArray[np.float32] | None]:
    """Return the vector of each text, computed by sentence-transformers; None for a text where it fails."""
    import torch
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32}, local_files_only=True)
    return [_or_none(lambda text: model.encode([text])[0], text) for text in texts]


def _or_none(of: Callable[[str], Any], text: str) -> Any:
    try:
        return of(text)
    except Exception:  # the original fails on this text, so there is nothing to compare with
        return None


CONFIG_VALUES: dict[str, list[Any]] = {
    "architectures": [None, ["BertForMaskedLM"]],
    "id2label": [None, {"0": "no", "1": "yes", "2": "perhaps"}, {"1": "a", "2": "b", "3": "c"}, {"0": "a", "1": "b"}],
    "problem_type": [None, "regression", "single_label_classification", "multi_label_classification"],
    "num_labels": [2, 3],
    "hidden_act": ["relu", "gelu_new", "gelu_pytorch_tanh", "silu", "quick_gelu"],
    "activation": ["relu", "gelu_new", "silu"],
    "layer_norm_eps": [1e-5, 0.5],
    "vocab_size": [len(VOCABULARY) + SPARE + 1],
    "type_vocab_size": [3],
    "hidden_size": [64],
    "dim": [64],
    "intermediate_size": [32],
    "hidden_dim": [32],
    "max_position_embeddings": [24],
    "num_hidden_layers": [1, 3],
    "n_layers": [1, 3],
    "num_attention_heads": [1, 4],
    "n_heads": [1, 4],
    "is_decoder": [True],
    "add_cross_attention": [True],
    "position_embedding_type": ["absolute", "relative_key"],
    "chunk_size_feed_forward": [2],
    "is_encoder_decoder": [True],
    "pruned_heads": [{"0": [1]}],
    "task_specific_params": [{"text-classification": {"problem_type": "multi_label_classification"}}],
    "sentence_transformers": [{"activation_fn": "torch.nn.modules.linear.Identity", "version": "5.1.0"}],
    "sbert_ce_default_activation_function": ["torch.nn.modules.linear.Identity"],
    "return_dict": [False],
    "torchscript": [True],
    "tokenizer_class": ["PreTrainedTokenizerFast", "DistilBertTokenizer"],
    "dtype": ["float16", "bfloat16"],
    "torch_dtype": ["float16"],
    "label2id": [{"x": 0, "y": 1, "z": 2}],
    "_num_labels": [7],
    "pad_token_id": [None, 5],
    "bos_token_id": [5],
    "eos_token_id": [[5]],
    "output_hidden_states": [True],
    "output_attentions": [True],
    "transformers_version": ["4.30.0"],
    "use_cache": [True],
    "tie_word_embeddings": [False],
    "initializer_range": [0.9],
    "classifier_dropout": [0.9],
    "sinusoidal_pos_embds": [True],
    "prefix": ["the "],
    "is_causal": [True],
    "embedding_size": [16],
}
"""Values to try for keys of config.json. For keys that are not listed, tests try the values in ODD."""

ODD: list[Any] = [0.9]
TOKENIZER_VALUES: dict[str, list[Any]] = {
    "do_lower_case": [True, False, DROP, None],
    "strip_accents": [None, True, False],
    "tokenize_chinese_chars": [True, False],
    "unk_token": ["[X]", "the"],
    "cls_token": ["the", "[NEW]", None],
    "sep_token": ["ferry", "[NEW]", {"__type": "AddedToken", "content": "[S]", "normalized": True}],
    "pad_token": ["[ENT]", None],
    "mask_token": ["[ENT]", None, {"__type": "AddedToken", "content": "[MASK]", "lstrip": True, "normalized": False}],
    "bos_token": ["<s>"],
    "eos_token": ["</s>"],
    "image_token": ["<img>"],
    "model_max_length": [16, 3, 2, 1000, 10**30, None, DROP],
    "max_len": [16],
    "truncation_side": ["left", "right"],
    "padding_side": ["left"],
    "split_special_tokens": [True],
    "extra_special_tokens": [["[ENT]"], ["[FOO]"], {"image_token": "<img>"}, []],
    "additional_special_tokens": [["[ENT]", "[FOO]"]],
    "model_specific_special_tokens": [{"image_token": "<img>"}],
    "added_tokens_decoder": [
        {},
        {"5": {"content": "harbour", "normalized": False, "special": False}},
        {"300": {"content": "[FOO]", "lstrip": True, "rstrip": True, "normalized": False, "special": True}},
        {"300": {"content": "covid19", "normalized": True, "special": False}},
        {"300": {"content": "covid19", "normalized": False, "special": False}},
        {"300": {"content": "[FOO]", "single_word": True, "normalized": False, "special": False}},
        {"300": {"content": "the ferry", "normalized": False, "special": False}},
    ],
    "model_input_names": [["input_ids", "attention_mask"], ["input_ids"]],
    "chat_template": ["{{ messages[0]['content'] }} the"],
    "auto_map": [{"AutoTokenizer": ["x.Y", None]}],
    "init_inputs": [[{"a": 0}]],
    "tokenizer_class": [
        "BertTokenizerFast",
        "DistilBertTokenizer",
        "PreTrainedTokenizerFast",
        "ElectraTokenizer",
        DROP,
    ],
    "clean_up_tokenization_spaces": [True],
    "do_basic_tokenize": [False],
    "never_split": [["the"]],
    "max_length": [8],
    "stride": [2],
    "truncation_strategy": ["only_first"],
    "pad_to_multiple_of": [8],
    "add_bos_token": [True],
    "backend": ["other"],
    "add_prefix_space": [True],
}
"""Values to try for keys of tokenizer_config.json."""

_CUT = {"max_length": 12, "strategy": "LongestFirst", "stride": 0}
_PADDING = {
    "strategy": {"Fixed": 40}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 9, "pad_type_id": 0,
    "pad_token": "[ENT]",
}  # fmt: skip
STORED_VALUES: list[tuple[tuple[Any, ...], list[Any]]] = [
    (("normalizer", "lowercase"), [False]),
    (("normalizer", "clean_text"), [False]),
    (("normalizer", "strip_accents"), [True, False]),
    (("normalizer", "handle_chinese_chars"), [False]),
    (("normalizer", "strip_marks"), [True]),
    (("normalizer",), [None, {"type": "Lowercase"}]),
    (("pre_tokenizer",), [None, {"type": "Whitespace"}]),
    (("post_processor",), [None, {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}]),
    (("post_processor", "single", 0, "SpecialToken", "type_id"), [1]),
    (("post_processor", "single", 1, "Sequence", "type_id"), [1]),
    (("post_processor", "single", 2, "SpecialToken", "id"), ["[CLS]"]),
    (("post_processor", "special_tokens", "[CLS]", "ids"), [[2, 4]]),
    (("model", "max_input_chars_per_word"), [4, 300]),
    (("model", "continuing_subword_prefix"), ["@@"]),
    (("model", "unk_token"), ["[MASK]", "[X]"]),
    (("model", "vocab", "zebra"), [len(VOCABULARY), len(VOCABULARY) + 3, len(VOCABULARY) + SPARE]),
    (("added_tokens", 4, "single_word"), [True]),
    (("added_tokens", 4, "normalized"), [True]),
    (("added_tokens", 4, "lstrip"), [True]),
    (("added_tokens", 4, "content"), ["ferry"]),
    (("truncation",), [{"direction": "Left", **_CUT}, {"direction": "Right", **_CUT}]),
    (("padding",), [_PADDING]),
    (("surprise",), [1]),
]  # fmt: skip
"""Values to try for keys of tokenizer.json."""

TRANSFORMER_VALUES: dict[str, list[Any]] = {
    "max_seq_length": [16, 200, None],
    "do_lower_case": [True, False],
    "transformer_task": ["fill-mask"],
    "modality_config": [{"text": {"method": "forward", "method_output_name": "pooler_output"}}],
    "module_output_name": ["sentence_embedding"],
    "processing_kwargs": [{"text": {"max_length": 8}}, {}],
    "unpad_inputs": [False, True],
    "query_length": [4],
    "document_length": [4],
    "query_expansion": [{"strategy": "fixed", "attend": True, "length": 32}],
    "model_args": [{"dtype": "float32"}, {}],
    "tokenizer_args": [{"do_lower_case": False}],
    "config_args": [{"layer_norm_eps": 0.5}],
    "surprise": [1],
}
"""Values to try for keys of sentence_bert_config.json."""

POOLING_VALUES: dict[str, list[Any]] = {
    "pooling_mode": [
        "cls",
        "max",
        "mean_sqrt_len_tokens",
        "weightedmean",
        "lasttoken",
        ["mean"],
        ["cls", "mean"],
        DROP,
    ],
    "pooling_mode_cls_token": [True],
    "include_prompt": [False],
    "embedding_dimension": [7],
    "surprise": [1],
}
DENSE_VALUES: dict[str, list[Any]] = {
    "activation_function": [*(f"torch.nn.{one}" for one in ("Identity", "ReLU", "GELU", "Sigmoid")), "my.Tanh", DROP],
    "bias": [False],
    "in_features": [16],
    "out_features": [16],
    "module_input_name": ["token_embeddings"],
    "module_output_name": ["other", None],
    "use_residual": [True],
    "surprise": [1],
}
NORMALIZE_VALUES: dict[str, list[Any]] = {
    "module_input_name": ["token_embeddings"],
    "module_output_name": ["other"],
    "surprise": [1],
}
SENTENCE_TRANSFORMERS_VALUES: dict[str, list[Any]] = {
    "model_type": ["CrossEncoder", "SparseEncoder", DROP],
    "prompts": [{"query": "the ", "document": ""}],
    "default_prompt_name": ["document"],
    "similarity_fn_name": ["dot"],
    "truncate_dim": [8, 100, None],
    "__version__": [{"sentence_transformers": "2.0.0"}],
    "surprise": [1],
}


def changes(file: str, values: dict[str, list[Any]]) -> list[Change]:
    return [Change(file, (key,), value) for key, some in values.items() for value in some]


def of_classifiers(kind: str, written: set[str]) -> list[Change]:
    """Return the changes to try on a classifier. written: the keys of its config.json."""
    other = {"hidden_act": "bert", "activation": "distilbert", "dim": "distilbert", "hidden_dim": "distilbert"}
    values = {key: CONFIG_VALUES.get(key, ODD) for key in sorted(written - {"model_type"})}
    values |= {key: some for key, some in CONFIG_VALUES.items() if other.get(key, kind) == kind}
    values.pop("architectures")  # the changes to a folder of vectors include this key
    return changes("config.json", values)


def of_tokenizers() -> list[Change]:
    stored = [Change("tokenizer.json", where, value) for where, some in STORED_VALUES for value in some]
    older = [
        Change("added_tokens.json", ("[FOO]",), len(VOCABULARY)),
        Change("special_tokens_map.json", ("cls_token",), "the"),
        Change("special_tokens_map.json", ("mask_token",), {"content": "[M]", "lstrip": True, "normalized": False}),
        Change("special_tokens_map.json", ("additional_special_tokens",), ["[FOO]"]),
        Change("special_tokens_map.json", ("surprise_token",), "[FOO]"),
    ]
    return [*changes("tokenizer_config.json", TOKENIZER_VALUES), *stored, *older]


def of_vectors() -> list[Change]:
    return [
        *changes("config.json", {"architectures": CONFIG_VALUES["architectures"]}),
        *changes("sentence_bert_config.json", TRANSFORMER_VALUES),
        *changes("sentence_distilbert_config.json", {"max_seq_length": [16]}),
        *changes("config_sentence_transformers.json", SENTENCE_TRANSFORMERS_VALUES),
        *changes("1_Pooling/config.json", POOLING_VALUES),
        *changes("2_Dense/config.json", DENSE_VALUES),
        *changes("3_Normalize/config.json", NORMALIZE_VALUES),
        Change("modules.json", (1, "kwargs"), ["task"]),
        Change("modules.json", (2, "type"), "my_own.modules.Dense"),
        Change("modules.json", (2, "type"), "sentence_transformers.sentence_transformer.modules.LayerNorm"),
        Change("modules.json", (1, "surprise"), 1),
    ]
