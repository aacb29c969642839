"""The tokenizer that transformers makes from a folder's files, for folders that `encoder_tokens` does not support."""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import ModelError, UsageError, install
from .encoder_keys import refused
from .stored_tokenizer import StoredTokenizer


class LibraryTokenizer(NamedTuple):
    """The tokenizer of a folder.

    Attributes
    ----------
    tokens : StoredTokenizer
        The tokenizer.
    most_tokens : int
        The largest number of tokens of a text, from tokenizer_config.json; a huge number if that has none.
    inputs : tuple of str
        The names of the inputs that the tokenizer makes for a model.

    """

    tokens: StoredTokenizer
    most_tokens: int
    inputs: tuple[str, ...]


def is_installed(module: str) -> bool:
    """Whether a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


@contextmanager
def said_by_transformers(name: str, what: str) -> Iterator[None]:
    """Raise ModelError in place of any error of transformers, and silence its warnings.

    name: the name of the folder. what: the part of the folder that transformers loads.
    """
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        raise ModelError(f"{name} cannot be computed: transformers does not load its {what}: {said}") from error
    finally:
        logger.setLevel(level)


def load(folder: Path, name: str, lower: bool) -> LibraryTokenizer:
    """Load the tokenizer of a folder, without running code of the folder.

    Raises ModelError if transformers does not load it, or if it is written in Python, and UsageError if transformers is
    not installed.

    Parameters
    ----------
    folder : Path
        The folder.
    name : str
        The name of the folder in messages.
    lower : bool
        Whether to lower texts first.

    """
    # Load it with transformers.
    if not is_installed("transformers"):
        what = f"transformers makes the tokenizer of {name}, once, when its folder is read, and is not installed"
        raise UsageError(f"{what}: {install('torch')}")
    from transformers import AutoTokenizer

    with said_by_transformers(name, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if not tokenizer.is_fast:
        what = f"its tokenizer, {type(tokenizer).__name__}, is a program in Python"
        raise refused(name, what, "those that the library tokenizers computes are")
    # Adapt its JSON, and store that.
    about: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    if lower:
        steps = [{"type": "Lowercase"}, *([about["normalizer"]] if about["normalizer"] else [])]
        about["normalizer"] = {"type": "Sequence", "normalizers": steps}
    about["padding"] = about["truncation"] = None
    stored = np.frombuffer(json.dumps(about, ensure_ascii=False).encode(), np.uint8)
    tokens = StoredTokenizer(stored, tokenizer.truncation_side)
    return LibraryTokenizer(tokens, int(tokenizer.model_max_length), tuple(tokenizer.model_input_names))
