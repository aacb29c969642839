"""The reader of encoders' folders, as transformers and sentence-transformers save them, for our own kernels.

It refuses what the kernels cannot compute, and names it. `encoder_keys` has the keys of the JSON files;
`encoder_families` reads the weights of each kind of encoder; `encoder_tokens` makes the tokenizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError
from . import gte_folder
from .encoder import MOST_TOKENS, NORMALISE, Encoder, Pooling, Settings
from .encoder_families import BODIES, KNOWN, Head, Stored, trunk_of
from .encoder_keys import (
    CONFIG,
    CONFIG_FILE,
    MODULE,
    MODULES,
    POOLING_FLAGS,
    SENTENCE_TRANSFORMERS,
    TRANSFORMER,
    TRANSFORMER_FILES,
    Json,
    NotInKernels,
    check_keys,
    read_json,
    read_keys,
    refused,
)
from .encoder_tokens import (
    ADDED_TOKENS,
    SPECIAL_TOKENS_MAP,
    TOKENIZER,
    TOKENIZER_CONFIG_FILE,
    VOCABULARY,
    build,
    word_piece,
)
from .folder_weights import Tensors, transposed
from .library_tokenizer import load
from .model_file import HUB_FILE, SHARDS
from .scores import Levels, of_levels
from .stored_tokenizer import StoredTokenizer
from .torch_encoder import TorchEncoder
from .wordpiece import WordPiece

MODULES_FILE = "modules.json"
SENTENCE_TRANSFORMERS_FILE = "config_sentence_transformers.json"
SETFIT_HEAD, SETFIT_CONFIG = "model_head.pkl", "config_setfit.json"
ADAPTER = "adapter_config.json"
_CHAT, _CHATS = "chat_template.jinja", "additional_chat_templates"
FILES = (
    CONFIG_FILE, HUB_FILE, MODULES_FILE, TOKENIZER, TOKENIZER_CONFIG_FILE, VOCABULARY, SPECIAL_TOKENS_MAP, ADDED_TOKENS,
    *TRANSFORMER_FILES, SENTENCE_TRANSFORMERS_FILE, SETFIT_CONFIG, SHARDS, ADAPTER, _CHAT, f"{_CHATS}/*",
    "*/config.json", "*/model.safetensors", "model-*-of-*.safetensors", "merges.txt", "vocab.json", "*.model",
)  # fmt: skip
"""The files that are read from a folder, and fetched from a repository."""

_DENSE = {"Tanh": "tanh", "Identity": "identity", "ReLU": "relu", "GELU": "gelu"}
_POOLINGS: dict[str, Pooling] = {"cls": "cls", "cls_token": "cls", "mean": "mean", "mean_tokens": "mean"}
_LEVELS = 6


class Read(NamedTuple):
    """The content of a folder.

    Attributes
    ----------
    encoder : Encoder or TorchEncoder
        The encoder, with its head if it has one.
    classes : tuple of str
        The names of the outputs of the head; empty without a head.
    bias : float32 [classes]
        The bias of the last product.
    kind : str
        The kind of the head's result: "one" label, "several" labels (also with a single class), or a "number", whose
        levels are the classes; "" without a head.
    levels : Levels or None
        The levels of a number. The label is the nearest of 0 to 5, which is the usual scale of such heads; the number
        itself may have any value.

    """

    encoder: Encoder | TorchEncoder
    classes: tuple[str, ...]
    bias: NDArray[np.float32]
    kind: str
    levels: Levels | None


def is_folder(path: Path) -> bool:
    """Whether `path` is the folder of an encoder."""
    return (path / CONFIG_FILE).is_file()


def has_head(folder: Path) -> bool:
    """Whether the encoder of a folder gives labels or a number, not vectors. Raises ModelError if it is damaged."""
    if not is_folder(folder):  # it may be a folder of static vectors
        return False
    config = read_json(folder / CONFIG_FILE, str(folder))
    if not isinstance(config, dict):
        raise ModelError(f"{folder}: {CONFIG_FILE} is no JSON object: download or save the folder again")
    return is_classifier(config)


def is_classifier(config: Json) -> bool:
    """Whether config.json lists a model with a head for classes or a number."""
    return any(str(one).endswith("ForSequenceClassification") for one in config.get("architectures") or ())


def refuse_setfit(folder: Path, name: str) -> None:
    """Raise ModelError for a folder that SetFit saved, whose head is a pickle."""
    if (folder / SETFIT_HEAD).exists() or (folder / SETFIT_CONFIG).exists():
        raise ModelError(
            f"{name} is a model of SetFit: its head is a pickle, {SETFIT_HEAD}, which can run any code and is not "
            "read. Its encoder is read: fit a head to labelled rows, with broadsheet train --encoder"
        )


def read(folder: Path, name: str) -> Read:
    """Read a folder of an encoder that our kernels compute.

    Raises NotInKernels if they cannot compute it, though PyTorch may; ModelError for an unknown key, which it names,
    and for files that are missing or damaged; UsageError if `tokenizers` is missing.

    Parameters
    ----------
    folder : Path
        The folder.
    name : str
        The name of the folder in messages.

    """
    try:
        return _read(folder, name)
    except (OSError, ValueError, TypeError, AttributeError, KeyError, IndexError, OverflowError) as error:
        what = f"{type(error).__name__}: {str(error)[:200]}"
        raise ModelError(f"{name} is damaged, or its JSON files hold other values than usual ({what})") from error


def _read(folder: Path, name: str) -> Read:
    """Read a folder, with the errors of a damaged one as they come."""
    # Check the kind of the encoder and the keys of its config.
    config = read_json(folder / CONFIG_FILE, name)
    if config is None:
        raise ModelError(f"{name} has no {CONFIG_FILE}: name the folder of an encoder")
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind not in BODIES or (kind == "new" and not gte_folder.is_of_authors(config)):
        raise NotInKernels(name, f"it is of the kind {kind!r:.40}", f"{KNOWN} are")
    check_keys(config, CONFIG[kind], CONFIG_FILE, name)
    for file, what in (
        (_CHAT, "a template of chats"),
        (_CHATS, "templates of chats"),
    ):
        if (folder / file).exists():
            raise refused(name, f"it has {what}, {file}", "folders without one are")
    # Read the weights of the encoder.
    body = BODIES[kind]
    modules = _modules(folder, name)
    tensors = Tensors(folder / HUB_FILE, name, body.prefix)
    stored = Stored(config, tensors, body, name)
    weights, places, of_trunk = trunk_of(stored)
    # Read the head of a classifier, or the modules of sentence-transformers.
    head = Head(weights)
    classes: tuple[str, ...] = ()
    bias, of_head, levels = np.zeros(0, np.float32), "", None
    pooling: Pooling
    if is_classifier(config):
        if modules is not None:
            raise refused(
                name, f"it has a classifier and modules of sentence-transformers ({MODULES_FILE})", "one of the two is"
            )
        classes, of_head = classes_of(config, name)
        pooling = body.family.add_head(head, stored)
        weights["last"] = transposed(tensors[f"{body.last}.weight"])
        bias = tensors[f"{body.last}.bias"].astype(np.float32)
        outputs = 1 if of_head == "number" else len(classes)
        if len(bias) != outputs:
            what = f"id2label or num_labels in {CONFIG_FILE} is of {outputs} labels"
            raise ModelError(f"{name}: {what}, and its classifier has {len(bias)}: save the folder again")
        if of_head == "number":
            levels = Levels(0.0, 1.0, is_limited=False)
            weights["last"] = of_levels(weights["last"].astype(np.float64), len(classes), True).astype(np.float32)
            bias = of_levels(levels.steps(bias.astype(np.float64)), len(classes), False).astype(np.float32)
    elif modules is None:
        pooling = "mean"  # as in sentence-transformers, for a folder of transformers
    else:
        pooling = _add_modules(modules, head, name)
    transformer = {} if modules is None else _transformer(folder, name)
    if modules is not None:
        head.cut(read_keys(folder / SENTENCE_TRANSFORMERS_FILE, SENTENCE_TRANSFORMERS, name).get("truncate_dim"), name)
    # Make the tokenizer, and find the largest number of tokens of a text.
    tokens, of_tokenizer = _tokens(
        folder, config, bool(transformer.get("do_lower_case")), len(weights["embedding"]), name
    )
    limit = transformer.get("max_seq_length") or of_tokenizer or MOST_TOKENS + 1
    most_tokens = min(places, int(limit))
    if not _LEAST_TOKENS <= most_tokens <= MOST_TOKENS:
        keys = "max_seq_length, model_max_length or max_position_embeddings"
        what = f"by {keys} it reads {most_tokens:,} tokens of a text"
        raise refused(name, what, f"{_LEAST_TOKENS} to {MOST_TOKENS:,} are")
    # Keep the vectors of these places, and append the vector of padding.
    padding = of_trunk.get("padding")
    if "places" in weights:
        first = 0 if padding is None else padding + 1
        of_padding = weights["places"][first - 1 : first]
        weights["places"] = np.concatenate([weights["places"][first : first + most_tokens], of_padding])
    rules = tokens.rules if isinstance(tokens, WordPiece) else None
    settings = Settings(pooling=pooling, head=tuple(head.steps), most_tokens=most_tokens, rules=rules, **of_trunk)
    return Read(Encoder(settings, tokens, weights), classes, bias, of_head, levels)


_LEAST_TOKENS = 3


def _tokens(
    folder: Path, config: Json, lower: bool, entries: int, name: str
) -> tuple[WordPiece | StoredTokenizer, int | None]:
    """Return the tokenizer, and the largest number of tokens of a text, or None if the files have no such number.

    Parameters
    ----------
    folder : Path
        The folder.
    config : dict
        The content of config.json.
    lower : bool
        Whether to lower texts first.
    entries : int
        The number of vectors that the model has for tokens.
    name : str
        The name of the folder in messages.

    """
    # Try the tokenizer of BERT, which our kernels compute.
    kind, about = config["model_type"], read_json(folder / TOKENIZER_CONFIG_FILE, name) or {}
    if kind in _OF_BERT or (kind in _OF_GTE and about.get("tokenizer_class") in _TOKENS_OF_BERT):
        try:
            built = build(folder, config.get("tokenizer_class"), name)
            return word_piece(built.tokenizer, lower, entries, name), built.most_tokens
        except NotInKernels:  # the tokenizer is not WordPiece
            pass
    # Load any other tokenizer with transformers, and check that it fits.
    tokens, most_tokens, _ = load(folder, name, lower)
    if tokens.cut != "right":
        raise NotInKernels(name, f"its truncation_side is {tokens.cut!r}", "only 'right' is")
    if tokens.framing < 1:
        what = "the post_processor of its tokenizer.json puts no token before a text or after it"
        raise NotInKernels(name, what, "only tokenizers that do so are")
    if tokens.size > entries:
        raise ModelError(
            f"{name}: its tokenizer has tokens up to number {tokens.size - 1:,}, and its model vectors for "
            f"{entries:,}: save the folder again after resize_token_embeddings"
        )
    return tokens, most_tokens


_OF_BERT, _OF_GTE = ("bert", "distilbert"), ("gte", "new")
_TOKENS_OF_BERT = ("BertTokenizer", "BertTokenizerFast")


def _modules(folder: Path, name: str) -> list[tuple[str, Path]] | None:
    """Return the kinds and folders of the modules after the encoder, or None if the folder lists no modules."""
    # Check the settings of the whole folder.
    listed = read_json(folder / MODULES_FILE, name)
    if listed is None:
        return None
    about = read_json(folder / SENTENCE_TRANSFORMERS_FILE, name) or {}
    if about.get("model_type", "SentenceTransformer") != "SentenceTransformer":
        what = f"in {SENTENCE_TRANSFORMERS_FILE} its model_type is {about['model_type']!r:.40}"
        raise refused(name, what, "'SentenceTransformer' is, which makes a vector of one text,")
    check_keys(about, SENTENCE_TRANSFORMERS, SENTENCE_TRANSFORMERS_FILE, name)
    prompt = (about.get("prompts") or {}).get(about.get("default_prompt_name"))
    if prompt:
        raise NotInKernels(
            name, f"each text begins with the prompt {prompt!r:.60} (default_prompt_name)", "no prompts are"
        )
    # Check each module, and their order.
    modules = []
    for one in listed:
        check_keys(one, MODULE, MODULES_FILE, name)
        package, _, kind = one["type"].rpartition(".")
        is_of_library = package.split(".")[0] == "sentence_transformers"
        if not is_of_library or kind not in ("Transformer", *MODULES):
            # PyTorch can compute a LayerNorm; neither can compute other unknown modules.
            refusal = NotInKernels if is_of_library and kind == "LayerNorm" else refused
            what = f"it has a module {one['type']!r:.80}"
            raise refusal(name, what, f"{', '.join(MODULES)} of sentence-transformers are")
        modules.append((kind, folder / one["path"]))
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or {"Transformer", "Pooling"} & {*kinds[2:]}:
        raise refused(name, f"its modules are {', '.join(kinds)}", "a Transformer, a Pooling and then others are")
    if modules[0][1] != folder:
        raise refused(name, f"its Transformer is in {listed[0]['path']!r:.60}", "one in the folder itself is")
    return modules[1:]


def _transformer(folder: Path, name: str) -> Json:
    """Return the settings of sentence-transformers for the encoder."""
    for file in TRANSFORMER_FILES:
        about = read_keys(folder / file, TRANSFORMER, name)
        if about:
            return about
    return {}


def _add_modules(modules: list[tuple[str, Path]], head: Head, name: str) -> Pooling:
    """Add the modules after the encoder to a head. Return the pooling."""
    pooling: Pooling = "mean"
    for module, path in modules:
        about = read_json(path / CONFIG_FILE, name) or {}
        check_keys(about, MODULES[module], f"{path.name}/{CONFIG_FILE}", name)
        if module == "Pooling":
            pooling = _pooling(about, name)
        elif module == "Normalize":
            head.steps.append(NORMALISE)
        elif module == "Dense":
            tensors = Tensors(path / HUB_FILE, name)
            function = about.get("activation_function", "torch.nn.Tanh")
            package, _, kind = function.rpartition(".")
            if package.split(".")[0] != "torch" or kind not in _DENSE:
                raise NotInKernels(
                    name,
                    f"the activation_function of a Dense module is {function!r:.60}",
                    f"{', '.join(_DENSE)} of torch.nn are",
                )
            weight = tensors["linear.weight"]
            has_bias = about.get("bias", True)
            head.add(_DENSE[kind], weight, tensors["linear.bias"] if has_bias else np.zeros(len(weight), np.float32))
    return pooling


def classes_of(config: Json, name: str) -> tuple[tuple[str, ...], str]:
    """Return the names of a head's outputs, and its kind, as in `Read.kind`, by the rules of transformers."""
    names = config.get("id2label")
    count = config.get("num_labels", 2) if names is None else len(names)
    if names is not None and {*names} != {*map(str, range(count))}:
        raise ModelError(f"{name}: id2label in {CONFIG_FILE} has other keys than 0 to {count - 1}: {[*names]!r:.80}")
    problem = config.get("problem_type")
    kinds = {None: "one", "single_label_classification": "one", "multi_label_classification": "several"}
    if problem == "regression" and count == 1:
        return tuple(map(str, range(_LEVELS))), "number"
    if problem not in kinds or (problem == "single_label_classification" and count == 1):
        raise refused(name, f"its problem_type is {problem!r:.40} with {count} outputs", "other pairs of these two are")
    classes = tuple(f"LABEL_{i}" if names is None else str(names[str(i)]) for i in range(count))
    return classes, "several" if count == 1 else kinds[problem]


def _pooling(about: Json, name: str) -> Pooling:
    """Return the pooling of a Pooling module. Raises NotInKernels for one that our kernels lack."""
    modes = about.get("pooling_mode") or [mode for key, mode in POOLING_FLAGS.items() if about.get(key)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise NotInKernels(name, f"its pooling_mode is {' and '.join(map(str, modes))!r:.60}", "cls and mean are")
    return _POOLINGS[modes[0]]
