"""The reader of encoders' folders, as transformers and sentence-transformers save them, for our own kernels.

It refuses what the kernels cannot compute, and names it. `encoder_keys` has the keys of the JSON files;
`encoder_tokens` makes the tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
from numpy.typing import NDArray

from ..errors import ModelError
from . import deberta_folder, gte_folder, modernbert_folder
from .encoder import LAYER_NORM, MOST_LAYERS, MOST_TOKENS, NORMALISE, Activation, Encoder, Pooling, Settings
from .encoder_keys import (
    CONFIG,
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
from .fasttext import MOST_BYTES
from .folder_weights import transposed
from .library_tokenizer import load
from .model_file import HUB_FILE, SHARDS, read_file
from .scores import Levels, of_levels
from .stored_tokenizer import StoredTokenizer
from .torch_encoder import TorchEncoder
from .wordpiece import WordPiece

CONFIG_FILE, MODULES_FILE = "config.json", "modules.json"
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

_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_DENSE = {"Tanh": "tanh", "Identity": "identity", "ReLU": "relu", "GELU": "gelu"}
_POOLINGS: dict[str, Pooling] = {"cls": "cls", "cls_token": "cls", "mean": "mean", "mean_tokens": "mean"}
_LEVELS = 6

Tensor = NDArray[Any]


class _Trunk(NamedTuple):
    """An encoder without its tokens and its head.

    Attributes
    ----------
    weights : dict of str to ndarray
        The weights, by our names.
    most_tokens : int
        The largest number of tokens of a text for which the encoder has places.
    settings : dict
        The fields of `Settings` that config.json decides. A family returns only those that other families lack.

    """

    weights: dict[str, Tensor]
    most_tokens: int
    settings: dict[str, Any]


class _Family(NamedTuple):
    """The functions that read what differs between families of encoders.

    Attributes
    ----------
    read_trunk : callable
        Reads the weights and the settings of an encoder with a given number of layers.
    add_head : callable
        Adds the steps of a classifier before its last product, and returns the pooling.

    """

    read_trunk: Callable[[_Stored, int], _Trunk]
    add_head: Callable[[_Head, _Stored], Pooling]


class _Body(NamedTuple):
    """One kind of encoder: its family, and the names that transformers gives its settings and weights.

    Attributes
    ----------
    family : _Family
        The functions that read it.
    prefix : str
        The prefix of the names of the encoder's weights, in a file that also has a head.
    layers, heads, activation, width, inner : str
        The keys of config.json for the numbers of layers and heads, the activation, and the numbers of values of a
        vector and between the two products of a layer.
    usual : tuple of int
        The numbers of layers and heads if config.json does not have them.
    epsilon : float or str
        The number that is added to the variance by which vectors are normalised, or its key in config.json.
    layer, queries, products, norms : str or tuple of str
        The names of a layer; in it, of the weights of queries, keys and values; of "mix", "inner" and "outer"; and of
        both norms.
    before, step, last : str
        For a classifier: the name of the product before the last one, the step that follows it, and the name of the
        last product.
    counts_padding : bool
        Whether places are numbered from one above the number of the padding token, which has a place of its own.
    usual_epsilon : float
        The value of `epsilon` if config.json does not have it.

    """

    family: _Family
    prefix: str
    layers: str
    heads: str
    activation: str
    width: str
    inner: str
    usual: tuple[int, int]
    epsilon: float | str
    layer: str
    queries: tuple[str, ...]
    products: tuple[str, str, str]
    norms: tuple[str, str]
    before: str
    step: str
    last: str = "classifier"
    counts_padding: bool = False
    usual_epsilon: float = 1e-12


class _Stored(NamedTuple):
    """The stored encoder of a folder.

    Attributes
    ----------
    config : dict
        The content of config.json.
    tensors : _Tensors
        The weights.
    body : _Body
        The kind of the encoder.
    name : str
        The name of the folder in messages.

    """

    config: Json
    tensors: _Tensors
    body: _Body
    name: str


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
    if kind not in _BODIES or (kind == "new" and not gte_folder.is_of_authors(config)):
        raise NotInKernels(name, f"it is of the kind {kind!r:.40}", f"{_KNOWN} are")
    check_keys(config, CONFIG[kind], CONFIG_FILE, name)
    for file, what in (
        (_CHAT, "a template of chats"),
        (_CHATS, "templates of chats"),
    ):
        if (folder / file).exists():
            raise refused(name, f"it has {what}, {file}", "folders without one are")
    # Read the weights of the encoder.
    body = _BODIES[kind]
    modules = _modules(folder, name)
    tensors = _Tensors(folder / HUB_FILE, name, body.prefix)
    stored = _Stored(config, tensors, body, name)
    weights, places, of_trunk = _trunk(stored)
    # Read the head of a classifier, or the modules of sentence-transformers.
    head = _Head(weights)
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


def _trunk(stored: _Stored) -> _Trunk:
    """Read the weights of an encoder and all of its settings."""
    config, tensors, body, name = stored
    # Read the settings that all families have.
    activation = config.get(body.activation, "gelu")
    if activation not in _ACTIVATIONS:
        raise NotInKernels(name, f"its {body.activation} is {activation!r:.40}", f"{', '.join(_ACTIVATIONS)} are")
    layers = config.get(body.layers, body.usual[0])
    have = sum(f"{body.layer}.{i}.{body.queries[0]}.weight" in tensors for i in range(MOST_LAYERS))
    if not 1 <= layers <= have:
        raise ModelError(f"{name}: its {body.layers} in {CONFIG_FILE} is {layers}, and its weights have {have} layers")
    settings: dict[str, Any] = {
        "layers": layers,
        "heads": config.get(body.heads, body.usual[1]),
        "epsilon": body.epsilon if isinstance(body.epsilon, float) else config.get(body.epsilon, body.usual_epsilon),
        "activation": _ACTIVATIONS[activation],
    }
    # Read the rest, and check the sizes: for weights of another size, transformers would draw random ones.
    own = body.family.read_trunk(stored, layers)
    for key, size in _sizes(own.weights, tensors, body).items():
        if config.get(key, size) != size:
            raise ModelError(
                f"{name}: its {key} in {CONFIG_FILE} is {config[key]!r:.40}, and its weights have {size:,}"
            )
    return own._replace(settings=settings | own.settings)


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


class _Head:
    """Collects the steps of a head, which compute on the vector of a text, and adds their weights to the encoder's."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.steps: list[Any] = []
        self._weights, self._products = weights, 0
        self._width = weights["embedding"].shape[1]

    def add(self, step: str, weight: Tensor, bias: Tensor) -> None:
        """Add a product, with a matrix [outputs, inputs] as PyTorch stores it, and the step that follows it."""
        name = f"head.{self._products}"
        self._weights[name], self._weights[f"{name}.bias"] = transposed(weight), bias
        self.steps.append(step)
        self._products += 1
        self._width = len(weight)

    def norm(self, weight: Tensor, bias: Tensor) -> None:
        """Add a layer norm."""
        self._weights["head.norm.weight"], self._weights["head.norm.bias"] = weight, bias
        self.steps.append(LAYER_NORM)

    def cut(self, values: int | None, name: str) -> None:
        """Keep only the first values of the vector, by a product with ones and zeros."""
        if values is not None and values < 1:
            raise refused(name, f"its truncate_dim is {values}", "1 or more is")
        if values is not None and values < self._width:
            self.add("identity", np.eye(values, self._width, dtype=np.float32), np.zeros(values, np.float32))


def _add_modules(modules: list[tuple[str, Path]], head: _Head, name: str) -> Pooling:
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
            own = _Tensors(path / HUB_FILE, name)
            function = about.get("activation_function", "torch.nn.Tanh")
            package, _, kind = function.rpartition(".")
            if package.split(".")[0] != "torch" or kind not in _DENSE:
                raise NotInKernels(
                    name,
                    f"the activation_function of a Dense module is {function!r:.60}",
                    f"{', '.join(_DENSE)} of torch.nn are",
                )
            weight = own["linear.weight"]
            has_bias = about.get("bias", True)
            head.add(_DENSE[kind], weight, own["linear.bias"] if has_bias else np.zeros(len(weight), np.float32))
    return pooling


def _sizes(weights: Mapping[str, Tensor], tensors: _Tensors, body: _Body) -> dict[str, int]:
    """Return the sizes of the weights, by the keys that they have in config.json."""
    sizes = {
        "vocab_size": weights["embedding"].shape[0],
        body.width: weights["embedding"].shape[1],
        body.inner: weights["0.outer"].shape[0],
    }
    if "places" in weights:
        sizes["max_position_embeddings"] = weights["places"].shape[0]
    if _KINDS_OF_TOKENS in tensors:
        sizes["type_vocab_size"] = tensors[_KINDS_OF_TOKENS].shape[0]
    return sizes


_KINDS_OF_TOKENS = "embeddings.token_type_embeddings.weight"


class _Tensors:
    """The tensors of a file, by their names without a prefix.

    A tensor is converted when it is looked up, so unused tensors may have any dtype. Tensors in fp64, and in bf16,
    which NumPy lacks, become fp32. Old names of norms are replaced by the new ones.
    """

    def __init__(self, path: Path, name: str, prefix: str = "") -> None:
        if (path.parent / SHARDS).is_file() and not path.is_file():
            joins = "save_pretrained(DIR, max_shard_size='100GB')"
            what = f"its weights are in several files ({SHARDS}), which {joins} joins"
            raise NotInKernels(name, what, "a single one is")
        if not path.is_file():
            raise ModelError(f"{name} has no {path.name}: save it with safetensors (save_pretrained does), in one file")
        try:
            stored = safetensors.deserialize(read_file(path, MOST_BYTES))  # type: ignore[no-untyped-call]
        except safetensors.SafetensorError as error:
            raise ModelError(
                f"{name}: {path.name} is damaged ({str(error)[:200]}): download or save it again"
            ) from error
        self._name = f"{name}: {path.name}"
        self._stored = {
            key.removeprefix(prefix).replace(".gamma", ".weight").replace(".beta", ".bias"): about
            for key, about in stored
        }

    def __contains__(self, key: str) -> bool:
        return key in self._stored

    def __getitem__(self, key: str) -> Tensor:
        if key not in self._stored:
            raise ModelError(f"{self._name} lacks the tensor {key!r}: download or save the folder again")
        about = self._stored[key]
        kind, data = about["dtype"], about["data"]
        if kind not in _STORED_AS:
            raise ModelError(f"{self._name} has the tensor {key!r} in {kind}; known are {', '.join(_STORED_AS)}")
        tensor = np.frombuffer(data, _STORED_AS[kind])
        if kind == "BF16":
            tensor = (tensor.astype(np.uint32) << 16).view(np.float32)
        elif kind == "F64":
            tensor = tensor.astype(np.float32)
        return tensor.reshape(about["shape"])


_STORED_AS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8"}


def _embeddings(tensors: _Tensors, body: _Body) -> dict[str, Tensor]:
    """Return the vectors of tokens and of places, by our names."""
    weights: dict[str, Tensor] = {"embedding": tensors["embeddings.word_embeddings.weight"]}
    weights["places"] = tensors["embeddings.position_embeddings.weight"]
    if isinstance(body.epsilon, str):  # every kind except DistilBERT, which has no kinds of tokens
        # All tokens of a single text are of the first kind.
        weights["places"] = weights["places"].astype(np.float32) + tensors[_KINDS_OF_TOKENS][0]
    return weights


def _layers(tensors: _Tensors, count: int, body: _Body) -> dict[str, Tensor]:
    """Return the weights of the first norm and of all layers by our names, in the shapes of our products."""
    weights: dict[str, Tensor] = {
        f"norm.{part}": tensors[f"embeddings.LayerNorm.{part}"] for part in ("weight", "bias")
    }
    for layer in range(count):
        of = f"{body.layer}.{layer}"
        turned = [transposed(tensors[f"{of}.{one}.weight"]) for one in body.queries]
        weights[f"{layer}.queries"] = np.concatenate(turned, axis=1)
        weights[f"{layer}.queries.bias"] = np.concatenate([tensors[f"{of}.{one}.bias"] for one in body.queries])
        for ours, theirs in zip(("mix", "inner", "outer"), body.products, strict=True):
            weights[f"{layer}.{ours}"] = transposed(tensors[f"{of}.{theirs}.weight"])
            weights[f"{layer}.{ours}.bias"] = tensors[f"{of}.{theirs}.bias"]
        for ours, theirs in zip(("norm1", "norm2"), body.norms, strict=True):
            weights |= {f"{layer}.{ours}.{part}": tensors[f"{of}.{theirs}.{part}"] for part in ("weight", "bias")}
    return weights


def _trunk_of_bert(stored: _Stored, layers: int) -> _Trunk:
    """Read the weights, with vectors of places, for BERT, DistilBERT and RoBERTa."""
    config, tensors, body, _ = stored
    padding = int(config.get("pad_token_id", 1)) if body.counts_padding else None
    weights = {**_embeddings(tensors, body), **_layers(tensors, layers, body)}
    places = len(weights["places"]) - (0 if padding is None else padding + 1)
    return _Trunk(weights, places, {"padding": padding})


def _trunk_of_modernbert(stored: _Stored, layers: int) -> _Trunk:
    """Read the weights, rotary embeddings and windows of ModernBERT."""
    config, tensors, _, name = stored
    rotary = modernbert_folder.rotary_of(config, layers, name)
    weights = modernbert_folder.weights_of(tensors, config, layers)
    places = config.get("max_position_embeddings", MOST_TOKENS)
    return _Trunk(weights, places, {"rotary": rotary, "is_pre_norm": True, "is_gated": True})


def _trunk_of_gte(stored: _Stored, layers: int) -> _Trunk:
    """Read the weights and rotary embeddings of gte."""
    config, tensors, _, name = stored
    rotary = (gte_folder.rotary_of(config, name),) * layers
    weights = gte_folder.weights_of(tensors, config, layers)
    return _Trunk(weights, gte_folder.places_of(config), {"rotary": rotary, "is_gated": True})


def _trunk_of_deberta(stored: _Stored, layers: int) -> _Trunk:
    """Read the weights of DeBERTa-v2, with keys and queries of distances."""
    config, tensors, body, name = stored
    distances = deberta_folder.distances_of(config, name)
    weights = {"embedding": deberta_folder.embedding_of(tensors, config), **_layers(tensors, layers, body)}
    weights |= deberta_folder.projected(tensors, config, distances, layers, name)
    return _Trunk(weights, config.get("max_position_embeddings", 512), {"distances": distances})


def _add_head_of_bert(head: _Head, stored: _Stored) -> Pooling:
    """Add the product of BERT's pooler, or of the head of a kind without a pooler, which reads the first token."""
    _add_product(head, stored, stored.body.step)
    return "cls"


def _add_head_of_deberta(head: _Head, stored: _Stored) -> Pooling:
    """Add the product of the pooler, whose activation config.json names."""
    _add_product(head, stored, deberta_folder.head_of(stored.config, stored.name))
    return "cls"


def _add_product(head: _Head, stored: _Stored, step: str) -> None:
    """Add the product before the last one, and the step that follows it."""
    tensors, before = stored.tensors, stored.body.before
    head.add(step, tensors[f"{before}.weight"], tensors[f"{before}.bias"])


def _add_head_of_modernbert(head: _Head, stored: _Stored) -> Pooling:
    """Add the product and the norm of a ModernBERT classifier, which reads the first token or the mean."""
    config, tensors, _, name = stored
    pooling, step, has_bias, has_norm_bias = modernbert_folder.head_of(config, name)
    weight, gamma = tensors["head.dense.weight"], tensors["head.norm.weight"]
    zeros = np.zeros(len(weight), np.float32)
    head.add(step, weight, tensors["head.dense.bias"] if has_bias else zeros)
    head.norm(gamma, tensors["head.norm.bias"] if has_norm_bias else zeros)
    return pooling


_BERT = _Body(
    _Family(_trunk_of_bert, _add_head_of_bert),
    "bert.", "num_hidden_layers", "num_attention_heads", "hidden_act", "hidden_size", "intermediate_size", (12, 12),
    "layer_norm_eps", "encoder.layer", ("attention.self.query", "attention.self.key", "attention.self.value"),
    ("attention.output.dense", "intermediate.dense", "output.dense"),
    ("attention.output.LayerNorm", "output.LayerNorm"), "pooler.dense", "tanh",
)  # fmt: skip
_DISTILBERT = _Body(
    _BERT.family,
    "distilbert.", "n_layers", "n_heads", "activation", "dim", "hidden_dim", (6, 12), 1e-12, "transformer.layer",
    ("attention.q_lin", "attention.k_lin", "attention.v_lin"), ("attention.out_lin", "ffn.lin1", "ffn.lin2"),
    ("sa_layer_norm", "output_layer_norm"), "pre_classifier", "relu",
)  # fmt: skip
_ROBERTA = _BERT._replace(prefix="roberta.", before="classifier.dense", last="classifier.out_proj", counts_padding=True)
_MODERNBERT = _Body(
    _Family(_trunk_of_modernbert, _add_head_of_modernbert),
    "model.", "num_hidden_layers", "num_attention_heads", "hidden_activation", "hidden_size", "intermediate_size",
    (22, 12), "norm_eps", "layers", ("attn.Wqkv",), ("attn.Wo", "mlp.Wi", "mlp.Wo"), ("attn_norm", "mlp_norm"),
    "head.dense", "gelu", usual_epsilon=1e-5,
)  # fmt: skip
_GTE = _Body(
    _Family(_trunk_of_gte, _add_head_of_bert),
    "gte.", "num_hidden_layers", "num_attention_heads", "hidden_act", "hidden_size", "intermediate_size", (12, 12),
    "layer_norm_eps", "encoder.layer", ("attention.qkv_proj",),
    ("attention.o_proj", "mlp.up_gate_proj", "mlp.down_proj"), ("attn_ln", "mlp_ln"), "pooler.dense", "tanh",
)  # fmt: skip
_DEBERTA = _BERT._replace(
    family=_Family(_trunk_of_deberta, _add_head_of_deberta),
    prefix="deberta.", usual=(24, 24), usual_epsilon=1e-7,
    queries=("attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj"),
)  # fmt: skip
_BODIES = {
    "bert": _BERT,
    "distilbert": _DISTILBERT,
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), _ROBERTA),
    "modernbert": _MODERNBERT,
    "gte": _GTE,
    "new": _GTE._replace(prefix="new."),
    "deberta-v2": _DEBERTA,
}
"""The kinds of encoders, by `model_type` of config.json. A new kind also needs its keys in `encoder_keys.CONFIG`."""

_KNOWN = "BERT, DistilBERT, RoBERTa, XLM-R, CamemBERT, ModernBERT, gte and DeBERTa-v2"


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
