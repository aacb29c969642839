"""The tokenizer that transformers makes of a folder's files, for tokens that `encoder_tokens` does not make itself."""

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
    """A folder's tokenizer.

    Attributes
    ----------
    tokens : StoredTokenizer
        The tokenizer.
    most : int
        Tokens of a text that are read, by tokenizer_config.json; very many where it does not say.
    inputs : tuple of str
        What it gives a model.

    """

    tokens: StoredTokenizer
    most: int
    inputs: tuple[str, ...]


def is_installed(module: str) -> bool:
    """Whether a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


@contextmanager
def said_by_transformers(name: str, what: str) -> Iterator[None]:
    """Raise ModelError for what the library raises, of any kind, about a part of a folder; keep its warnings quiet."""
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
    """The tokenizer of a folder; no code of the folder runs.

    Raises ModelError where transformers does not load it, or it is a program in Python; UsageError without
    transformers.

    Parameters
    ----------
    folder : Path
        The folder.
    name : str
        What it is called in messages.
    lower : bool
        Whether texts are made lower case first.

    """
    if not is_installed("transformers"):
        what = f"transformers makes the tokenizer of {name}, once, when its folder is read, and is not installed"
        raise UsageError(f"{what}: {install('torch')}")
    from transformers import AutoTokenizer

    with said_by_transformers(name, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if not tokenizer.is_fast:
        what = f"its tokenizer, {type(tokenizer).__name__}, is a program in Python"
        raise refused(name, what, "those that the library tokenizers computes are")
    about: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    if lower:
        steps = [{"type": "Lowercase"}, *([about["normalizer"]] if about["normalizer"] else [])]
        about["normalizer"] = {"type": "Sequence", "normalizers": steps}
    about["padding"] = about["truncation"] = None
    stored = np.frombuffer(json.dumps(about, ensure_ascii=False).encode(), np.uint8)
    tokens = StoredTokenizer(stored, tokenizer.truncation_side)
    return LibraryTokenizer(tokens, int(tokenizer.model_max_length), tuple(tokenizer.model_input_names))
