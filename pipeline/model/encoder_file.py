"""Folders of encoders, as transformers and sentence-transformers save them: read, or refused by name.

The vocabulary and what becomes of each code point are asked of `tokenizers`, once: a model file has the answers.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
from numpy.typing import NDArray

from ..errors import ModelError, UsageError
from .encoder import NORMALISE, Activation, Encoder, Pooling, Settings
from .fasttext import MOST_BYTES
from .model_file import HUB_FILE, MOST_TOKENIZER_BYTES, read_file
from .scores import Levels, of_levels
from .wordpiece import ALONE, Rules, WordPiece

CONFIG = "config.json"
FILES = (
    CONFIG, HUB_FILE, "modules.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt",
    "sentence_bert_config.json", "config_sentence_transformers.json", "*/config.json", "*/model.safetensors",
)  # fmt: skip
"""What is read of a folder, and fetched of a repository."""

_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_DENSE = {"Tanh": "tanh", "Identity": "identity", "ReLU": "relu", "GELU": "gelu"}
_KINDS = ("BertNormalizer", "BertPreTokenizer", "WordPiece")
_SURROGATES = range(0xD800, 0xE000)
_MOST_JSON = 16 << 20
_LEVELS = 6

Json = dict[str, Any]
Tensor = NDArray[Any]


class _Body(NamedTuple):
    """What transformers calls the settings and weights of one kind of encoder.

    Attributes
    ----------
    prefix : str
        Of the names of the encoder's weights, where a head is beside them.
    layers, heads, activation : str
        Keys of config.json.
    layer, queries, products, norms : str or tuple of str
        What a layer's weights are called: those of queries, keys and values; "mix", "inner" and "outer"; both norms.
    before, step : str
        The product before the last one of a classifier, and what follows it.

    """

    prefix: str
    layers: str
    heads: str
    activation: str
    layer: str
    queries: tuple[str, str, str]
    products: tuple[str, str, str]
    norms: tuple[str, str]
    before: str
    step: str


_BODIES = {
    "bert": _Body(
        "bert.", "num_hidden_layers", "num_attention_heads", "hidden_act", "encoder.layer",
        ("attention.self.query", "attention.self.key", "attention.self.value"),
        ("attention.output.dense", "intermediate.dense", "output.dense"),
        ("attention.output.LayerNorm", "output.LayerNorm"),
        "pooler.dense", "tanh",
    ),
    "distilbert": _Body(
        "distilbert.", "n_layers", "n_heads", "activation", "transformer.layer",
        ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        ("attention.out_lin", "ffn.lin1", "ffn.lin2"),
        ("sa_layer_norm", "output_layer_norm"),
        "pre_classifier", "relu",
    ),
}  # fmt: skip


class Read(NamedTuple):
    """What is in a folder.

    Attributes
    ----------
    encoder : Encoder
        The encoder, with its head where there is one.
    classes : tuple of str
        The names of the head's outputs; none without a head.
    bias : float32 [classes]
        That of the last product.
    kind : str
        "one" label of several, "several" labels, or a "number", whose levels are the classes; "" without a head.
    levels : Levels or None
        Of a number: whole ones from 0 to 5, as those have it who train such heads; it is limited to them.

    """

    encoder: Encoder
    classes: tuple[str, ...]
    bias: NDArray[np.float32]
    kind: str
    levels: Levels | None


def is_folder(path: Path) -> bool:
    """Whether this is a folder of an encoder."""
    return (path / CONFIG).is_file()


def has_head(folder: Path) -> bool:
    """Whether it gives texts labels or a number, rather than vectors. Raises ModelError where it is damaged."""
    try:
        return _is_classifier(_json(folder / CONFIG) or {})
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{folder} is no whole folder of an encoder ({error}): download it again") from error


def _is_classifier(config: Json) -> bool:
    return str((config.get("architectures") or [""])[0]).endswith("ForSequenceClassification")


def read(folder: Path, name: str) -> Read:
    """Read a folder.

    Raises ModelError for an architecture, a tokenizer or a module that is not computed here, which it names, and for
    files that are missing or damaged; UsageError without `tokenizers`.

    Parameters
    ----------
    folder : Path
        The folder.
    name : str
        What it is called in messages.

    """
    try:
        config = _json(folder / CONFIG)
        kind = config.get("model_type")
        if kind not in _BODIES:
            raise _refused(name, f"it is of the kind {kind!r:.40}", "BERT and DistilBERT")
        listed = _json(folder / "modules.json") or ()
        modules = [(one["type"].rpartition(".")[2], folder / one["path"]) for one in listed]
        for module, _ in modules:
            if module not in ("Transformer", "Pooling", "Normalize", "Dense"):
                raise _refused(name, f"it has a module {module!r:.40}", "Pooling, Normalize and Dense")
        _check_prompt(_json(folder / "config_sentence_transformers.json"), name)
        return _read(folder, name, config, modules)
    except KeyError as error:
        raise ModelError(f"{name}: {error.args[0]!r:.100} is missing: download or save the folder again") from error
    except (OSError, ValueError, TypeError, AttributeError, safetensors.SafetensorError) as error:
        raise ModelError(f"{name} is no whole folder of an encoder ({str(error)[:200]}): download it again") from error


def _refused(name: str, what: str, known: str) -> ModelError:
    return ModelError(f"{name} cannot be computed: {what}, and {known} are known here")


def _read(folder: Path, name: str, config: Json, modules: list[tuple[str, Path]]) -> Read:
    body = _BODIES[config["model_type"]]
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise _refused(name, f"it has {config['position_embedding_type']!r:.40} positions", "absolute ones")
    activation = config.get(body.activation, "gelu")
    if activation not in _ACTIVATIONS:
        raise _refused(name, f"its activation is {activation!r:.40}", ", ".join(_ACTIVATIONS))
    stored = {key.removeprefix(body.prefix): tensor for key, tensor in _tensors(folder / HUB_FILE, name).items()}
    weights = _layers(stored, config[body.layers], body)
    head: list[Any] = []

    def add(step: str, weight: Tensor, bias: Tensor) -> None:
        number = sum(one != NORMALISE for one in head)
        weights[f"head.{number}"], weights[f"head.{number}.bias"] = _turned(weight), bias
        head.append(step)

    classes: tuple[str, ...] = ()
    bias, kind, levels = np.zeros(0, np.float32), "", None
    pooling: Pooling = "cls"
    if _is_classifier(config):
        if len(modules) > 1:
            raise _refused(name, "it has a classifier and modules of sentence-transformers", "one of the two")
        classes, kind = _classes(config)
        add(body.step, *(stored[f"{body.before}.{part}"] for part in ("weight", "bias")))
        weights["last"], bias = _turned(stored["classifier.weight"]), stored["classifier.bias"].astype(np.float32)
        if kind == "number":
            levels = Levels(0.0, 1.0)
            weights["last"] = of_levels(weights["last"].astype(np.float64), len(classes), True).astype(np.float32)
            bias = of_levels(levels.steps(bias.astype(np.float64)), len(classes), False).astype(np.float32)
    elif not modules:
        pooling = "mean"  # as sentence-transformers takes a folder of transformers
    for module, path in modules:
        about = _json(path / CONFIG) or {}
        if module == "Pooling":
            pooling = _pooling(about, name)
        elif module == "Normalize":
            head.append(NORMALISE)
        elif module == "Dense":
            own = _tensors(path / HUB_FILE, name)
            function = about["activation_function"].rpartition(".")[2]
            if function not in _DENSE:
                raise _refused(name, f"a Dense module has the activation {function!r:.40}", ", ".join(_DENSE))
            add(_DENSE[function], own["linear.weight"], own.get("linear.bias", np.zeros(about["out_features"], "f")))
    tokens = _word_piece(folder, len(weights["embedding"]), name)
    limits = [len(weights["places"]), (_json(folder / "tokenizer_config.json") or {}).get("model_max_length")]
    limits.append((_json(folder / "sentence_bert_config.json") or {}).get("max_seq_length"))
    most = min(int(limit) for limit in limits if limit)
    weights["places"] = weights["places"][:most]
    settings = Settings(
        config[body.layers], config[body.heads], config.get("layer_norm_eps", 1e-12), _ACTIVATIONS[activation],
        pooling, tuple(head), most, tokens.rules,
    )  # fmt: skip
    return Read(Encoder(settings, tokens, weights), classes, bias, kind, levels)


def _layers(stored: Mapping[str, Tensor], count: int, body: _Body) -> dict[str, Tensor]:
    """The weights by our names, and in the shapes that vectors are multiplied with."""
    weights: dict[str, Tensor] = {"embedding": stored["embeddings.word_embeddings.weight"]}
    weights["places"] = stored["embeddings.position_embeddings.weight"]
    kinds = stored.get("embeddings.token_type_embeddings.weight")
    if kinds is not None:  # one text is of the first kind, wherever the token is
        weights["places"] = weights["places"].astype(np.float32) + kinds[0]
    weights |= {f"norm.{part}": stored[f"embeddings.LayerNorm.{part}"] for part in ("weight", "bias")}
    for layer in range(count):
        of = f"{body.layer}.{layer}"
        turned = [_turned(stored[f"{of}.{one}.weight"]) for one in body.queries]
        weights[f"{layer}.queries"] = np.concatenate(turned, axis=1)
        weights[f"{layer}.queries.bias"] = np.concatenate([stored[f"{of}.{one}.bias"] for one in body.queries])
        for ours, theirs in zip(("mix", "inner", "outer"), body.products, strict=True):
            weights[f"{layer}.{ours}"] = _turned(stored[f"{of}.{theirs}.weight"])
            weights[f"{layer}.{ours}.bias"] = stored[f"{of}.{theirs}.bias"]
        for ours, theirs in zip(("norm1", "norm2"), body.norms, strict=True):
            weights |= {f"{layer}.{ours}.{part}": stored[f"{of}.{theirs}.{part}"] for part in ("weight", "bias")}
    return weights


def _turned(weight: Tensor) -> Tensor:
    """[inputs, outputs] of what PyTorch has as [outputs, inputs]."""
    return np.ascontiguousarray(weight.T)


def _json(path: Path) -> Any:
    """The content of a file; None where there is none."""
    try:
        return json.loads(read_file(path, _MOST_JSON))
    except FileNotFoundError:
        return None


def _tensors(path: Path, name: str) -> dict[str, Tensor]:
    """The tensors of a file, as fp32 and fp16; NumPy has no bf16. Old names of norms are as new ones."""
    if not path.is_file():
        raise ModelError(f"{name} has no {path.name}: save it with safetensors (save_pretrained does), in one file")
    tensors = {}
    stored = safetensors.deserialize(read_file(path, MOST_BYTES))  # type: ignore[no-untyped-call]
    for key, about in stored:
        kind, data = about["dtype"], about["data"]
        if kind == "BF16":
            tensor = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            tensor = np.frombuffer(data, {"F32": "<f4", "F16": "<f2", "I64": "<i8"}[kind])
        tensors[key.replace(".gamma", ".weight").replace(".beta", ".bias")] = tensor.reshape(about["shape"])
    return tensors


def _classes(config: Json) -> tuple[tuple[str, ...], str]:
    """The names of a head's outputs, and its kind."""
    names = config.get("id2label") or {}
    count = len(names) or config.get("num_labels", 2)
    if count == 1:
        return tuple(map(str, range(_LEVELS))), "number"
    kind = "several" if config.get("problem_type") == "multi_label_classification" else "one"
    return tuple(str(names.get(str(i), i)) for i in range(count)), kind


def _pooling(about: Json, name: str) -> Pooling:
    modes = [key for key, value in about.items() if key.startswith("pooling_mode_") and value]
    mode = about.get("pooling_mode") or "+".join(key.removeprefix("pooling_mode_") for key in modes)
    known: dict[str, Pooling] = {"cls": "cls", "cls_token": "cls", "mean": "mean", "mean_tokens": "mean"}
    if mode not in known:
        raise _refused(name, f"its pooling is {mode!r:.60}", "cls and mean")
    return known[str(mode)]


def _check_prompt(about: Json | None, name: str) -> None:
    """Refuse what sentence-transformers would put before each text."""
    about = about or {}
    prompt = (about.get("prompts") or {}).get(about.get("default_prompt_name"))
    if prompt:
        raise _refused(name, f"each text would begin with the prompt {prompt!r:.60}", "no prompts")


def _word_piece(folder: Path, entries: int, name: str) -> WordPiece:
    """The vocabulary, with as many entries as the model has vectors."""
    try:
        import tokenizers
    except ImportError as error:
        raise UsageError("tokenizers is not installed: pip install 'broadsheet[pieces]'") from error
    if (folder / "tokenizer.json").is_file():
        text = read_file(folder / "tokenizer.json", MOST_TOKENIZER_BYTES).decode()
        try:
            tokenizer = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # of Rust's, without a class of its own
            raise ModelError(f"{name}: its tokenizer.json is damaged ({str(error)[:200]})") from error
    else:
        tokenizer = _old_tokenizer(folder, name)
        text = tokenizer.to_str()
    about = json.loads(text)
    model = about["model"]
    kinds = [(about[part] or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")]
    if kinds != [*_KINDS]:
        raise _refused(name, f"its tokenizer is of {', '.join(map(str, kinds))}", ", ".join(_KINDS))
    vocabulary = tokenizer.get_vocab()
    special = {}
    for added in about["added_tokens"]:
        if added["normalized"] or added["single_word"]:
            raise _refused(name, f"the token {added['content']!r:.40} depends on what stands around it", "others")
        special[added["content"]] = added["id"]
    tokenizer.no_padding()
    tokenizer.no_truncation()
    first, last = tokenizer.encode("").ids
    words = sorted(vocabulary, key=lambda word: vocabulary[word])
    if [vocabulary[word] for word in words] != [*range(len(words))] or len(words) > entries:
        raise ModelError(f"{name}: {len(words):,} tokens and {entries:,} vectors do not fit")
    words += [f"[unused {number}]" for number in range(len(words), entries)]
    become, marks = _characters(json.dumps([about["normalizer"], about["pre_tokenizer"]]))
    rules = Rules(
        first, last, vocabulary[model["unk_token"]], model["continuing_subword_prefix"],
        model["max_input_chars_per_word"], special, marks,
    )  # fmt: skip
    return WordPiece.of(rules, words, become)


def _old_tokenizer(folder: Path, name: str) -> Any:
    """Of a folder with a vocab.txt alone."""
    from tokenizers import BertWordPieceTokenizer

    about = _json(folder / "tokenizer_config.json") or {}
    if not (folder / "vocab.txt").is_file():
        raise ModelError(f"{name} has no tokenizer.json and no vocab.txt: download or save the folder again")
    how = {"lowercase": about.get("do_lower_case", True), "strip_accents": about.get("strip_accents")}
    how["handle_chinese_chars"] = about.get("tokenize_chinese_chars", True)
    return BertWordPieceTokenizer(str(folder / "vocab.txt"), **how)


@lru_cache(maxsize=4)
def _characters(steps: str) -> tuple[dict[int, list[int]], str]:
    """What becomes of each code point that does not stay, and the combining marks that stay, by a normalizer and a
    pre-tokenizer.
    """
    from tokenizers import Tokenizer, models

    normalizer, pre_tokenizer = json.loads(steps)
    about = json.loads(Tokenizer(models.WordPiece({"": 0}, unk_token="")).to_str())
    tokenizer = Tokenizer.from_str(json.dumps({**about, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer}))
    normalize = tokenizer.normalizer.normalize_str
    normal = {c: normalize(chr(c)) for c in range(0x110000) if c not in _SURROGATES}
    results = sorted({*"".join(normal.values())})
    between = "a".join(["", *results, ""])
    pieces = {piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(between)} - {"a"}
    alone = {piece for piece in pieces if len(piece) == 1}
    become: dict[int, list[int]] = {}
    for code_point, text in normal.items():
        is_padded = len(text) > 2 and text[0] == text[-1] == " "  # a Chinese character
        kept = text[1:-1] if is_padded else text
        points = [ord(c) + ALONE * (is_padded or c in alone) for c in kept]
        if points != [code_point]:
            become[code_point] = points
    marks = [c for c in results if unicodedata.combining(c)]
    pairs = ((a, b) for a in marks for b in marks if unicodedata.combining(a) > unicodedata.combining(b))
    ordered = {c for a, b in pairs if normalize(a + b) == b + a for c in (a, b)}  # the library's Unicode is an old one
    return become, "".join(sorted(ordered))
