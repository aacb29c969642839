"""The reader of encoders' folders for which PyTorch computes the forward pass. It refuses what it cannot compute.

transformers decides what the files mean: the class of the model, and the tokenizer. The reader runs no code of a
folder, and reads no pickle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError, UsageError, install
from .encoder import MOST_TOKENS
from .encoder_file import (
    ADAPTER,
    MODULES_FILE,
    SENTENCE_TRANSFORMERS_FILE,
    Read,
    classes_of,
    is_classifier,
    refuse_setfit,
)
from .encoder_keys import CONFIG_FILE, TRANSFORMER_FILES, Json, read_json, refused
from .fasttext import MOST_BYTES
from .library_tokenizer import is_installed, load, said_by_transformers
from .model_file import HUB_FILE, SHARDS, read_file
from .scores import Levels, of_levels
from .torch_encoder import ACTIVATION, TorchEncoder, TorchSettings, tensors_of

KNOWN_MODULES = ("Pooling", "Dense", "Normalize", "LayerNorm", "Dropout")
_PADDED_PLACES = (
    "camembert", "data2vec-text", "ibert", "lilt", "longformer", "mpnet", "roberta", "roberta-prelayernorm",
    "xlm-roberta", "xlm-roberta-xl", "xmod",
)  # fmt: skip
"""The families that number places from one above the number of the padding token, and so have fewer places."""

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def read(folder: Path, name: str, reason: str) -> Read:
    """Read a folder that transformers or sentence-transformers loads without running code of the folder.

    Raises ModelError if they do not load the folder, or only with such code, or if files are missing or damaged, and
    UsageError if PyTorch or transformers is not installed.

    Parameters
    ----------
    folder : Path
        The folder.
    name : str
        The name of the folder in messages.
    reason : str
        Why our kernels do not compute it.

    """
    for module, package in (("torch", "PyTorch"), ("transformers", "transformers")):
        if not is_installed(module):
            raise UsageError(
                f"{name} is not computed by our kernels: {reason}. PyTorch can compute it, and {package} is not "
                f"installed: {install('torch')}"
            )
    try:
        return _read(folder, name)
    except (OSError, ValueError, TypeError, AttributeError, KeyError, IndexError, OverflowError) as error:
        what = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise ModelError(f"{name} is damaged, or its files hold other values than usual ({what})") from error


def _read(folder: Path, name: str) -> Read:
    """Read a folder, with the errors of a damaged one as they come."""
    # Read the config and the weights.
    about = read_json(folder / CONFIG_FILE, name)
    config = _config(about, name)
    listed = read_json(folder / MODULES_FILE, name)
    files = {CONFIG_FILE: _bytes(folder / CONFIG_FILE), **_weights(folder, name)}
    classes: tuple[str, ...] = ()
    bias, kind, levels, last = np.zeros(0, np.float32), "", None, {}
    width = outputs = int(config.hidden_size)
    prompt, limit, lower = "", None, False
    # Read the head of a classifier, or the modules of sentence-transformers.
    if is_classifier(about):
        if listed is not None:
            what = f"it has a classifier and modules of sentence-transformers ({MODULES_FILE})"
            raise refused(name, what, "one of the two is")
        classes, kind = classes_of(about, name)
        outputs, bias = len(classes), np.zeros(len(classes), np.float32)
        if kind == "number":
            levels, outputs = Levels(0.0, 1.0, is_limited=False), 1
            last["last"] = of_levels(np.ones((1, 1)), len(classes), True).astype(np.float32)
            bias = of_levels(levels.steps(np.zeros(1)), len(classes), False).astype(np.float32)
    elif listed is not None:
        modules = _modules(folder, listed, name)
        outputs = _width(folder, modules, width, name)
        files |= {MODULES_FILE: _bytes(folder / MODULES_FILE), **_files_of(folder, modules)}
        whole = read_json(folder / SENTENCE_TRANSFORMERS_FILE, name) or {}
        prompt = str((whole.get("prompts") or {}).get(whole.get("default_prompt_name")) or "")
        if whole.get("truncate_dim") is not None:
            outputs = min(outputs, int(whole["truncate_dim"]))
        transformer = _transformer(folder, name)
        limit, lower = transformer.get("max_seq_length"), bool(transformer.get("do_lower_case"))
    else:
        refuse_setfit(folder, name)
    # Load the tokenizer, and check that it fits the model.
    stored, longest, names = load(folder, name, lower)
    if unknown := {*names} - {*_INPUTS}:
        raise refused(name, f"its tokenizer makes {sorted(unknown)[0]!r:.60} too", f"{', '.join(_INPUTS)} are")
    if stored.size > config.vocab_size:
        raise ModelError(
            f"{name}: its tokenizer has tokens up to number {stored.size - 1:,}, and its model vectors for "
            f"{config.vocab_size:,}: save the folder again after resize_token_embeddings"
        )
    most_tokens = _most_tokens(config, limit or longest)
    if most_tokens <= stored.framing:
        raise refused(name, f"it reads {most_tokens:,} tokens of a text", f"{stored.framing + 1} or more are")
    # Make the encoder.
    task: Any = "classifier" if classes else "vectors"
    family = str(about["model_type"])
    inputs: Any = names
    settings = TorchSettings(family, task, width, outputs, most_tokens, inputs, stored.cut, prompt)
    return Read(TorchEncoder(settings, stored, files, last), classes, bias, kind, levels)


def refuse(folder: Path, name: str) -> None:
    """Raise ModelError for a folder of a model that does not compute scores or vectors of single texts.

    These are adapters, quantised weights, and models of pairs of texts.

    Parameters
    ----------
    folder : Path
        The folder.
    name : str
        The name of the folder in messages.

    """
    about = read_json(folder / CONFIG_FILE, name) or {}
    if (folder / ADAPTER).exists():
        remedy = "merge it into its model (merge_and_unload) and save that"
        raise ModelError(f"{name} cannot be computed: it has an adapter of PEFT, {ADAPTER}: {remedy}")
    if about.get("quantization_config"):
        raise ModelError(
            f"{name} cannot be computed: its weights are quantised (quantization_config in {CONFIG_FILE}): take the "
            "model before that"
        )
    if isinstance(about.get("sentence_transformers"), dict):
        what = f"it is a CrossEncoder, which scores pairs of texts (sentence_transformers in {CONFIG_FILE})"
        raise refused(name, what, "models of one text are")
    whole = read_json(folder / SENTENCE_TRANSFORMERS_FILE, name) or {}
    if whole.get("model_type", "SentenceTransformer") != "SentenceTransformer":
        what = f"in {SENTENCE_TRANSFORMERS_FILE} its model_type is {whole['model_type']!r:.40}"
        raise refused(name, what, "'SentenceTransformer' is, which makes a vector of one text,")


def _config(about: Json, name: str) -> Any:
    """Return the config as an object of transformers.

    Raises ModelError for a family that transformers does not load without code of the folder.
    """
    import transformers

    # Check the family.
    kind, code = str(about.get("model_type")), about.get("auto_map")
    classifiers, bodies = transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, transformers.MODEL_MAPPING
    version = transformers.__version__
    if "model_type" not in about and not code:
        raise ModelError(
            f"{name} cannot be computed: its {CONFIG_FILE} has no model_type, so its head is a class that its authors "
            "wrote, not part of transformers. Use a copy that AutoModelForSequenceClassification loads, or train a "
            "head on an encoder, with --encoder"
        )
    if kind not in transformers.CONFIG_MAPPING:
        if code:
            programs = ", ".join(sorted(map(str, code.values())))[:120]
            raise ModelError(
                f"{name} cannot be computed: it brings code of its own ({programs}, by auto_map in {CONFIG_FILE}), "
                f"which is not run here, and transformers {version} has no {kind!r:.40}. Look for a copy that loads "
                "without trust_remote_code, or a newer transformers"
            )
        raise ModelError(
            f"{name} cannot be computed: transformers {version} has no models of the kind {kind!r:.40}: upgrade it"
        )
    # Load the config, and check that transformers has a model for it.
    with said_by_transformers(name, "config"):
        config = transformers.CONFIG_MAPPING[kind].from_dict(dict(about))
    if type(config) not in (classifiers if is_classifier(about) else bodies):
        what = "classifies texts" if is_classifier(about) else "makes vectors"
        raise ModelError(f"{name} cannot be computed: transformers {version} has no {kind!r:.40} that {what}")
    return config


def _most_tokens(config: Any, limit: int) -> int:
    """Return the largest number of tokens of a text: limited by the tokenizer, and by the places of the model."""
    places = getattr(config, "max_position_embeddings", None) or MOST_TOKENS
    places = MOST_TOKENS if places < 0 else places
    if config.model_type in _PADDED_PLACES:
        places -= int(config.pad_token_id) + 1
    return int(min(limit, places, MOST_TOKENS))


def _bytes(path: Path) -> NDArray[np.uint8]:
    """Read a file."""
    return np.frombuffer(read_file(path, MOST_BYTES), np.uint8)


def _weights(folder: Path, name: str) -> dict[str, NDArray[np.uint8]]:
    """Read the weights, which are in one file or several. Raises ModelError if a file is missing or damaged."""
    index = read_json(folder / SHARDS, name)
    parts = [HUB_FILE]
    if not (folder / HUB_FILE).is_file() and index is not None:
        parts = sorted({*map(str, index["weight_map"].values())})
    files = {}
    for part in parts:
        if Path(part).name != part or not (folder / part).is_file():
            raise ModelError(f"{name} has no {part}: save it with safetensors (save_pretrained does)")
        files[part] = _bytes(folder / part)
        tensors_of(files[part], f"{name}: {part}")
    return files


def _transformer(folder: Path, name: str) -> Json:
    """Read the settings of sentence-transformers for the encoder.

    Raises ModelError for a setting that changes how the encoder is called.
    """
    for file in TRANSFORMER_FILES:
        about = read_json(folder / file, name)
        if about:
            break
    else:
        return {}
    for key, value in about.items():
        if key.endswith(("_args", "_kwargs")) and value:
            raise refused(name, f"in {file} {key} is {value!r:.80}", "only {} is")
    text = (about.get("modality_config") or {}).get("text", {"method": "forward"})
    if text.get("method") != "forward" or text.get("method_output_name", "last_hidden_state") != "last_hidden_state":
        raise refused(name, f"in {file} modality_config of text is {text!r:.80}", "the last_hidden_state of forward is")
    return dict(about)


def _modules(folder: Path, listed: list[Json], name: str) -> list[tuple[str, Path]]:
    """Return the kinds and folders of the modules after the Transformer. Raises ModelError for an unknown module."""
    modules = []
    for one in listed:
        package, _, kind = one["type"].rpartition(".")
        if package.split(".")[0] != "sentence_transformers" or kind not in ("Transformer", *KNOWN_MODULES):
            known = f"{', '.join(KNOWN_MODULES)} of sentence-transformers are"
            raise refused(name, f"it has a module {one['type']!r:.80}", known)
        modules.append((kind, folder / one["path"]))
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or {"Transformer", "Pooling"} & {*kinds[2:]}:
        raise refused(name, f"its modules are {', '.join(kinds)}", "a Transformer, a Pooling and then others are")
    if modules[0][1] != folder:
        raise refused(name, f"its Transformer is in {listed[0]['path']!r:.60}", "one in the folder itself is")
    return modules[1:]


def _files_of(folder: Path, modules: list[tuple[str, Path]]) -> dict[str, NDArray[np.uint8]]:
    """Read the files of modules, by their paths in the folder."""
    found = {}
    for _, path in modules:
        for file in (CONFIG_FILE, HUB_FILE):
            if (path / file).is_file():
                found[f"{path.relative_to(folder)}/{file}"] = _bytes(path / file)
    return found


def _width(folder: Path, modules: list[tuple[str, Path]], width: int, name: str) -> int:
    """Return the number of values of a vector after the modules, by their settings. width: before the modules."""
    for kind, path in modules:
        about = read_json(path / CONFIG_FILE, name) or {}
        if kind == "Pooling":
            modes = about.get("pooling_mode")
            if modes is None:  # a file of an older version
                flags = [key for key, value in about.items() if key.startswith("pooling_mode_") and value is True]
                modes = flags or ["mean"]
            width *= 1 if isinstance(modes, str) else len(modes)
            if about.get("include_prompt") is False:
                raise refused(name, "include_prompt of its Pooling is false", "only true is")
        elif kind == "Dense":
            for key in ("module_input_name", "module_output_name"):
                if about.get(key, "sentence_embedding") not in ("sentence_embedding", None):
                    raise refused(name, f"{key} of a Dense module is {about[key]!r:.40}", "'sentence_embedding' is")
            function = str(about.get("activation_function", "torch.nn.Tanh"))
            if not ACTIVATION.fullmatch(function):
                raise refused(name, f"the activation_function of a Dense module is {function!r:.60}", "torch.nn's are")
            width = int(about["out_features"])
    return width
